"""Where the weights of a model are held, and how a layer gets at its routed experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from turbospark.experts.traffic import Traffic
from turbospark.kernels.api import Kernels
from turbospark.quant.tensor import QTensor

Parts = tuple[QTensor, QTensor, QTensor]  # gate, up and down of an expert, as stored
Expert = tuple[Any, Any, Any]  # the same as the backend's weights


class ExpertStore(ABC):
    """The routed experts of one layer. All residencies give bit-equal outputs.

    A layer calls `request` with what it routed to, does other work, and then takes `arrivals`.
    """

    # x [R, H], the stream before this layer -> the experts [R, used] that it will probably route to
    guess: Callable[[Any], np.ndarray] | None = None

    @abstractmethod
    def expert(self, index: int) -> Expert:
        """Gate, up and down of one expert as the backend's weights."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int]:
        """Width and hidden of an expert."""
        return self.expert(0)[0].shape

    def request(self, ids: np.ndarray) -> None:
        """Begins to read what is not there of ids int [R, used]."""
        return

    def look_ahead(self, x: Any) -> None:
        """The layer's stream x [R, H] is known: the experts of the next layer may be guessed, and read ahead."""
        return

    def arrivals(self, ids: np.ndarray) -> Iterator[dict[int, Expert]]:
        """The distinct experts of ids, in groups as they come; a group may be used until the next is asked for."""
        yield {e: self.expert(e) for e in dict.fromkeys(ids.ravel().tolist())}


class Residency(ABC):
    """How the weights of one model are held."""

    name: str

    def __init__(self) -> None:
        self.traffic = Traffic()

    @abstractmethod
    def core(self, tensor: QTensor) -> QTensor:
        """A tensor outside the routed experts, where it stays."""

    @abstractmethod
    def experts(self, parts: Sequence[Parts], kernels: Kernels) -> ExpertStore:
        """The experts of the next layer that has some, from views into the model's files."""

    @abstractmethod
    def beside(self, files: Iterable[Any]) -> Residency:
        """How a drafter's weights are held, from mapped files: in memory where the trunk's are."""

    def begin(self, rows: int) -> None:
        """A forward of so many rows begins. Raises `file_changed` where weights are read in place."""
        return
