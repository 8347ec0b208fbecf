"""IQ1_S and IQ1_M: 256 values as 32 points of 8 coordinates -1, 0 or 1 from a fixed set, shifted by 1/8.

Value = d * (2 * scale + 1) * (coordinate + 1/8, or - 1/8). Point numbers have 11 bits, the upper three in
`high`. IQ1_S: `high` also has, for each 4 points, a scale of 3 bits and the shift's sign. IQ1_M: the sign
belongs to a point and the scale to 2 points; `scales` has four of these in the low 12 bits of each word, and
the four top nibbles together are d.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, unpack, widen
from turbospark.quant.iq_grids import IQ1_S_GRID
from turbospark.quant.tensor import Format

LAYOUT_S = np.dtype([("d", "<f2"), ("points", "u1", 32), ("high", "<u2", 8)])
LAYOUT_M = np.dtype([("points", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)])
SHIFT = np.float32(0.125)
THREES = np.arange(0, 12, 3, dtype=np.uint16)
NIBBLES = np.arange(0, 16, 4, dtype=np.uint16)


def _values(step: np.ndarray, points: np.ndarray, high: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """step [..., groups], points and high [..., 32], negative [..., 32 or 8], to values [..., 256]."""
    values = IQ1_S_GRID[points | high.astype(np.uint16) << np.uint16(8)]
    values = values.reshape(*negative.shape, -1)
    values += np.where(negative, -SHIFT, SHIFT)[..., None]
    values = values.reshape(*step.shape, -1)
    values *= step[..., None]
    return values.reshape(*step.shape[:-1], 256)


def decode_s(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_S)
    words = block["high"]
    high = (words[..., None] >> THREES & np.uint16(7)).reshape(*block.shape, 32)
    step = widen(block["d"]) * (2 * (words >> np.uint16(12) & np.uint16(7)) + 1)
    return _values(step, block["points"], high, words >> np.uint16(15) == 1)


def decode_m(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_M)
    words = block["scales"]
    d = np.bitwise_or.reduce(words >> np.uint16(12) << NIBBLES, axis=-1).view(np.float16)
    scale = (words[..., None] >> THREES & np.uint16(7)).reshape(*block.shape, 16)
    nibbles = unpack(block["high"], 4)
    return _values(widen(d) * (2 * scale + 1), block["points"], nibbles & np.uint8(7), nibbles >> np.uint8(3) == 1)


IQ1_S = Format("IQ1_S", 256, LAYOUT_S.itemsize, decode_s)
IQ1_M = Format("IQ1_M", 256, LAYOUT_M.itemsize, decode_m)
