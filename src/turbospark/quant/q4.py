"""Q4_0 and Q4_1: blocks of 32 codes of 4 bits. Value = d * (q - 8), or d * q + m.

Byte j holds value j in its low half and value j + 16 in its high half.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, pack_planes, planes, store, widen
from turbospark.quant.rounding import centred, shifted
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


def pack_halves(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits uint8 [..., 32] to the 16 bytes of a block."""
    return pack_planes(codes.reshape(*codes.shape[:-1], 2, 16), 4)


def encode_0(values: np.ndarray) -> np.ndarray:
    d, codes = centred(values, 4)
    return store(LAYOUT_0, values.shape[:-1], d=d[..., 0], q=pack_halves(codes))


def encode_1(values: np.ndarray) -> np.ndarray:
    d, low, codes = shifted(values, 4)
    return store(LAYOUT_1, values.shape[:-1], d=d[..., 0], m=low[..., 0], q=pack_halves(codes))


Q4_0 = Format("Q4_0", 32, LAYOUT_0.itemsize, decode_0, encode_0)
Q4_1 = Format("Q4_1", 32, LAYOUT_1.itemsize, decode_1, encode_1)
