"""The ragged batch: one row is one token of one sequence at one position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Span:
    """Rows start..stop belong to one slot, at consecutive positions.

    `certain`: how many leading rows will be kept whatever is accepted (a prompt's all, a verify block's first).
    """

    slot: int
    start: int
    stop: int
    certain: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Rows:
    """ids, positions and slots, int64 [R] each, and the row range of each sequence."""

    ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    spans: tuple[Span, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of(parts: Iterable[tuple[int, int, Sequence[int], int]]) -> Rows:
        """From (slot, first position, ids, certain) of each sequence."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        for slot, first, tokens, certain in parts:
            spans.append(Span(slot, len(ids), len(ids) + len(tokens), certain))
            ids.extend(tokens)
            positions.extend(range(first, first + len(tokens)))
            slots.extend([slot] * len(tokens))
        as_array = lambda values: np.asarray(values, np.int64)
        return Rows(as_array(ids), as_array(positions), as_array(slots), tuple(spans))

    def keep(self, ranges: Sequence[range]) -> Rows:
        """The rows of the given ranges, each within one span, as certain ones."""
        picked, spans, at = selection(ranges), [], 0
        for r in ranges:
            spans.append(Span(int(self.slots[r.start]), at, at + len(r), len(r)))
            at += len(r)
        return Rows(self.ids[picked], self.positions[picked], self.slots[picked], tuple(spans))


def selection(ranges: Sequence[range]) -> slice | np.ndarray:
    """What picks the rows of these ranges from an array: where they lie behind each other a slice, so no copy."""
    if all(a.stop == b.start for a, b in pairwise(ranges)):
        return slice(ranges[0].start, ranges[-1].stop) if ranges else slice(0)
    return np.concatenate([np.arange(r.start, r.stop) for r in ranges])
