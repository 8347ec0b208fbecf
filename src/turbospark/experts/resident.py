"""Experts that stay where they are, and models that are read into memory whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turbospark.experts.base import Expert, ExpertStore, Parts, Residency
from turbospark.experts.files import File, Files
from turbospark.experts.reader import Reader
from turbospark.kernels.api import Kernels
from turbospark.quant.tensor import QTensor


class Resident(ExpertStore):
    """Experts at fixed addresses, in memory or in a mapped file."""

    def __init__(self, parts: list[Expert]):
        self._parts = parts

    def expert(self, index: int) -> Expert:
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)


def in_place(parts: Sequence[Parts], kernels: Kernels) -> Resident:
    weight = kernels.weight
    return Resident([(weight(gate), weight(up), weight(down)) for gate, up, down in parts])


class InMemory(Residency):
    """Everything is read when the model is built; the files play no part afterwards."""

    name = "resident"

    def __init__(self, files: Iterable[File], reader: Reader):
        super().__init__()
        self._files, self._reader = Files(files), reader

    def beside(self, files: Iterable[File]) -> Residency:
        return InMemory(files, self._reader)

    def core(self, tensor: QTensor) -> QTensor:
        return self._files.copied([tensor], self._reader)[0]

    def experts(self, parts: Sequence[Parts], kernels: Kernels) -> ExpertStore:
        read = self._files.copied([part for expert in parts for part in expert], self._reader)
        return in_place(list(zip(read[::3], read[1::3], read[2::3], strict=True)), kernels)
