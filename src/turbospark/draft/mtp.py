"""The MTP drafter: a model's own head for the token after the next, used again on what it says itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turbospark.draft.base import Drafter, Draw
from turbospark.draft.mtp_model import MTPModel
from turbospark.kernels.rows import Rows

PENDING = 16  # observed rows that may wait for the next proposal, which takes them along


@dataclass
class Head:
    """A slot's rows: `length` of them are in the head's cache; row i is made of the state at i and the token at i + 1.

    hidden [n, H] and ids: the target's states at positions length .. length + n - 1 and the tokens there, which wait
    for the token that follows. lost: rows of the beginning were never seen, so nothing can be proposed.
    """

    length: int = 0
    hidden: Any = None
    ids: list[int] = field(default_factory=list)
    lost: bool = False

    @property
    def end(self) -> int:
        return self.length + len(self.ids)


class MTP(Drafter):
    """One layer's cache for each slot, filled from position 0 on; `block` bounds a round's rows."""

    name = "mtp"

    def __init__(self, model: MTPModel, slots: int, chunk: int, block: int = 16):
        self.model, self._block = model, block
        self.cache = model.cache(slots, chunk)
        self.heads = [Head() for _ in range(slots)]
        self._everything = np.arange(model.config.vocab)

    @property
    def longest(self) -> int:
        return self._block - 1

    def admit(self, slot: int, prompt: Sequence[int], source: int | None, reused: int) -> None:
        """Rows that the source has are kept. Where its text went on with another token, the last kept one keeps the
        trace of that: the state that would make it anew is gone."""
        old = Head() if source is None else self.heads[source]
        if source is None or not reused:
            self.heads[slot] = Head(lost=reused > 0)
            return
        kept, waiting = min(old.length, reused), max(0, reused - old.length)
        if source != slot and kept:
            self.cache.restore(slot, source, kept, None)
        hidden = old.hidden[:waiting] if waiting and old.end >= reused else None
        self.heads[slot] = Head(kept, hidden, old.ids[:waiting], old.lost or old.end < reused)

    def observe(self, rows: Rows, states: Mapping[Any, Any]) -> None:
        full = []
        for span in rows.spans:
            head, first = self.heads[span.slot], int(rows.positions[span.start])
            if head.lost:
                continue
            if first != head.end:
                raise RuntimeError(f"slot {span.slot}: rows from {first} observed, the head stands at {head.end}")
            seen = states["final"][span.start : span.stop]
            head.hidden = seen if head.hidden is None else self.model.kernels.stack([head.hidden, seen])
            head.ids += rows.ids[span.start : span.stop].tolist()
            if len(head.ids) > PENDING:
                full.append(span.slot)
        if full:
            self._feed([(slot, self.heads[slot].ids[1:]) for slot in full])

    def propose(self, anchors: Rows, counts: Sequence[int], draw: Draw) -> list[list[int]]:
        proposals: list[list[int]] = [[] for _ in counts]
        ends = dict(zip(anchors.slots.tolist(), anchors.positions.tolist(), strict=True))
        able = [
            (i, slot, int(anchors.ids[i]))
            for i, (slot, end) in enumerate(ends.items())
            if counts[i] > 0 and self._ready(slot, end)
        ]
        if not able:
            return proposals
        state = self._feed([(slot, [*self.heads[slot].ids[1:], anchor]) for _, slot, anchor in able])
        while True:
            for (i, slot, _), row in zip(able, self.model.logits(state), strict=True):
                proposals[i].append(draw(slot, ends[slot] + 1 + len(proposals[i]), self._everything, row))
            going = [n for n, (i, _, _) in enumerate(able) if len(proposals[i]) < counts[i]]
            if not going:
                return proposals
            able, state = [able[n] for n in going], state[going]
            # rows made of the head's own states; those of the target take their places when they come
            rows = Rows.of((slot, ends[slot] + len(proposals[i]) - 1, proposals[i][-1:], 1) for i, slot, _ in able)
            state = self.model(rows.ids, state, rows, self.cache)

    def _ready(self, slot: int, position: int) -> bool:
        """Whether the state before the anchor is there; a prompt of one token has none yet."""
        head = self.heads[slot]
        if not head.lost and head.end != position:
            raise RuntimeError(f"slot {slot}: an anchor at {position}, the head stands at {head.end}")
        return not head.lost and bool(head.ids)

    def _feed(self, parts: Sequence[tuple[int, list[int]]]) -> Any:
        """Puts (slot, tokens that follow its waiting rows) into the cache; the state [parts, H] of each last row."""
        rows = Rows.of((slot, self.heads[slot].length, ids, len(ids)) for slot, ids in parts)
        waiting = [self.heads[slot].hidden[: len(ids)] for slot, ids in parts]
        state = self.model(rows.ids, self.model.kernels.stack(waiting), rows, self.cache)
        for slot, ids in parts:
            head, n = self.heads[slot], len(ids)
            rest = head.hidden[n:] if len(head.ids) > n else None
            self.heads[slot] = Head(head.length + n, rest, head.ids[n:])
        return state[[span.stop - 1 for span in rows.spans]]
