"""IQ2_XXS, IQ2_XS, IQ2_S: 256 values as 32 points of 8 coordinates from a fixed set, with signs apart.

Value = d * (0.5 + scale) / 4 * coordinate * sign, scale of 4 bits. IQ2_XXS: groups of 4 points with 8-bit
numbers, then 32 bits of 4 x 7 signs and the scale. IQ2_XS: 16 bits a point, 9 of number and 7 of signs.
IQ2_S: 10-bit numbers (the upper two in `high`) and all 8 signs. The latter two have a scale for each 2
points.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, unpack, widen
from turbospark.quant.iq_grids import EVEN_SIGNS, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, SIGNS
from turbospark.quant.tensor import Format

LAYOUT_XXS = np.dtype([("d", "<f2"), ("groups", [("points", "u1", 4), ("signs", "<u4")], 8)])
LAYOUT_XS = np.dtype([("d", "<f2"), ("points", "<u2", 32), ("scales", "u1", 8)])
LAYOUT_S = np.dtype([("d", "<f2"), ("points", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)])
SEVENS = np.arange(0, 28, 7, dtype=np.uint32)


def even_signs(words: np.ndarray) -> np.ndarray:
    """The four 7-bit sign numbers of each word uint32 [..., n] as signs float32 [..., n, 4, 8]."""
    return EVEN_SIGNS[words[..., None] >> SEVENS & np.uint32(127)]


def _values(d: np.ndarray, scale: np.ndarray, points: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """d [...], scale [..., groups], points and signs [..., 32, 8] or so split, to values [..., 256]."""
    step = widen(d) * (np.float32(0.5) + scale.astype(np.float32)) * np.float32(0.25)
    values = points.reshape(*step.shape, -1)
    values *= step[..., None]
    values *= signs.reshape(values.shape)
    return values.reshape(*d.shape, 256)


def decode_xxs(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_XXS)
    groups = block["groups"]
    words = groups["signs"]
    return _values(block["d"], words >> np.uint32(28), IQ2_XXS_GRID[groups["points"]], even_signs(words))


def decode_xs(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_XS)
    points, signs = block["points"] & np.uint16(511), block["points"] >> np.uint16(9)
    return _values(block["d"], unpack(block["scales"], 4), IQ2_XS_GRID[points], EVEN_SIGNS[signs])


def decode_s(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_S)
    points = block["points"] | unpack(block["high"], 2).astype(np.uint16) << np.uint16(8)
    return _values(block["d"], unpack(block["scales"], 4), IQ2_S_GRID[points], SIGNS[block["signs"]])


IQ2_XXS = Format("IQ2_XXS", 256, LAYOUT_XXS.itemsize, decode_xxs)
IQ2_XS = Format("IQ2_XS", 256, LAYOUT_XS.itemsize, decode_xs)
IQ2_S = Format("IQ2_S", 256, LAYOUT_S.itemsize, decode_s)
