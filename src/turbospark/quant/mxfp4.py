"""MXFP4 (OCP microscaling): blocks of 32 E2M1 floats that share a power of two.

Value = 2^(exponent - 127) * float. Codes lie as in Q4_0. Levels are kept doubled, so that they are whole,
and the power of two is halved.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, planes
from turbospark.quant.tensor import Format

LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
POWERS = np.ldexp(np.float32(1), np.arange(256) - 128)
LAYOUT = np.dtype([("exponent", "u1"), ("q", "u1", 16)])


def decode(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT)
    values = LEVELS[planes(block["q"], 4).reshape(*block.shape, 32)]
    values *= POWERS[block["exponent"]][..., None]
    return values


MXFP4 = Format("MXFP4", 32, LAYOUT.itemsize, decode)
