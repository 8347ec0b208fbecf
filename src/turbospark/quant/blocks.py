"""What the block formats share: reading the fields of a block, and splitting bytes into codes."""

from __future__ import annotations

import numpy as np


def fields(blocks: np.ndarray, layout: np.dtype) -> np.ndarray:
    """See uint8 [..., nbytes] as a structured array [...] whose fields are those of the stored block."""
    if blocks.strides[-1] != 1:
        blocks = np.ascontiguousarray(blocks)
    return blocks.view(layout)[..., 0]


def store(layout: np.dtype, shape: tuple[int, ...], **parts: np.ndarray) -> np.ndarray:
    """The inverse of `fields`: named fields [*shape, ...] to bytes uint8 [*shape, nbytes]."""
    block = np.empty(shape, layout)
    for name, part in parts.items():
        block[name] = part
    return block[..., None].view(np.uint8)


def widen(field: np.ndarray) -> np.ndarray:
    """A stored scale [...] as float32 [..., 1], ready to multiply the values of its block."""
    return field.astype(np.float32)[..., None]


def planes(packed: np.ndarray, width: int) -> np.ndarray:
    """Split bytes [..., n] into codes of `width` bits [..., 8 // width, n]: all bytes' lowest codes first."""
    return packed[..., None, :] >> _shifts(width)[:, None] & _mask(width)


def unpack(packed: np.ndarray, width: int) -> np.ndarray:
    """Split bytes [..., n] into codes of `width` bits [..., n * 8 // width]: byte by byte, lowest first."""
    if width == 1:
        return np.unpackbits(packed, axis=-1, bitorder="little")
    codes = np.empty((*packed.shape, 8 // width), dtype=np.uint8)
    for place, shift in enumerate(_shifts(width)):  # a broadcast over so short an axis takes four times as long
        codes[..., place] = packed >> shift & _mask(width)
    return codes.reshape(*packed.shape[:-1], -1)


def pack_planes(codes: np.ndarray, width: int) -> np.ndarray:
    """The inverse of `planes`: codes uint8 [..., 8 // width, n] to bytes [..., n]."""
    return np.bitwise_or.reduce(codes << _shifts(width)[:, None], axis=-2)


def pack(codes: np.ndarray, width: int) -> np.ndarray:
    """The inverse of `unpack`: codes uint8 [..., n * 8 // width] to bytes [..., n]."""
    return np.bitwise_or.reduce(codes.reshape(*codes.shape[:-1], -1, 8 // width) << _shifts(width), axis=-1)


def _shifts(width: int) -> np.ndarray:
    return np.arange(0, 8, width, dtype=np.uint8)


def _mask(width: int) -> np.uint8:
    return np.uint8((1 << width) - 1)
