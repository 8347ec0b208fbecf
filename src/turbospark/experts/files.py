"""Views into mapped files, seen as the bytes of a file that they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from turbospark.experts.reader import PAGE, Read, Reader
from turbospark.quant.tensor import QTensor

PIECE = 4 << 20  # bytes of a read of a large tensor
ROLES = ("data", "scales", "biases")


class File(Protocol):
    """What is needed of a mapped file."""

    path: Path
    size: int
    data: np.ndarray

    @property
    def descriptor(self) -> int: ...

    def check_unchanged(self) -> None: ...


@dataclass(frozen=True)
class Extent:
    """Whole pages of a file: `nbytes` from `offset`, of which the first `needed` count.

    names: where the tensors in it end, and what they are called.
    """

    file: File
    offset: int
    needed: int
    names: tuple[tuple[int, str], ...]

    @property
    def nbytes(self) -> int:
        return -(-self.needed // PAGE) * PAGE

    def what(self, start: int, stop: int) -> str:
        """The tensors in a range of its bytes, three at most."""
        found = [
            name
            for (end, name), before in zip(self.names, (0, *(e for e, _ in self.names)), strict=False)
            if before < stop and start < end
        ]
        return ", ".join(dict.fromkeys(found[:3]))

    def reads(self, memory: np.ndarray) -> list[Read]:
        """The reads that bring it to memory uint8 [nbytes], which begins at a page."""
        return [
            Read(
                *(self.file, self.offset + at, memory[at : at + PIECE], min(PIECE, self.needed - at)),
                self.what(at, at + PIECE),
            )
            for at in range(0, self.nbytes, PIECE)
        ]


class Files:
    """The mapped files of a model, by address."""

    def __init__(self, files: Iterable[File]):
        self._files = sorted(files, key=lambda file: address(file.data))
        self._starts = [address(file.data) for file in self._files]

    def place(self, array: np.ndarray) -> tuple[int, int] | None:
        """The number of the file an array is a view into, and at which byte; None for memory of its own."""
        if not array.flags.c_contiguous:
            return None
        at = bisect_right(self._starts, address(array)) - 1
        offset = address(array) - self._starts[at] if at >= 0 else 0
        inside = at >= 0 and offset + array.nbytes <= self._files[at].size
        return (at, offset) if inside else None

    def extents(self, tensors: Sequence[QTensor]) -> tuple[list[Extent], dict[tuple[int, str], tuple[int, int]]]:
        """The pages that hold some tensors; and by (number of the tensor, role) the extent and the byte in it.

        What lies in the same or in neighbouring pages is one extent. Arrays with memory of their own are left out.
        """
        found = []
        for i, tensor in enumerate(tensors):
            for role in ROLES:
                array = getattr(tensor, role)
                place = None if array is None else self.place(array)
                if place is not None:
                    found.append((*place, array.nbytes, i, role))
        found.sort()
        extents: list[Extent] = []
        where: dict[tuple[int, str], tuple[int, int]] = {}
        for number, offset, nbytes, i, role in found:
            file, first, stop = self._files[number], offset // PAGE * PAGE, offset + nbytes
            last = extents[-1] if extents else None
            if last is not None and last.file is file and first <= last.offset + last.nbytes:
                needed = max(last.needed, stop - last.offset)
                named = last.names[:-1] if last.names[-1][1] == tensors[i].name else last.names
                extents[-1] = replace(last, needed=needed, names=(*named, (needed, tensors[i].name)))
            else:
                extents.append(Extent(file, first, stop - first, ((stop - first, tensors[i].name),)))
            where[i, role] = len(extents) - 1, offset - extents[-1].offset
        return extents, where

    def copied(self, tensors: Sequence[QTensor], reader: Reader) -> list[QTensor]:
        """The tensors in memory of their own, read now. Raises what reading raises."""
        extents, where = self.extents(tensors)
        memories = [pages(extent.nbytes) for extent in extents]
        job = reader.submit([r for extent, memory in zip(extents, memories, strict=True) for r in extent.reads(memory)])
        reader.wait([job])
        if job.error is not None:
            raise job.error
        return moved(tensors, memories, where)


def moved(
    tensors: Sequence[QTensor], memories: Sequence[np.ndarray], where: dict[tuple[int, str], tuple[int, int]]
) -> list[QTensor]:
    """The tensors over memory that their extents were read to."""
    out = []
    for i, tensor in enumerate(tensors):
        changed = {}
        for role in ROLES:
            if (i, role) in where:
                array, (extent, at) = getattr(tensor, role), where[i, role]
                data = memories[extent][at : at + array.nbytes]
                changed[role] = data.view(array.dtype).reshape(array.shape)
        out.append(replace(tensor, **changed))
    return out


def pages(nbytes: int) -> np.ndarray:
    """uint8 [nbytes] that begins at a page; nothing is touched yet."""
    memory = np.empty(nbytes + PAGE, np.uint8)
    return memory[-address(memory) % PAGE :][:nbytes]


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
