"""Q5_0 and Q5_1: blocks of 32 codes of 5 bits. Value = d * (q - 16), or d * q + m.

The low four bits lie as in Q4_0; bit j of `high` is the fifth bit of value j.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, pack, planes, store, unpack, widen
from turbospark.quant.q4 import pack_halves
from turbospark.quant.rounding import centred, shifted
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


def _pack(codes: np.ndarray) -> dict[str, np.ndarray]:
    """Codes uint8 [..., 32] to the two fields that hold them."""
    return {"q": pack_halves(codes & np.uint8(15)), "high": pack(codes >> np.uint8(4), 1)}


def encode_0(values: np.ndarray) -> np.ndarray:
    d, codes = centred(values, 5)
    return store(LAYOUT_0, values.shape[:-1], d=d[..., 0], **_pack(codes))


def encode_1(values: np.ndarray) -> np.ndarray:
    d, low, codes = shifted(values, 5)
    return store(LAYOUT_1, values.shape[:-1], d=d[..., 0], m=low[..., 0], **_pack(codes))


Q5_0 = Format("Q5_0", 32, LAYOUT_0.itemsize, decode_0, encode_0)
Q5_1 = Format("Q5_1", 32, LAYOUT_1.itemsize, decode_1, encode_1)
