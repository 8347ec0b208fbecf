"""A drafter only reads: what the target has committed goes in, guesses at its next tokens come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turbospark.kernels.rows import Rows

Draw = Callable[[int, int, Any, Any], int]  # (slot, position, candidate ids, scores) -> the id the target's noise picks


class Drafter(ABC):
    """Owns its own caches and never touches the trunk's. A slot is the session's."""

    name: str
    taps: Sequence[int] = ()  # zero-based trunk layers whose outputs it wants

    @abstractmethod
    def admit(self, slot: int, prompt: Sequence[int], source: int | None, reused: int) -> None:
        """A new sequence in the slot. Its first `reused` rows came from slot `source` and will not be observed."""

    @abstractmethod
    def observe(self, rows: Rows, states: Mapping[Any, Any]) -> None:
        """Rows that were just committed, and the target's states there: by layer [R, H], and "final" [R, H].

        Every committed row of a slot is observed once, in order. Raises RuntimeError when one was left out.
        """

    @abstractmethod
    def propose(self, anchors: Rows, counts: Sequence[int], draw: Draw) -> list[list[int]]:
        """At most counts[i] proposals to follow anchor row i (the last drawn token, not yet fed)."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Proposals it can make in a round."""

    @property
    def trained(self) -> int:
        """Proposals it was made to make; more are served, and likely to be worse."""
        return self.longest


class Policy(ABC):
    """Decides how many tokens are proposed. It has no clock: what it knows it is told, so that it can be simulated."""

    @abstractmethod
    def admit(self, slot: int) -> None:
        """A new sequence in the slot."""

    @abstractmethod
    def choose(self, slots: Sequence[int], most: Sequence[int], others: int = 0) -> list[int]:
        """Proposals to ask for in the next round for each of the slots that decode, at most most[i].

        others: rows in the same forward that this does not decide on.
        """

    @abstractmethod
    def learn(
        self,
        slots: Sequence[int],
        asked: Sequence[int],
        proposed: Sequence[int],
        accepted: Sequence[int],
        draft_s: float,
        verify_s: float,
        others: int = 0,
    ) -> None:
        """What came of a round: the proposals asked for, made and kept of each slot, and its seconds.

        verify_s is all of the round that is not drafting, the commit and the reading of states included.
        """
