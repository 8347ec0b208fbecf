"""What a drafter does for a model: acceptance, speed and the parts of a round, on code, arithmetic and prose.

    turbospark bench MODEL --speculative --speculative-drafter auto --proposals 1,3,7,auto

Answers to held-out prompts, which a model without a chat template continues as plain text, once for every number of
proposals, and each time plainly beside it: the two take turns, a step of whoever has worked less, so that a busy moment
of the machine meets both. c(M) is the time of a forward of M rows and their logits over that of one, the sizes taking
turns. Predicted is what tokens a round and its costs promise:

    tokens a round / (c(proposals + 1) + draft and commit / plain step)
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from turbospark.bench.plot import Line, Panel, png
from turbospark.draft.adaptive import Adaptive
from turbospark.engine.loop import Engine
from turbospark.engine.params import SamplingParams
from turbospark.engine.request import Stats
from turbospark.errors import TurbosparkError
from turbospark.kernels.rows import Rows
from turbospark.runtime import LanguageModel
from turbospark.train.prompts import HELD_OUT

KINDS = tuple(HELD_OUT)
BEHIND = 128  # positions that lie before the rows whose costs are measured

Setting = int | str  # proposals, or "auto"
Note = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """prompts: of each kind. tokens: of an answer at most. rounds: over all sizes of a forward."""

    kinds: tuple[str, ...] = KINDS
    settings: tuple[Setting, ...] = (1, 2, 3, 5, 7, "auto")
    prompts: int = 2
    tokens: int = 600
    temperature: float = 0.0
    rounds: int = 20

    @property
    def context(self) -> int:
        return max(256 + self.tokens, BEHIND + self.rounds * (len(self.settings) + 1) + 64)


@dataclass
class Outcome:
    """Decoding of one kind's prompts with one setting, all answers together, and plainly beside it; seconds without the
    prompts'."""

    kind: str
    setting: Setting
    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    plain_seconds: float = 0.0

    def add(self, tokens: int, stats: Stats, seconds: float, plain_seconds: float) -> None:
        """An answer of so many tokens behind its first."""
        self.tokens += tokens
        self.seconds += seconds
        self.plain_seconds += plain_seconds
        self.rounds += stats.rounds
        self.draft_s += stats.draft_s
        self.verify_s += stats.verify_s
        self.commit_s += stats.commit_s
        for ours, theirs in ((self.proposed, stats.proposed_by_position), (self.accepted, stats.accepted_by_position)):
            ours += [0] * (len(theirs) - len(ours))
            for i, count in enumerate(theirs):
                ours[i] += count

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def gain(self) -> float:
        """Speed over plain decoding's."""
        return self.plain_seconds / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_round(self) -> float:
        return 1 + sum(self.accepted) / self.rounds if self.rounds else 1.0

    @property
    def acceptance(self) -> list[float]:
        """By position, of the proposals that were made there."""
        return [kept / made for kept, made in zip(self.accepted, self.proposed, strict=True)]

    def part(self, seconds: float) -> float:
        """Milliseconds a round."""
        return 1e3 * seconds / self.rounds if self.rounds else 0.0


@dataclass
class Report:
    """costs: rows -> median seconds of a forward with its logits."""

    model: str
    drafter: str
    threads: int
    plan: Plan
    costs: dict[int, float]
    outcomes: list[Outcome]

    def c(self, rows: int) -> float:
        return self.costs[rows] / self.costs[1]

    def plain(self, kind: str) -> float:
        """Tokens a second without drafter, over all that was measured beside it."""
        ours = [o for o in self.outcomes if o.kind == kind]
        spent = sum(o.plain_seconds for o in ours)
        return sum(o.tokens for o in ours) / spent if spent else 0.0

    def predicted(self, outcome: Outcome) -> float | None:
        """None where the size of a block is not fixed."""
        if not isinstance(outcome.setting, int) or not outcome.rounds or not outcome.plain_seconds:
            return None
        beside = (outcome.draft_s + outcome.commit_s) / outcome.rounds * outcome.tokens / outcome.plain_seconds
        return outcome.tokens_per_round / (self.c(outcome.setting + 1) + beside)


