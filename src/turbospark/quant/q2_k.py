"""Q2_K: 256 values in 16 groups of 16. Value = (d * scale) * q - (dmin * low), codes of 2 bits.

Byte g of `scales` holds scale (low half) and low (high half) of group g. Each half of 128 values is four
runs of 32 in 32 bytes, run r at bits 2r and 2r + 1.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, planes, widen
from turbospark.quant.tensor import Format

LAYOUT = np.dtype([("scales", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])


def decode(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT)
    shape = block.shape
    codes = planes(block["q"].reshape(*shape, 2, 32), 2).reshape(*shape, 16, 16)
    values = codes.astype(np.float32)
    values *= (widen(block["d"]) * (block["scales"] & 15))[..., None]
    values -= (widen(block["dmin"]) * (block["scales"] >> 4))[..., None]
    return values.reshape(*shape, 256)


Q2_K = Format("Q2_K", 256, LAYOUT.itemsize, decode)
