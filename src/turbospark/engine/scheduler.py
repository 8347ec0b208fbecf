"""Who runs in the next step: every decoding request, and as much of the prompts as the step has room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from turbospark.cache.session import Prefix, Session
from turbospark.engine.request import Request
from turbospark.kernels.rows import Rows


@dataclass
class Work:
    """The next rows of one request: `ids` from its context, then proposals. Drawn from only when they end it.

    slot: the request's, which it may have left when the step is over. accepted: proposals that became its tokens.
    """

    request: Request
    ids: list[int]
    proposals: list[int] = field(default_factory=list)
    accepted: int = 0
    slot: int = field(init=False)

    def __post_init__(self) -> None:
        if self.request.slot is None:
            raise RuntimeError("a request without a slot cannot be at work")
        self.slot = self.request.slot

    @property
    def draws(self) -> bool:
        return self.request.fed + len(self.ids) == len(self.request.context)

    @property
    def rows(self) -> int:
        return len(self.ids) + len(self.proposals)


class Scheduler:
    """Continuous batching over the session's slots. A prompt is fed in chunks cut at multiples of `chunk`.

    On a trunk that cannot rewind, the last row of a prompt is fed by itself: the state before it is remembered, and
    the same or a diverging prompt can start from there.
    """

    def __init__(self, session: Session, chunk: int, on_admit: Callable[[Request, Prefix | None], None] | None = None):
        self.session, self.chunk, self.on_admit = session, chunk, on_admit
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._idle = list(range(len(session.cursors)))  # least recently used first

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def plan(self) -> list[Work]:
        """The work of the next step; admits waiting requests into idle slots first."""
        while self.waiting and self._idle:
            self._admit(self.waiting.popleft())
        decoding = [Work(r, r.context[r.fed :]) for r in self.running if r.fed == len(r.context) - 1]
        left = self.chunk
        prompts = []
        for request in self.running:
            if request.fed < len(request.context) - 1 and left > 0:
                stop = min(self._cut(request), request.fed + left)
                prompts.append(Work(request, request.context[request.fed : stop]))
                left -= len(prompts[-1].ids)
        return decoding + prompts

    def rows(self, plan: list[Work]) -> Rows:
        """The ragged batch of a plan. A request's own rows are certain, its proposals are not."""
        return Rows.of((w.slot, w.request.fed, w.ids + w.proposals, len(w.ids)) for w in plan)

    def fed(self, work: Work, kept: int) -> None:
        """`kept` rows of the work are committed."""
        self.session.commit(work.slot, kept)
        work.request.fed += kept
        if not self.session.rewinds and work.request.fed == work.request.prompt_length - 1:
            self.session.checkpoint(work.slot)

    def release(self, request: Request, broken: bool = False) -> None:
        """The request is over; its slot keeps its rows for prompts that begin the same, unless they are broken."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self.running.remove(request)
        if request.slot is not None:
            if broken:
                self.session.reset(request.slot)
            self._idle.append(request.slot)
            request.slot = None

    def borrow(self) -> int | None:
        """An idle slot, emptied, for work outside of requests; give it back with `give_back`."""
        if not self._idle:
            return None
        slot = self._idle.pop(0)
        self.session.reset(slot)
        return slot

    def give_back(self, slot: int) -> None:
        self.session.reset(slot)
        self._idle.insert(0, slot)

    def _admit(self, request: Request) -> None:
        prefix = self.session.find(request.context)
        if prefix is not None and prefix.slot in self._idle:
            slot = prefix.slot
        else:
            slot = self._idle[0]
        self._idle.remove(slot)
        if prefix is None:
            self.session.reset(slot)
        else:
            self.session.adopt(slot, prefix)
            request.fed = request.stats.reused_tokens = prefix.length
        request.slot = slot
        self.running.append(request)
        if self.on_admit is not None:
            self.on_admit(request, prefix)

    def _cut(self, request: Request) -> int:
        end = len(request.context)
        stop = min(end, (request.fed // self.chunk + 1) * self.chunk)
        if not self.session.rewinds and request.fed < request.prompt_length - 1 < stop:
            stop = request.prompt_length - 1
        return stop
