"""Which committed positions of a slot a drafter holds keys for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turbospark.cache.kv import KVCache
from turbospark.kernels.rows import Rows


@dataclass
class Held:
    """Keys of positions first .. length - 1 are there; `written` counts positions ever written, blocks included."""

    first: int = 0
    length: int = 0
    written: int = 0


class Context:
    """The cursors of a drafter's own caches. Keys before `first` were never made and are never read."""

    def __init__(self, caches: Sequence[KVCache], slots: int):
        self.caches = tuple(caches)
        self.held = [Held() for _ in range(slots)]

    def admit(self, slot: int, source: int | None, reused: int, start: int) -> None:
        """A new sequence whose rows matter from `start` on; keys of the `reused` rows are kept if source has them."""
        old = self.held[source] if source is not None else Held()
        there = reused and source is not None and old.first < reused <= old.length
        if there and all(cache.reaches(reused, old.length, old.written) for cache in self.caches):
            for cache in self.caches:
                cache.restore(slot, source, reused, None)  # type: ignore[arg-type]
            self.held[slot] = Held(old.first, reused, old.written)
        else:
            begin = max(reused, start)
            self.held[slot] = Held(begin, begin, begin)

    def unseen(self, rows: Rows) -> list[range]:
        """The rows that are to be written, as ranges; those before a sequence's start are passed over."""
        found = []
        for span in rows.spans:
            held, first = self.held[span.slot], int(rows.positions[span.start])
            if first > held.length:
                raise RuntimeError(f"slot {span.slot}: rows from {first} observed, the drafter stands at {held.length}")
            if first < held.length and held.length > held.first:
                raise RuntimeError(
                    f"slot {span.slot}: rows from {first} observed again, the drafter stands at {held.length}"
                )
            found.append(range(span.start + min(held.length - first, len(span)), span.stop))
        return [r for r in found if len(r)]

    def advance(self, rows: Rows) -> None:
        """The rows' keys were written."""
        for span in rows.spans:
            held = self.held[span.slot]
            held.length += len(span)
            held.written = max(held.written, held.length)

    def begin_block(self, rows: Rows) -> np.ndarray:
        """A block is about to be written behind the context; returns each span's first readable position, int64."""
        for span in rows.spans:
            held, first = self.held[span.slot], int(rows.positions[span.start])
            if first != held.length:
                raise RuntimeError(f"slot {span.slot}: a block at {first}, the drafter stands at {held.length}")
            held.written = max(held.written, first + len(span))
        return np.array([self.held[span.slot].first for span in rows.spans], np.int64)
