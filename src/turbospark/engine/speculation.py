"""The drafter's part of a step: who proposes how many, what came of it, and the seconds it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from turbospark.cache.session import Prefix
from turbospark.draft.base import Drafter, Policy
from turbospark.engine.request import Request
from turbospark.engine.sampler import draw_from
from turbospark.engine.scheduler import Work
from turbospark.kernels.rows import Rows
from turbospark.models.base import Forward
from turbospark.models.caches import MAX_BLOCK

WAITING = 64  # committed rows that a drafter may learn of later


class Speculation:
    """Called around each forward in the order of its methods. Without a drafter it does nothing.

    Committed rows wait for the drafter's next proposals: told of many at once, it hardly slows a target that decodes
    plainly.

    policy: how many to propose for requests that leave it open; without one, as many as the drafter was made for.
    stack: puts states [R, H] below each other. chunk: rows of a sequence in one forward, and told of at once.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        policy: Policy | None,
        max_context: int,
        stack: Callable[[Sequence[Any]], Any] = np.concatenate,
        chunk: int = WAITING,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.drafter, self.policy, self.max_context, self._clock = drafter, policy, max_context, clock
        self._stack, self._most_waiting = stack, min(WAITING, chunk)
        self._laps = [0.0]
        self._asked: dict[int, int] = {}
        self._untold: list[tuple[Rows, Sequence[range], Forward]] = []
        self._waiting = 0  # rows of these, given up ones included

    @property
    def taps(self) -> Sequence[int]:
        return self.drafter.taps if self.drafter else ()

    def admit(self, request: Request, prefix: Prefix | None) -> None:
        """The request has got its slot, and in it the beginning of its prompt if there is a prefix."""
        if self.drafter is None or request.slot is None:
            return
        self.tell()
        source, reused = (None, 0) if prefix is None else (prefix.slot, prefix.length)
        self.drafter.admit(request.slot, request.context, source, reused)
        if self.policy is not None:
            self.policy.admit(request.slot)

    def draft(self, plan: Sequence[Work]) -> None:
        """Adds proposals to the decoding requests that want them."""
        if self.drafter is None:
            return
        self._laps = [self._clock()]
        self._asked = self._counts([w for w in plan if w.draws and len(w.ids) == 1])
        able = [w for w in plan if self._asked.get(w.slot, 0) > 0]
        if able:
            self.tell()
            anchors = Rows.of((w.slot, w.request.fed, w.ids, 1) for w in able)
            params: dict[int, Any] = {w.slot: w.request.params for w in able}

            def draw(slot: int, position: int, ids: Any, scores: Any) -> int:
                return draw_from(ids, scores, params[slot].temperature, params[slot].seed, position)

            counts = [self._asked[w.slot] for w in able]
            for work, count, proposals in zip(able, counts, self.drafter.propose(anchors, counts, draw), strict=True):
                work.proposals = list(proposals[:count])
        self._lap()

    def verified(self) -> None:
        """The target has drawn its tokens."""
        self._lap()

    def settled(self, plan: Sequence[Work], kept: Sequence[range], rows: Rows, forward: Forward) -> None:
        """The kept rows are committed: the drafter will see them and the target's states there."""
        if self.drafter is None:
            return
        self._lap()
        if kept:
            if self._waiting + len(rows) > self._most_waiting:
                self.tell()
            self._untold.append((rows, kept, forward))
            self._waiting += len(rows)
        self._lap()
        self._account(plan)

    def tell(self) -> None:
        """The drafter sees the committed rows that wait, each slot's together."""
        if not self._untold or self.drafter is None:
            return
        pieces: dict[int, list[tuple[Rows, range, Forward]]] = {}
        for rows, kept, forward in self._untold:
            for r in kept:
                pieces.setdefault(int(rows.slots[r.start]), []).append((rows, r, forward))
        self._untold, self._waiting = [], 0
        parts = []
        for slot, own in pieces.items():
            ids = [i for rows, r, _ in own for i in rows.ids[r.start : r.stop].tolist()]
            parts.append((slot, int(own[0][0].positions[own[0][1].start]), ids, len(ids)))
        order = [(r, forward) for own in pieces.values() for _, r, forward in own]
        states: dict[Any, Any] = {
            layer: self._stacked([forward.taps[layer][r.start : r.stop] for r, forward in order]) for layer in self.taps
        }
        states["final"] = self._stacked([forward.hidden[r.start : r.stop] for r, forward in order])
        self.drafter.observe(Rows.of(parts), states)

    def _stacked(self, pieces: Sequence[Any]) -> Any:
        return pieces[0] if len(pieces) == 1 else self._stack(pieces)

    def _counts(self, decoding: Sequence[Work]) -> dict[int, int]:
        """Proposals to ask for by slot: what is wanted, what a block holds, what is left to produce."""
        counts = {w.slot: self._most(w.request) for w in decoding}
        open_ = [w.slot for w in decoding if self.policy is not None and w.request.params.speculative == "auto"]
        if self.policy is not None and open_:
            others = sum(1 + count for slot, count in counts.items() if slot not in open_)
            chosen = self.policy.choose(open_, [counts[slot] for slot in open_], others)
            counts.update(zip(open_, chosen, strict=True))
        return counts

    def _most(self, request: Request) -> int:
        wanted = request.params.speculative
        longest = 0 if self.drafter is None else self.drafter.trained if wanted == "auto" else self.drafter.longest
        count = 0 if wanted == "off" else longest if wanted == "auto" else int(wanted)
        return max(0, min(count, longest, MAX_BLOCK - 1, request.room(self.max_context) - 1))

    def _lap(self) -> None:
        if self.drafter is not None:
            self._laps.append(self._clock())

    def _account(self, plan: Sequence[Work]) -> None:
        """Times of a step go to the requests that shared it; the policy learns from steps that only decoded."""
        draft, verify, commit, observe = (after - before for before, after in pairwise(self._laps))
        decoding = [w for w in plan if w.slot in self._asked]
        alone, drafted = len(decoding) == len(plan), any(self._asked.values())
        for work in decoding:
            if self._asked[work.slot]:
                work.request.stats.round(len(work.proposals), work.accepted, draft + observe, verify, commit)
            elif alone and not drafted:
                work.request.stats.plain(verify + commit)
        if not alone:
            return
        open_ = [w for w in decoding if w.request.params.speculative == "auto"]
        if self.policy is not None and open_:
            self.policy.learn(
                [w.slot for w in open_],
                [self._asked[w.slot] for w in open_],
                [len(w.proposals) for w in open_],
                [w.accepted for w in open_],
                draft,
                verify + commit + observe,
                sum(w.rows for w in decoding if w not in open_),
            )
