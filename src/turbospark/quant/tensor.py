"""A tensor in the format it is stored in: bytes and a format tag, never expanded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from turbospark.errors import TurbosparkError


@dataclass(frozen=True)
class Companions:
    """How a format uses the scales, and biases, that it keeps apart from its codes.

    parts: the companions of a tensor; refused when missing, or of another shape or type than its shape needs.
    join: codes float32 [..., rows, in], the tensor, and which rows these are, int [rows] -> values, in place.
    split: values float32 [..., out, in] -> (codes float32 of that shape, scales, biases or None).
    """

    parts: Callable[[QTensor], tuple[np.ndarray, ...]]
    join: Callable[[np.ndarray, QTensor, np.ndarray], np.ndarray]
    split: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class Format:
    """One block format: `block` values of a row become `nbytes` bytes.

    decode: uint8 [..., blocks, nbytes] -> float32 [..., blocks, block]; encode is its inverse up to rounding.
    With companions these two turn bytes into codes, and the companions make values of them.
    """

    name: str
    block: int
    nbytes: int
    decode: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[np.ndarray], np.ndarray] | None = None
    companions: Companions | None = None

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values; `columns` must be a multiple of the block."""
        return columns // self.block * self.nbytes


@dataclass(frozen=True)
class QTensor:
    """`shape` is logical and row-major: a matrix is [out, in], stacked experts are [experts, out, in].

    data: uint8 [*shape[:-1], bytes of a row], usually a read-only view into a mapped file.
    scales, biases: companions of formats that keep them apart, else None. Affine: both float [out, in/64].
    FP8: float, or uint8 exponents, [ceil(out/rows), ceil(in/columns)] with scale_block = (rows, columns), or one
    scale []. A stack has its leading axis before these.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: np.ndarray
    scales: np.ndarray | None = None
    biases: np.ndarray | None = None
    scale_block: tuple[int, int] = (128, 128)

    @property
    def nbytes(self) -> int:
        parts = (self.data, self.scales, self.biases)
        return sum(int(part.nbytes) for part in parts if part is not None)

    def __getitem__(self, index: int | slice) -> QTensor:
        """One entry or a range along the first axis, as a view.

        A matrix whose scales serve blocks of rows is cut between blocks only, else `bad_cut`.
        """
        data = self.data[index]
        scales, biases = self._cut(self.scales, index), self._cut(self.biases, index)
        return replace(self, shape=(*data.shape[:-1], self.shape[-1]), data=data, scales=scales, biases=biases)

    def _cut(self, part: np.ndarray | None, index: int | slice) -> np.ndarray | None:
        if part is None or part.ndim == 0:  # one scale for all
            return part
        if len(self.shape) > 2 or len(part) == self.shape[0]:
            return part[index]
        rows = self.scale_block[0]
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step == 1 and start % rows == 0 and (stop % rows == 0 or stop == self.shape[0]):
                return part[start // rows : -(-stop // rows)]
        raise TurbosparkError(
            "bad_cut",
            f"{self.name}: rows {index} of {self.shape[0]} do not end between blocks of {rows} rows",
        )
