"""Lookup without weights: what followed the longest earlier occurrence of the text's end is likely to follow again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turbospark.draft.base import Drafter, Draw
from turbospark.kernels.rows import Rows

LEAST = 2  # tokens that must match; one alone is seen again too soon


class Text:
    """Token ids that grow at the end."""

    def __init__(self, ids: Sequence[int] = ()):
        self._ids = np.asarray([*ids], np.int64)
        self.length = len(self._ids)

    def put(self, position: int, ids: np.ndarray) -> None:
        """The ids from `position` on, which is no later than the end; what stood after them is forgotten."""
        if position > self.length:
            raise RuntimeError(f"ids from {position} on observed, the text ends at {self.length}")
        end = position + len(ids)
        if end > len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(max(end, 64), np.int64)])
        self._ids[position:end] = ids
        self.length = max(end, self.length)

    def upto(self, length: int) -> np.ndarray:
        """A view of the first ids."""
        return self._ids[:length]


class NGram(Drafter):
    """Each slot's own prompt and output, searched backwards. `block` bounds a round's rows."""

    name = "ngram"

    def __init__(self, slots: int, block: int = 16, least: int = LEAST):
        self._block, self._least = block, least
        self._texts = [Text() for _ in range(slots)]

    @property
    def longest(self) -> int:
        return self._block - 1

    def admit(self, slot: int, prompt: Sequence[int], source: int | None, reused: int) -> None:
        self._texts[slot] = Text(prompt)

    def observe(self, rows: Rows, states: Mapping[Any, Any]) -> None:
        for span in rows.spans:
            self._texts[span.slot].put(int(rows.positions[span.start]), rows.ids[span.start : span.stop])

    def propose(self, anchors: Rows, counts: Sequence[int], draw: Draw) -> list[list[int]]:
        proposals = []
        for slot, position, anchor, count in zip(
            anchors.slots.tolist(), anchors.positions.tolist(), anchors.ids, counts, strict=True
        ):
            text = self._texts[slot]
            text.put(position, np.array([anchor]))
            proposals.append(continuation(text.upto(position + 1), count, self._least))
        return proposals


def continuation(text: np.ndarray, count: int, least: int = LEAST) -> list[int]:
    """`count` ids after the latest of the earlier places that agree with the most tokens of the text's end.

    None where fewer than `least` tokens agree. A match that runs into the end of the text goes on periodically.
    """
    end = len(text) - 1
    places, agreed, best = np.flatnonzero(text[:end] == text[end]), 0, 0
    while len(places):
        best, agreed = int(places[-1]), agreed + 1
        places = places[places >= agreed]
        places = places[text[places - agreed] == text[end - agreed]]
    if agreed < least:
        return []
    period = end - best
    return [int(text[best + 1 + i % period]) for i in range(count)]
