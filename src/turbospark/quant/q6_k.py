"""Q6_K: 256 values in 16 groups of 16. Value = (d * scale) * (q - 32), scale a signed byte.

Each half of 128 values is four runs of 32. Their low four bits fill 64 bytes: runs 0 and 1 the low halves,
runs 2 and 3 the high halves. Their upper two bits share 32 bytes, run r at bits 2r and 2r + 1.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, pack_planes, planes, store, widen
from turbospark.quant.rounding import nearest, peak, reciprocal
from turbospark.quant.tensor import Format

LAYOUT = np.dtype([("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


def decode(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT)
    shape = block.shape
    low = planes(block["q"].reshape(*shape, 2, 64), 4).reshape(*shape, 16, 16)
    high = planes(block["high"].reshape(*shape, 2, 32), 2).reshape(*shape, 16, 16)
    values = (low | high << np.uint8(4)).astype(np.float32)
    values -= 32
    values *= (widen(block["d"]) * block["scales"])[..., None]
    return values.reshape(*shape, 256)


def encode(values: np.ndarray) -> np.ndarray:
    shape = values.shape[:-1]
    groups = values.reshape(*shape, 16, 16)
    step = peak(groups)[..., 0] / np.float32(-32)
    d = (peak(step) / np.float32(-128)).astype(np.float16)
    scales = nearest(step * reciprocal(d.astype(np.float32)), -128, 127)
    codes = nearest(groups * reciprocal(d.astype(np.float32) * scales)[..., None], -32, 31) + 32
    codes = codes.astype(np.uint8).reshape(*shape, 256)
    low = pack_planes((codes & np.uint8(15)).reshape(*shape, 2, 2, 64), 4).reshape(*shape, 128)
    high = pack_planes((codes >> np.uint8(4)).reshape(*shape, 2, 4, 32), 2).reshape(*shape, 64)
    return store(LAYOUT, shape, q=low, high=high, scales=scales, d=d[..., 0])


Q6_K = Format("Q6_K", 256, LAYOUT.itemsize, decode, encode)
