"""Q5_0 and Q5_1: blocks of 32 codes of 5 bits. Value = d * (q - 16), or d * q + m.

The low four bits lie as in Q4_0; bit j of `high` is the fifth bit of value j.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, planes, unpack, widen
from turbospark.quant.tensor import Format

LAYOUT_0 = np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
LAYOUT_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])


def _codes(block: np.ndarray) -> np.ndarray:
    """Fields [...] to codes float32 [..., 32]."""
    low = planes(block["q"], 4).reshape(*block.shape, 32)
    return (low | unpack(block["high"], 1) << np.uint8(4)).astype(np.float32)


def decode_0(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_0)
    values = _codes(block)
    values -= 16
    values *= widen(block["d"])
    return values


def decode_1(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_1)
    values = _codes(block)
    values *= widen(block["d"])
    values += widen(block["m"])
    return values


Q5_0 = Format("Q5_0", 32, LAYOUT_0.itemsize, decode_0)
Q5_1 = Format("Q5_1", 32, LAYOUT_1.itemsize, decode_1)
