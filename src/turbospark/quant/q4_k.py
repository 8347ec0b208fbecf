"""Q4_K and Q5_K: 256 values in 8 groups of 32. Value = (d * scale) * q - (dmin * low).

Each group has a 6-bit `scale` and a 6-bit `low`; `scales` packs the sixteen into 12 bytes. Two neighbouring
groups share 32 bytes of codes, the first in the low halves. Q5_K adds a fifth bit: bit g of byte j of `high`
belongs to value j of group g.
"""

from __future__ import annotations

import numpy as np

from turbospark.quant.blocks import fields, pack_planes, planes, store, widen
from turbospark.quant.rounding import nearest, reciprocal
from turbospark.quant.tensor import Format

LAYOUT_4 = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])
LAYOUT_5 = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)])


def unpack_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [..., 12] to (scale, low), both uint8 [..., 8].

    Bytes 0..3 and 4..7 hold scale and low of groups 0..3 in six bits; the two bits above them complete the
    nibbles of bytes 8..11, which are scale (low half) and low (high half) of groups 4..7.
    """
    first, second, nibbles = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = np.concatenate([first & 63, nibbles & 15 | first >> 6 << 4], axis=-1)
    low = np.concatenate([second & 63, nibbles >> 4 | second >> 6 << 4], axis=-1)
    return scale, low


def _apply_scales(block: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Codes uint8 [..., 8, 32] to values float32 [..., 256]."""
    scale, low = unpack_scales(block["scales"])
    values = codes.astype(np.float32)
    values *= (widen(block["d"]) * scale)[..., None]
    values -= (widen(block["dmin"]) * low)[..., None]
    return values.reshape(*block.shape, 256)


def _nibbles(block: np.ndarray) -> np.ndarray:
    """Fields [...] to the low four bits of each code, uint8 [..., 8, 32]."""
    return planes(block["q"].reshape(*block.shape, 4, 32), 4).reshape(*block.shape, 8, 32)


def decode_4(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_4)
    return _apply_scales(block, _nibbles(block))


def decode_5(blocks: np.ndarray) -> np.ndarray:
    block = fields(blocks, LAYOUT_5)
    return _apply_scales(block, _nibbles(block) | planes(block["high"], 1) << np.uint8(4))


def pack_scales(scale: np.ndarray, low: np.ndarray) -> np.ndarray:
    """The inverse of `unpack_scales`: two uint8 [..., 8] to bytes [..., 12]."""
    first = scale[..., :4] | scale[..., 4:] >> 4 << 6
    second = low[..., :4] | low[..., 4:] >> 4 << 6
    nibbles = scale[..., 4:] & 15 | low[..., 4:] << 4
    return np.concatenate([first, second, nibbles], axis=-1)


def _six_bits(wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps [..., 8] as (float16 unit [...], whole multiples uint8 0..63, what the two make together)."""
    unit = (wanted.max(axis=-1, keepdims=True) / np.float32(63)).astype(np.float16)
    multiples = nearest(wanted * reciprocal(unit.astype(np.float32)), 0, 63)
    return unit[..., 0], multiples.astype(np.uint8), unit.astype(np.float32) * multiples


def _fit(values: np.ndarray, top: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Values [..., 256] to codes 0..top uint8 [..., 8, 32] and the scale fields."""
    groups = values.reshape(*values.shape[:-1], 8, 32)
    dmin, low, lowest = _six_bits(np.maximum(-groups.min(axis=-1), 0))
    d, scale, step = _six_bits(np.maximum(groups.max(axis=-1) + lowest, 0) / np.float32(top))
    codes = nearest((groups + lowest[..., None]) * reciprocal(step)[..., None], 0, top).astype(np.uint8)
    return codes, {"d": d, "dmin": dmin, "scales": pack_scales(scale, low)}


def _pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """The inverse of `_nibbles`: uint8 [..., 8, 32] to bytes [..., 128]."""
    shape = codes.shape[:-2]
    return pack_planes(codes.reshape(*shape, 4, 2, 32), 4).reshape(*shape, 128)


def encode_4(values: np.ndarray) -> np.ndarray:
    codes, scales = _fit(values, 15)
    return store(LAYOUT_4, values.shape[:-1], q=_pack_nibbles(codes), **scales)


def encode_5(values: np.ndarray) -> np.ndarray:
    codes, scales = _fit(values, 31)
    high = pack_planes(codes >> np.uint8(4), 1)
    return store(LAYOUT_5, values.shape[:-1], q=_pack_nibbles(codes & np.uint8(15)), high=high, **scales)


Q4_K = Format("Q4_K", 256, LAYOUT_4.itemsize, decode_4, encode_4)
Q5_K = Format("Q5_K", 256, LAYOUT_5.itemsize, decode_5, encode_5)
