"""A drafter that knows the future: it replays a known continuation, with mistakes where the script says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turbospark.draft.base import Drafter, Draw
from turbospark.engine.loop import Engine
from turbospark.engine.params import SamplingParams
from turbospark.engine.request import Request
from turbospark.kernels.rows import Rows
from turbospark.models.base import Model


class Oracle(Drafter):
    """`future` is the whole text (prompt and continuation). `wrong(position)`: the token proposed there is false.

    Several requests at once are told apart by their last token and position, so their futures must differ there.
    """

    name, taps = "oracle", (0, 1)

    def __init__(self, *futures: Sequence[int], count: int = 7, wrong: Callable[[int], bool] = lambda position: False):
        self.futures, self.count, self.wrong = futures, count, wrong
        self.seen: list[tuple[int, int, int]] = []  # (slot, position, id) of every observed row
        self.states: list[Mapping[Any, Any]] = []
        self.admitted: list[tuple[int, int | None, int]] = []

    def observe(self, rows: Rows, taps: Mapping[Any, Any]) -> None:
        self.seen += zip(rows.slots.tolist(), rows.positions.tolist(), rows.ids.tolist(), strict=True)
        self.states.append(taps)

    def propose(self, anchors: Rows, count: Sequence[int], draw: Draw) -> list[list[int]]:
        return [self._guess(int(i), int(p), n) for i, p, n in zip(anchors.ids, anchors.positions, count, strict=True)]

    def _guess(self, anchor: int, position: int, count: int) -> list[int]:
        future = next((f for f in self.futures if position < len(f) and f[position] == anchor), ())
        tokens = list(future[position + 1 : position + 1 + min(count, self.count)])
        return [(t + 1) % 50 if self.wrong(position + 1 + i) else t for i, t in enumerate(tokens)]

    def admit(self, slot: int, prompt: Sequence[int], source: int | None, reused: int) -> None:
        self.admitted.append((slot, source, reused))

    @property
    def longest(self) -> int:
        return self.count


def params(model: Model, **fields: Any) -> SamplingParams:
    """Resolved parameters, greedy unless the fields say otherwise."""
    return SamplingParams(**{"temperature": 0.0, "seed": 1, **fields}).resolve({}, model.config.vocab)


def run(engine: Engine, request: Request) -> Request:
    while not request.done:
        engine.step()
    return request


def plain(model: Model, prompt: Sequence[int], **fields: Any) -> Request:
    """The request as plain decoding answers it, alone in a fresh engine."""
    submit = {key: fields.pop(key) for key in ("pieces", "end_ids") if key in fields}
    engine = Engine(model, slots=1)
    return run(engine, engine.submit(prompt, params(model, **fields), **submit))