class Side:
    """One answer by an engine of its own, and the seconds of work behind its first token."""

    def __init__(self, model: LanguageModel, setting: Setting, prompt: str, plan: Plan, tokens: int):
        drafter = None if setting == "off" else model.engine.drafter
        policy = None if drafter is None else Adaptive(drafter.trained, 1)
        self._engine = Engine(model.engine.model, 1, drafter=drafter, policy=policy)
        lm = LanguageModel(model.checkpoint, model.config, model.tokenizer, self._engine)
        chosen: Any = setting
        params = SamplingParams(temperature=plan.temperature, seed=1, max_new=tokens, speculative=chosen)
        chats = lm.tokenizer is not None and lm.tokenizer.has_chat_template
        self.request = lm.submit([{"role": "user", "content": prompt}] if chats else prompt, params)
        self.seconds = 0.0

    def work(self) -> None:
        begun, start = bool(self.request.drawn), time.perf_counter()
        self._engine.step()
        self.seconds += time.perf_counter() - start if begun else 0.0


def measure(model: LanguageModel, name: str, threads: int, plan: Plan, note: Note = lambda text: None) -> Report:
    """Raises `no_drafter`, `bad_arguments`, and `tokens_differ` where an answer is not that of plain decoding."""
    model.require_drafter("bench --speculative")
    drafter: Any = model.engine.drafter
    sizes = [s for s in plan.settings if isinstance(s, int)]
    if too_many := [s for s in sizes if not 1 <= s <= drafter.longest]:
        message = f"{too_many[0]} proposals: the drafter {drafter.name} makes 1 to {drafter.longest}"
        raise TurbosparkError("bad_arguments", message)
    for setting in plan.settings:  # compiles, and touches all memory
        race(model, "Hello", setting, plan, 24)
    note("costs of a forward by its rows")
    costs = forward_costs(model, [1, *(s + 1 for s in sizes)], plan.rounds)
    outcomes = []
    for kind in plan.kinds:
        for setting in plan.settings:
            outcomes.append(Outcome(kind, setting))
            for prompt in HELD_OUT[kind][: plan.prompts]:
                note(f"{kind}, {setting}: {prompt}")
                plain, other = race(model, prompt, setting, plan, plan.tokens)
                if plain.request.output != other.request.output:
                    raise _differ(kind, setting, prompt, other.request.output, plain.request.output)
                count = len(plain.request.output) - 1
                outcomes[-1].add(count, other.request.stats, other.seconds, plain.seconds)
    return Report(name, drafter.name, threads, plan, costs, outcomes)


def race(model: LanguageModel, prompt: str, setting: Setting, plan: Plan, tokens: int) -> tuple[Side, Side]:
    """The same answer plainly and with the setting, in turns, to the end of both."""
    sides = Side(model, "off", prompt, plan, tokens), Side(model, setting, prompt, plan, tokens)
    while going := [side for side in sides if not side.request.done]:
        min(going, key=lambda side: side.seconds).work()
    for side in sides:
        if side.request.error is not None:
            raise side.request.error
    return sides


def forward_costs(model: LanguageModel, sizes: Sequence[int], rounds: int) -> dict[int, float]:
    """Rows -> median seconds of a forward of so many and of their logits, taps included, the sizes taking turns."""
    engine = model.engine
    slot = engine.scheduler.borrow()
    if slot is None:
        raise TurbosparkError("no_slot", "the engine's slots are in use; a measurement needs one")
    times: dict[int, list[float]] = {size: [] for size in sizes}
    ids = np.random.default_rng(0).integers(0, model.config.vocab, BEHIND + rounds * len(times) + max(times)).tolist()
    try:
        at = 0
        for size in [BEHIND] + [*times] * rounds:
            rows = Rows.of([(slot, at, ids[at : at + size], 1 if at else size)])
            start = time.perf_counter()
            engine.session.begin(rows)
            forward = engine.model(rows, engine.session.layers, engine.speculation.taps)
            engine.model.kernels.to_numpy(engine.model.logits(forward.hidden))
            if at:
                times[size].append(time.perf_counter() - start)
            kept = 1 if at else size
            engine.session.commit(slot, kept)
            at += kept
    finally:
        engine.scheduler.give_back(slot)
    return {size: statistics.median(taken) for size, taken in times.items()}


