"""A drafter only reads: what the target has committed goes in, guesses at its next tokens come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turbospark.kernels.rows import Rows

Draw = Callable[[int, int, Any, Any], int]  # (slot, position, candidate ids, scores) -> the id the target's noise picks


class Drafter(ABC):
    """Owns its own caches and never touches the trunk's."""

    taps: Sequence[int] = ()  # zero-based trunk layers whose outputs it wants

    @abstractmethod
    def observe(self, rows: Rows, taps: Mapping[Any, Any]) -> None:
        """The rows of a forward that were committed, and the target's states there: by layer, and "final"."""

    @abstractmethod
    def propose(self, anchors: Rows, count: Sequence[int], draw: Draw) -> list[list[int]]:
        """At most count[i] proposals to follow anchor row i (the last drawn token, not yet fed)."""

    @abstractmethod
    def reset(self, slot: int, length: int = 0) -> None:
        """The slot now holds `length` committed rows of which the drafter has seen nothing."""

    @abstractmethod
    def blocker(self) -> str | None:
        """Why it cannot serve this model, or None."""
