"""What the block formats share: reading the fields of a block, splitting bytes into codes."""

from __future__ import annotations

import numpy as np


def fields(blocks: np.ndarray, layout: np.dtype) -> np.ndarray:
    """See uint8 [..., nbytes] as a structured array [...] whose fields are those of the stored block."""
    if blocks.strides[-1] != 1:
        blocks = np.ascontiguousarray(blocks)
    return blocks.view(layout)[..., 0]


def widen(field: np.ndarray) -> np.ndarray:
    """A stored scale [...] as float32 [..., 1], ready to multiply the values of its block."""
    return field.astype(np.float32)[..., None]


def planes(packed: np.ndarray, width: int) -> np.ndarray:
    """Split bytes [..., n] into codes of `width` bits [..., 8 // width, n]: all lowest codes first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return packed[..., None, :] >> shifts & np.uint8((1 << width) - 1)


def pack_planes(codes: np.ndarray, width: int) -> np.ndarray:
    """The inverse of `planes`: codes uint8 [..., 8 // width, n] to bytes [..., n]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(codes << shifts, axis=-2)


def bits(packed: np.ndarray) -> np.ndarray:
    """Bytes [..., n] to their bits [..., 8 * n], lowest bit of the first byte first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")
