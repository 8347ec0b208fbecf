"""TQ1_0 and TQ2_0: 256 values of -1, 0 or 1 times one scale d.

TQ2_0 spends two bits a value, packed as Q2_K. TQ1_0 packs five values in a byte, as the base-3 fraction
byte / 256: the next digit is the whole part of three times the fraction. 32, then 16 bytes hold five runs
each, then 4 bytes hold four runs.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, planes, widen
from turbospark.quant.tensor import Format

LAYOUT_1 = np.dtype([("q32", "u1", 32), ("q16", "u1", 16), ("q4", "u1", 4), ("d", "<f2")])
LAYOUT_2 = np.dtype([("q", "u1", 64), ("d", "<f2")])
POWERS = np.array([[1], [3], [9], [27], [81]], dtype=np.uint8)


def _digits(packed: np.ndarray, count: int) -> np.ndarray:
    """Bytes [..., n] to their first `count` base-3 digits [..., count * n], run after run."""
    fraction = packed[..., None, :] * POWERS[:count]  # wraps: only the fraction is wanted
    return (fraction * np.uint16(3) >> 8).reshape(*packed.shape[:-1], -1)


def decode_1(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_1)
    runs = [_digits(block["q32"], 5), _digits(block["q16"], 5), _digits(block["q4"], 4)]
    values = np.concatenate(runs, axis=-1).astype(np.float32)
    values -= 1
    values *= widen(block["d"])
    return values


def decode_2(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_2)
    codes = planes(block["q"].reshape(*block.shape, 2, 32), 2).reshape(*block.shape, 256)
    values = codes.astype(np.float32)
    values -= 1
    values *= widen(block["d"])
    return values


TQ1_0 = Format("TQ1_0", 256, LAYOUT_1.itemsize, decode_1)
TQ2_0 = Format("TQ2_0", 256, LAYOUT_2.itemsize, decode_2)
