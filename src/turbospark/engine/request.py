"""One request: its tokens so far, what may still come, and what it measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turbospark.engine.finish import Cut
from turbospark.engine.params import SamplingParams
from turbospark.engine.sampler import Drawn, Sampler
from turbospark.errors import TurbosparkError
from turbospark.experts.traffic import Traffic

Pieces = Callable[[int], bytes]
COLLAPSE_ROUNDS, COLLAPSE_RATE = 8, 0.05


@dataclass
class Stats:
    """Times are seconds since the request was submitted, or spans of them.

    rounds: steps in which a drafter was asked; proposed and accepted tokens, by their place in the block as well;
    rollbacks: rounds that did not keep all. draft_s, verify_s and commit_s are sums over the rounds, plain_s over
    plain_steps others; experts: what they cost in the request's steps, prompt included. A step shared by several
    requests counts for each of them in full.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    new_tokens: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    proposed_by_position: list[int] = field(default_factory=list)
    rollbacks: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    plain_steps: int = 0
    plain_s: float = 0.0
    experts: Traffic = field(default_factory=Traffic)

    def round(self, proposed: int, accepted: int, draft_s: float, verify_s: float, commit_s: float) -> None:
        """A step in which a drafter was asked for proposals; it may have had none."""
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted
        self.rollbacks += accepted < proposed
        for by_position, count in ((self.proposed_by_position, proposed), (self.accepted_by_position, accepted)):
            by_position += [0] * (proposed - len(by_position))
            for i in range(count):
                by_position[i] += 1
        self.draft_s += draft_s
        self.verify_s += verify_s
        self.commit_s += commit_s

    def plain(self, seconds: float) -> None:
        """A step that only decoded, one token for each request."""
        self.plain_steps += 1
        self.plain_s += seconds

    @property
    def plain_step_s(self) -> float:
        """Mean seconds of a plain step; 0 where there was none to measure."""
        return self.plain_s / self.plain_steps if self.plain_steps else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a round with a drafter gave on average, its own one included."""
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    @property
    def speed_up(self) -> float | None:
        """Decoding against as many plain steps; None where none was measured."""
        span = self.total_s - self.first_token_s
        return (self.new_tokens - 1) * self.plain_step_s / span if self.plain_steps and span > 0 else None

    @property
    def collapsed(self) -> bool:
        """Whether the drafter's first guesses are nearly all wrong: it may belong to another model."""
        tried = self.proposed_by_position[0] if self.proposed_by_position else 0
        return tried >= COLLAPSE_ROUNDS and self.accepted_by_position[0] < COLLAPSE_RATE * tried

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after the first over the time they took."""
        span = self.total_s - self.first_token_s
        return (self.new_tokens - 1) / span if span > 0 and self.new_tokens > 1 else 0.0


@dataclass(frozen=True)
class Update:
    """What one step added to a request: tokens as drawn, the bytes now safe to show, and why it ended, if it did."""

    request: Request
    drawn: tuple[Drawn, ...]
    text: bytes
    reason: str | None


class Request:
    """A prompt under sampling parameters. The engine moves it; nothing here knows of caches or models."""

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        vocab: int,
        pieces: Pieces,
        end_ids: Sequence[int],
    ):
        self.params = params
        self.context = list(prompt)
        self.prompt_length = len(prompt)
        self.sampler = Sampler(params, prompt, vocab)
        self.pieces = pieces
        self.end_ids = frozenset() if params.ignore_eos else frozenset(end_ids)
        self.stop_ids = frozenset(params.stop_token_ids or ())
        self.drawn: list[Drawn] = []  # the output, token by token
        self.text = b""  # of the output, as far as it is safe to show
        self.tail = b""
        self.slot: int | None = None
        self.fed = 0
        self.reason: str | None = None
        self.error: TurbosparkError | None = None
        self.stats = Stats(prompt_tokens=len(prompt))
        self._started = time.perf_counter()

    @property
    def output(self) -> list[int]:
        return self.context[self.prompt_length :]

    @property
    def done(self) -> bool:
        return self.reason is not None

    def room(self, max_context: int) -> int:
        """How many more tokens may be produced."""
        left = max_context - len(self.context)
        return left if self.params.max_new is None else min(left, self.params.max_new - len(self.output))

    def take(self, drawn: Sequence[Drawn], cut: Cut) -> Update:
        """Makes the tokens up to the cut final."""
        kept = tuple(drawn[: cut.count])
        tokens = [d.token for d in kept]
        self.context.extend(tokens)
        self.sampler.record(tokens)
        self.drawn.extend(kept)
        self.text += cut.text
        self.tail = cut.tail
        now = time.perf_counter() - self._started
        if kept and not self.stats.new_tokens:
            self.stats.first_token_s = now
        self.stats.new_tokens += len(kept)
        self.stats.total_s = now
        self.reason = cut.reason
        return Update(self, kept, cut.text, cut.reason)

    def close(self, reason: str, error: TurbosparkError | None = None) -> Update:
        """Ends the request from outside: "cancelled", or "error" with what went wrong. Held-back text is released."""
        self.reason, self.error = reason, error
        text, self.tail = self.tail, b""
        self.text += text
        return Update(self, (), text, reason)
