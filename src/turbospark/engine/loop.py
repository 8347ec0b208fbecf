"""The engine: one step is plan, draft, forward, accept, settle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospark.cache.session import Session
from turbospark.draft.base import Drafter, Policy
from turbospark.engine.accept import accept
from turbospark.engine.finish import finish
from turbospark.engine.params import SamplingParams
from turbospark.engine.request import Pieces, Request, Update
from turbospark.engine.sampler import Drawn
from turbospark.engine.scheduler import Scheduler, Work
from turbospark.engine.speculation import Speculation
from turbospark.errors import TurbosparkError
from turbospark.kernels.rows import Rows
from turbospark.models.base import Forward, Model

NO_TEXT: Pieces = lambda token: b""


class Engine:
    """Runs any number of requests together over one model. It knows token ids; text is the caller's.

    slots: requests that run at once. chunk: prompt rows a step feeds at most. policy: how many tokens the drafter
    proposes for requests that leave it open.
    """

    def __init__(
        self,
        model: Model,
        slots: int = 4,
        chunk: int = 256,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
    ):
        self.model, self.drafter, self.max_context = model, drafter, model.max_context
        self.session = Session(model.caches(slots, chunk), slots, model.max_context)
        self.speculation = Speculation(drafter, policy, model.max_context, model.kernels.stack, chunk)
        self.scheduler = Scheduler(self.session, chunk, self.speculation.admit)

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        pieces: Pieces = NO_TEXT,
        end_ids: Sequence[int] = (),
    ) -> Request:
        """Queues a prompt of at least one id, under resolved parameters."""
        vocab = self.model.config.vocab
        check_ids(prompt, vocab, self.max_context)
        request = Request(prompt, params, vocab, pieces, end_ids)
        if request.room(self.max_context) <= 0:
            request.close("length")
        else:
            self.scheduler.waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """Ends a request now; its slot is free for the next step."""
        if not request.done:
            request.close("cancelled")
            self.scheduler.release(request)

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def step(self) -> list[Update]:
        """One forward over everything that can run; returns what each request gained."""
        plan = self.scheduler.plan()
        if not plan:
            return []
        traffic = self.model.residency.traffic
        before = traffic.copy()
        try:
            self.speculation.draft(plan)
            rows = self.scheduler.rows(plan)
            forward = self._forward(rows)
            blocks = self._accept(plan, rows, forward)
            self.speculation.verified()
            updates, kept = self._settle(plan, rows, blocks)
            self.speculation.settled(plan, kept, rows, forward)
            spent = traffic.since(before)
            for work in plan:
                work.request.stats.experts.add(spent)
            return updates
        except BaseException as error:
            self._abandon(plan, error)
            raise

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [T, vocab] at every position of a prompt, through the same forward and caches as generation."""
        check_ids(ids, self.model.config.vocab, self.max_context)
        slot = self.scheduler.borrow()
        if slot is None:
            raise TurbosparkError("no_slot", f"all {len(self.session.cursors)} slots are in use; logits needs one")
        try:
            parts = []
            for start in range(0, len(ids), self.scheduler.chunk):
                piece = list(ids[start : start + self.scheduler.chunk])
                rows = Rows.of([(slot, start, piece, len(piece))])
                self.session.begin(rows)
                hidden = self.model(rows, self.session.layers).hidden
                parts.append(self.model.kernels.to_numpy(self.model.logits(hidden)))
                self.session.commit(slot, len(piece))
            return np.concatenate(parts)
        finally:
            self.scheduler.give_back(slot)

    def _forward(self, rows: Rows) -> Forward:
        self.session.begin(rows)
        return self.model(rows, self.session.layers, self.speculation.taps)

    def _abandon(self, plan: list[Work], error: BaseException) -> None:
        """Ends the requests of a step that broke off: rows may lie in some of the layers, and none is committed."""
        for work in plan:
            if not work.request.done:
                work.request.close("error", error if isinstance(error, TurbosparkError) else None)
                self.scheduler.release(work.request, broken=True)

    def _accept(self, plan: list[Work], rows: Rows, forward: Forward) -> list[list[Drawn] | TurbosparkError]:
        """What the target draws for each work: nothing inside a prompt, else a token a row until one differs."""
        wanted = [
            list(range(s.start + len(w.ids) - 1, s.stop)) if w.draws else []
            for w, s in zip(plan, rows.spans, strict=True)
        ]
        index = np.concatenate([np.asarray(w, np.int64) for w in wanted])
        logits = self.model.kernels.to_numpy(self.model.logits(forward.hidden[index])) if len(index) else None
        blocks: list[list[Drawn] | TurbosparkError] = []
        start = 0
        for work, picked in zip(plan, wanted, strict=True):
            block: list[Drawn] | TurbosparkError = []
            if picked and logits is not None:
                request = work.request
                try:
                    block = accept(
                        logits[start : start + len(picked)],
                        work.proposals,
                        request.sampler,
                        len(request.context),
                    )
                except TurbosparkError as error:
                    block = error
                start += len(picked)
            blocks.append(block)
        return blocks

    def _settle(
        self, plan: list[Work], rows: Rows, blocks: Sequence[list[Drawn] | TurbosparkError]
    ) -> tuple[list[Update], list[range]]:
        """Cuts each block where its request ends, commits the rows behind the kept tokens, frees what is over."""
        updates = []
        kept: list[range] = []
        for work, span, block in zip(plan, rows.spans, blocks, strict=True):
            request = work.request
            if isinstance(block, TurbosparkError):
                self.scheduler.release(request, broken=True)
                updates.append(request.close("error", block))
                continue
            if not work.draws:
                kept.append(range(span.start, span.stop))
                self.scheduler.fed(work, len(work.ids))
                continue
            tokens = [d.token for d in block]
            pieces = [request.pieces(t) for t in tokens]
            room = request.room(self.max_context)
            cut = finish(tokens, pieces, request.tail, room, request.end_ids, request.stop_ids, request.params.stops)
            # the last kept token was drawn, not fed: its row belongs to the next step
            kept.append(range(span.start, span.start + len(work.ids) + cut.count - 1))
            self.scheduler.fed(work, len(kept[-1]))
            work.accepted = cut.count - 1
            updates.append(request.take(block, cut))
            if request.done:
                self.scheduler.release(request)
        return updates, kept


def check_ids(ids: Sequence[int], vocab: int, max_context: int) -> None:
    """Refuses an empty prompt, ids outside the vocabulary and prompts longer than the context."""
    if len(ids) == 0:
        raise TurbosparkError("empty_prompt", "the prompt has no tokens; at least one is needed")
    if len(ids) > max_context:
        raise TurbosparkError(
            "context_length_exceeded",
            f"the prompt has {len(ids)} tokens, the context holds {max_context}",
            "shorten the prompt, or load the model with a larger max_context",
        )
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab:
        raise TurbosparkError(
            "token_out_of_range", f"token id {low if low < 0 else high} is outside a vocabulary of {vocab}"
        )
