"""IQ4_NL and IQ4_XS: 4-bit codes naming one of 16 unevenly spaced levels.

Value = d * level, or (d * scale) * level. IQ4_NL has blocks of 32, packed as Q4_0. IQ4_XS has 256 values in
8 such groups, each with a 6-bit scale less 32: the low four bits in sequence in `low`, the upper two in
`high`.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, planes, unpack, widen
from turbospark.quant.tensor import Format

LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
LAYOUT_NL = np.dtype([("d", "<f2"), ("q", "u1", 16)])
LAYOUT_XS = np.dtype([("d", "<f2"), ("high", "u1", 2), ("low", "u1", 4), ("q", "u1", (8, 16))])


def decode_nl(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_NL)
    values = LEVELS[planes(block["q"], 4).reshape(*block.shape, 32)]
    values *= widen(block["d"])
    return values


def decode_xs(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_XS)
    scale = (unpack(block["low"], 4) | unpack(block["high"], 2) << np.uint8(4)).astype(np.float32) - 32
    values = LEVELS[planes(block["q"], 4).reshape(*block.shape, 8, 32)]
    values *= (widen(block["d"]) * scale)[..., None]
    return values.reshape(*block.shape, 256)


IQ4_NL = Format("IQ4_NL", 32, LAYOUT_NL.itemsize, decode_nl)
IQ4_XS = Format("IQ4_XS", 256, LAYOUT_XS.itemsize, decode_xs)
