"""Q8_0: blocks of 32, value = d * q with q in -127..127."""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, store, widen
from turbospark.quant.rounding import peak, reciprocal
from turbospark.quant.tensor import Format

LAYOUT = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def decode(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT)
    values = block["q"].astype(np.float32)
    values *= widen(block["d"])
    return values


def encode(values: np.ndarray) -> np.ndarray:
    d = np.abs(peak(values)) / np.float32(127)
    scaled = values * reciprocal(d)
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))  # ties away from zero, as ggml rounds here
    return store(LAYOUT, values.shape[:-1], d=d[..., 0], q=codes)


Q8_0 = Format("Q8_0", 32, LAYOUT.itemsize, decode, encode)
