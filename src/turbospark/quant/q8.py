"""Q8_0: blocks of 32, value = d * q with q in -127..127."""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, widen
from turbospark.quant.tensor import Format

LAYOUT = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def decode(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT)
    values = block["q"].astype(np.float32)
    values *= widen(block["d"])
    return values


Q8_0 = Format("Q8_0", 32, LAYOUT.itemsize, decode)
