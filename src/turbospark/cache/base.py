"""The contract of every cache: append rows, keep some of them, go back to a point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class LayerCache(ABC):
    """One layer's state for every sequence slot. The cursor belongs to the session; a layer holds storage only.

    `append` differs by kind (what a row is) and is called by the layer during the forward. Between two appends to a
    slot there is exactly one `commit` or `restore` of it.
    """

    @abstractmethod
    def commit(self, slot: int, loose: int) -> None:
        """Keeps the first `loose` of the rows appended after the certain ones, forgets the rest."""

    @abstractmethod
    def reaches(self, length: int, committed: int, written: int) -> bool:
        """Whether the state at `length` can be had without a snapshot from a slot with `committed` rows.

        `written` counts the positions ever written, rejected rows included.
        """

    @abstractmethod
    def snapshot(self, slot: int, length: int) -> Any:
        """What `restore` needs beside the slot's rows to go back to `length`, its present end."""

    @abstractmethod
    def restore(self, slot: int, source: int, length: int, snapshot: Any) -> None:
        """Makes slot what `source` was at `length`. snapshot None: `source` still holds that state, see `reaches`."""

    @abstractmethod
    def reset(self, slot: int) -> None:
        """Makes the slot empty."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes when every position of every slot has been used."""
