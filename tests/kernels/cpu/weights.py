"""Weights for kernel tests: random codes with chosen scales, and what quantised activations stand for."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from turbospark import quant
from turbospark.quant import q4, q4_k, q5, q6_k, q8
from turbospark.quant.tensor import QTensor

LAYOUTS = {
    "Q8_0": q8.LAYOUT,
    "Q4_0": q4.LAYOUT_0,
    "Q4_1": q4.LAYOUT_1,
    "Q5_0": q5.LAYOUT_0,
    "Q5_1": q5.LAYOUT_1,
    "Q4_K": q4_k.LAYOUT_4,
    "Q5_K": q4_k.LAYOUT_5,
    "Q6_K": q6_k.LAYOUT,
}
CODED = (*LAYOUTS, "INT4")
PLAIN = ("F32", "F16", "BF16")


def columns(format: str) -> tuple[int, ...]:
    """Row lengths that matter: one block, a pair, an odd block left over, whole chunks, chunks and pairs."""
    block = quant.get_format(format).block
    if block == 256:
        return 256, 768
    return (64, 320, 576) if block == 64 else (32, 64, 96, 256, 544, 704)


def blocks(format: str, rows: int, columns: int, codes: np.ndarray | int, d: float = 1.0) -> QTensor:
    """Every byte from `codes` (an array to take them from in turn, or one value), then the scales: d, and lows of 3."""
    fmt = quant.get_format(format)
    shape = (rows, columns // fmt.block, fmt.nbytes)
    data = np.resize(np.asarray(codes, np.uint8), shape)
    scales = biases = None
    if format == "INT4":
        scales = np.full(shape[:2], d, bfloat16)
        biases = np.full(shape[:2], 3 * d, bfloat16)
    else:
        block = data.view(LAYOUTS[format])[..., 0]
        for name in ("d", "dmin", "m"):
            if name in LAYOUTS[format].names:
                block[name] = d if name == "d" else 3 * d
    return QTensor("w", format, (rows, columns), data.reshape(rows, -1), scales, biases)


def random_codes(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, 100003, np.uint8)


def dequantised(x: np.ndarray) -> np.ndarray:
    """float64: the values that blocks of 32 of x stand for, once quantised."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest < np.float32(4e-37), np.float32(0), np.float32(127) / largest)
    scale = np.where(largest < np.float32(4e-37), np.float32(0), largest / np.float32(127))
    return (np.rint(blocks * inverse).astype(np.float64) * scale).reshape(x.shape)
