"""Q4_0 and Q4_1: blocks of 32 codes of 4 bits. Value = d * (q - 8), or d * q + m.

Byte j holds value j in its low half and value j + 16 in its high half.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, planes, widen
from turbospark.quant.tensor import Format

LAYOUT_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
LAYOUT_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])


def _codes(block: np.ndarray) -> np.ndarray:
    """Fields [...] to codes float32 [..., 32]."""
    return planes(block["q"], 4).reshape(*block.shape, 32).astype(np.float32)


def decode_0(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_0)
    values = _codes(block)
    values -= 8
    values *= widen(block["d"])
    return values


def decode_1(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_1)
    values = _codes(block)
    values *= widen(block["d"])
    values += widen(block["m"])
    return values


Q4_0 = Format("Q4_0", 32, LAYOUT_0.itemsize, decode_0)
Q4_1 = Format("Q4_1", 32, LAYOUT_1.itemsize, decode_1)
