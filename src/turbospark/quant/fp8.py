"""FP8 weights, E4M3 or E5M2, times a scale for each block of rows and columns, or one for the whole matrix.

Blocks at the right and lower edge may be partial. Scales are floats, or exponents (E8M0): 2 ** (byte - 127),
255 is NaN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ml_dtypes import float8_e4m3fn, float8_e5m2

from turbospark.quant.companions import EXPONENTS, FLOATS, as_array, checked
from turbospark.quant.tensor import Companions, Format, QTensor

BLOCK = 128
POWERS = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))


def with_scales(codes: QTensor, scales: QTensor, block: tuple[int, int] = (BLOCK, BLOCK)) -> QTensor:
    """An FP8 tensor with the scale tensor that lies beside it.

    block: rows and columns that one scale covers, from the configuration. Scales are F32, F16, BF16, or
    exponents in F8_E8M0 or U8; a single one of at most one axis serves the whole matrix. Raises `bad_scale`.
    """
    values = as_array(scales, FLOATS | EXPONENTS)
    if values.size == 1 and values.ndim < 2:
        values = values.reshape(())
    joined = replace(codes, scales=values, scale_block=block)
    parts(joined)
    return joined


def parts(t: QTensor) -> tuple[np.ndarray]:
    """The scales, checked: by block, one for each matrix of a stack, or one for all."""
    lead, matrix, block = t.shape[:-2], t.shape[-2:], t.scale_block
    shapes = [lead, ()]
    if len(matrix) == 2:
        shapes.insert(0, (*lead, -(-matrix[0] // block[0]), -(-matrix[1] // block[1])))
    role = f"scales in blocks of {block[0]} x {block[1]}"
    return (checked(t, role, t.scales, list(dict.fromkeys(shapes)), FLOATS | EXPONENTS),)


def join(codes: np.ndarray, t: QTensor, rows: np.ndarray) -> np.ndarray:
    (scales,) = parts(t)
    by_block = scales.ndim == len(t.shape)
    if by_block:
        scales = scales[..., rows // t.scale_block[0], :]
    scales = POWERS[scales] if scales.dtype == np.uint8 else scales.astype(np.float32)
    if by_block:
        codes *= np.repeat(scales, t.scale_block[1], axis=-1)[..., : codes.shape[-1]]
    else:
        codes *= scales.reshape(*scales.shape, *[1] * (codes.ndim - scales.ndim))
    return codes


def _fp8(name: str, dtype: type) -> Format:
    table = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    largest = table[np.isfinite(table)].max()

    def decode(blocks: np.ndarray) -> np.ndarray:
        return table[blocks]

    def encode(codes: np.ndarray) -> np.ndarray:
        return codes.astype(dtype).view(np.uint8)

    def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
        """Each block's largest magnitude becomes the largest code."""
        starts = [np.arange(0, size, BLOCK) for size in values.shape[-2:]]
        peaks = np.maximum.reduceat(np.abs(values), starts[0], axis=-2)
        scales = np.maximum.reduceat(peaks, starts[1], axis=-1) / largest
        scales = np.where(scales > 0, scales, np.float32(1))
        wide = np.repeat(np.repeat(scales, BLOCK, axis=-2), BLOCK, axis=-1)
        codes = values / wide[..., : values.shape[-2], : values.shape[-1]]
        return codes.clip(-largest, largest), scales, None

    return Format(name, 1, 1, decode, encode, Companions(parts, join, split))


F8_E4M3 = _fp8("F8_E4M3", float8_e4m3fn)
F8_E5M2 = _fp8("F8_E5M2", float8_e5m2)
F8_E8M0 = Format("F8_E8M0", 1, 1, lambda blocks: POWERS[blocks])
