"""Q3_K: 256 values in 16 groups of 16. Value = (d * (scale - 32)) * (q - 4), codes of 3 bits, scales of 6.

The low two bits of a code lie as in Q2_K. Its third bit is bit r of byte j of `high` for value j of the run
r of 32. The low four bits of the scales are the halves of bytes 0..7 of `scales`, all low halves first; the
upper two bits are bytes 8..11 in the same manner.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, planes, widen
from turbospark.quant.tensor import Format

LAYOUT = np.dtype([("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])


def unpack_scales(packed: np.ndarray) -> np.ndarray:
    """Bytes [..., 12] to the signed scales, float32 [..., 16]."""
    shape = (*packed.shape[:-1], 16)
    low, high = planes(packed[..., :8], 4).reshape(shape), planes(packed[..., 8:], 2).reshape(shape)
    return (low | high << np.uint8(4)).astype(np.float32) - 32


def decode(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT)
    shape = block.shape
    low = planes(block["q"].reshape(*shape, 2, 32), 2).reshape(*shape, 16, 16)
    high = planes(block["high"], 1).reshape(*shape, 16, 16)
    values = (low | high << np.uint8(2)).astype(np.float32)
    values -= 4
    values *= (widen(block["d"]) * unpack_scales(block["scales"]))[..., None]
    return values.reshape(*shape, 256)


Q3_K = Format("Q3_K", 256, LAYOUT.itemsize, decode)
