"""A tensor in the format it is stored in: bytes and a format tag, never expanded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Format:
    """One block format: `block` values of a row become `nbytes` bytes.

    decode: uint8 [..., blocks, nbytes] -> float32 [..., blocks, block]; encode is its inverse up to rounding.
    """

    name: str
    block: int
    nbytes: int
    decode: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[np.ndarray], np.ndarray] | None = None

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values; `columns` must be a multiple of the block."""
        return columns // self.block * self.nbytes


@dataclass(frozen=True)
class QTensor:
    """`shape` is logical and row-major: a matrix is [out, in], stacked experts are [experts, out, in].

    data: uint8 [*shape[:-1], bytes of a row], usually a read-only view into a mapped file.
    scales, biases: companions of formats that keep them apart (affine: float32-convertible [out, in/group];
    block FP8: float32 [ceil(out/128), ceil(in/128)]), else None.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: np.ndarray
    scales: np.ndarray | None = None
    biases: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        parts = (self.data, self.scales, self.biases)
        return sum(int(part.nbytes) for part in parts if part is not None)

    def __getitem__(self, index: int | slice) -> QTensor:
        """One entry or a range along the first axis, as a view; a matrix with scales apart is not cut."""
        if isinstance(index, slice) and self.scales is not None and len(self.shape) == 2:
            raise IndexError(f"{self.name}: rows of a {self.format} matrix cannot be cut without its scales")
        data = self.data[index]
        shape = (*data.shape[:-1], self.shape[-1])
        pick = lambda part: None if part is None else part[index]  # noqa: E731
        return replace(self, shape=shape, data=data, scales=pick(self.scales), biases=pick(self.biases))
