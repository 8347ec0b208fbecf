"""Weights read in place: the system brings pages in as they are touched, and takes them away as it likes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turbospark.experts.base import ExpertStore, Parts, Residency
from turbospark.experts.files import File
from turbospark.experts.resident import in_place
from turbospark.kernels.api import Kernels
from turbospark.quant.tensor import QTensor


class Mapped(Residency):
    """Size and time of change of the files are looked at before each forward.

    A file that is cut during one still ends the process when a page behind its new end is touched.
    """

    name = "mapped"

    def __init__(self, files: Iterable[File] = ()):
        super().__init__()
        self._files = tuple(files)

    def core(self, tensor: QTensor) -> QTensor:
        return tensor

    def experts(self, parts: Sequence[Parts], kernels: Kernels) -> ExpertStore:
        return in_place(parts, kernels)

    def beside(self, files: Iterable[File]) -> Residency:
        return Mapped(files)

    def begin(self, rows: int) -> None:
        for file in self._files:
            file.check_unchanged()