def _differ(kind: str, setting: Setting, prompt: str, tokens: list[int], plain: list[int]) -> TurbosparkError:
    place = next(
        (i for i, (a, b) in enumerate(zip(tokens, plain, strict=False)) if a != b), min(len(tokens), len(plain))
    )
    message = f"{kind}, {setting} proposals: token {place} of the answer to {prompt!r} is not that of plain decoding"
    return TurbosparkError("tokens_differ", message, "this must not happen: please report it")


def table(report: Report) -> str:
    """Markdown."""
    sizes = sorted(report.costs)
    temperature = "greedy" if report.plan.temperature == 0 else f"temperature {report.plan.temperature:g}"
    lines = [
        f"{report.model} with {report.drafter}, {report.threads} thread{'s' * (report.threads > 1)}, {temperature}, "
        f"{report.plan.prompts} prompts of each kind, answers of up to {report.plan.tokens} tokens.",
        "",
        "| rows M | " + " | ".join(map(str, sizes)) + " |",
        "| --- |" + " --- |" * len(sizes),
        "| ms | " + " | ".join(f"{1e3 * report.costs[m]:.2f}" for m in sizes) + " |",
        "| c(M) | " + " | ".join(f"{report.c(m):.2f}" for m in sizes) + " |",
        "",
        "| | proposals | tokens/round | accepted by position, % | draft / verify / commit, ms a round | tok/s "
        "| over plain | predicted |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in report.plan.kinds:
        lines.append(f"| {kind} | off | 1.00 | | | {report.plain(kind):.1f} | 1.00 | |")
        lines += [_line(report, o) for o in report.outcomes if o.kind == kind]
    return "\n".join(lines)


def _line(report: Report, o: Outcome) -> str:
    predicted = report.predicted(o)
    cells = (
        o.kind,
        str(o.setting),
        f"{o.tokens_per_round:.2f}",
        " ".join(f"{100 * share:.0f}" for share in o.acceptance),
        " / ".join(f"{o.part(s):.2f}" for s in (o.draft_s, o.verify_s, o.commit_s)) if o.rounds else "",
        f"{o.speed:.1f}",
        f"{o.gain:.2f}",
        "" if predicted is None else f"{predicted:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def as_json(report: Report) -> str:
    derived = [
        {**asdict(o), "speed": o.speed, "gain": o.gain, "predicted": report.predicted(o)} for o in report.outcomes
    ]
    return json.dumps({**asdict(report), "outcomes": derived})


def plot(report: Report) -> bytes:
    """A PNG: acceptance by position with the largest block, and predicted against measured speed of every fixed one."""
    fixed: list[Any] = [o for o in report.outcomes if isinstance(o.setting, int) and o.rounds]
    longest = max((o.setting for o in fixed), default=1)
    left = Panel("acceptance by position, %", "proposal", "of those made", longest + 1, 100)
    right = Panel("speed over plain decoding", "predicted", "measured", 1.0, 1.0, diagonal=True)
    for kind in report.plan.kinds:
        of_kind = [o for o in fixed if o.kind == kind]
        shares: list[float] = next((o.acceptance for o in of_kind if o.setting == longest), [])
        left.lines.append(Line(kind, [(i + 1, 100 * share) for i, share in enumerate(shares)]))
        right.lines.append(Line(kind, [(report.predicted(o) or 0, o.gain) for o in of_kind], joined=False))
    most = max((value for line in right.lines for point in line.points for value in point), default=1.0)
    right.right = right.top = max(1.5, 1.1 * most)
    return png([left, right])
