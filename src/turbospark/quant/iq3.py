"""IQ3_XXS and IQ3_S: 256 values as 64 points of 4 coordinates from a fixed set, with signs apart.

IQ3_XXS: value = d * (0.5 + scale) / 2 * coordinate * sign; 8-bit numbers, then for each 8 points 32 bits of
4 x 7 signs and the scale. IQ3_S: value = d * (1 + 2 * scale) * coordinate * sign; 9-bit numbers (the ninth
bit in `high`) and all 8 signs. Scales have 4 bits and serve 32 values.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, unpack, widen
from turbospark.quant.iq2 import even_signs
from turbospark.quant.iq_grids import IQ3_S_GRID, IQ3_XXS_GRID, SIGNS
from turbospark.quant.tensor import Format

LAYOUT_XXS = np.dtype([("d", "<f2"), ("points", "u1", 64), ("signs", "<u4", 8)])
LAYOUT_S = np.dtype([("d", "<f2"), ("points", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])


def _values(step: np.ndarray, points: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """step [..., 8], points [..., 64, 4], signs [..., 32, 8] or so split, to values [..., 256]."""
    values = points.reshape(*step.shape, 32)
    values *= step[..., None]
    values *= signs.reshape(values.shape)
    return values.reshape(*step.shape[:-1], 256)


def decode_xxs(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_XXS)
    words = block["signs"]
    scale = (words >> np.uint32(28)).astype(np.float32)
    step = widen(block["d"]) * (np.float32(0.5) + scale) * np.float32(0.5)
    return _values(step, IQ3_XXS_GRID[block["points"]], even_signs(words))


def decode_s(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_S)
    points = block["points"] | unpack(block["high"], 1).astype(np.uint16) << np.uint16(8)
    step = widen(block["d"]) * (1 + 2 * unpack(block["scales"], 4))
    return _values(step, IQ3_S_GRID[points], SIGNS[block["signs"]])


IQ3_XXS = Format("IQ3_XXS", 256, LAYOUT_XXS.itemsize, decode_xxs)
IQ3_S = Format("IQ3_S", 256, LAYOUT_S.itemsize, decode_s)
