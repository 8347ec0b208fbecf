"""Every drafter over every family: what decoding with one must never change, for a sample and for the whole proof."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import turbospark
from tests.tiny.dflash import dflash_config, write_dflash
from tests.tiny.oracle import Oracle, params
from tests.tiny.trunks import FAMILIES, write_trunk
from turbospark.draft.base import Drafter
from turbospark.draft.load import load_drafter
from turbospark.engine.loop import Engine

DRAFTERS = ("dflash2", "dflash", "mtp", "ngram", "scripted")
TEMPERATURES = (0.0, 0.7, 1.3)
SLOTS, CHUNK = 3, 32
PROMPTS = ([1, 2, 3, 4, 5], [7], [2, 9, 4, 2, 9, 4, 2, 9, 1, 0, 3, 8, 5, 5, 6, 10, 1, 2, 3])
PAIRS = [(family, drafter) for family in FAMILIES for drafter in DRAFTERS if (family, drafter) != ("llama", "mtp")]


@dataclass
class Trunk:
    """A tiny model of a family on a backend, its drafters' files beside it, and answers of plain decoding."""

    folder: Path
    family: str
    backend: str

    def __post_init__(self) -> None:
        self.lm = turbospark.load(write_trunk(self.folder, self.family), self.backend, slots=SLOTS, chunk=CHUNK)
        self.model = self.lm.engine.model
        for name in ("dflash2", "dflash"):
            write_dflash(self.folder / name, dflash_config(self.lm.config, name == "dflash2"))
        self.plain = cache(self._plain)

    def _plain(self, temperature: float, requests: int, tokens: int) -> list[list[int]]:
        return self.answers(None, "off", temperature, requests, tokens)

    def answers(
        self, drafter: Drafter | None, proposals: Any, temperature: float, requests: int, tokens: int
    ) -> list[list[int]]:
        """The outputs of requests that run at once, each with its own seed."""
        engine = Engine(self.model, SLOTS, CHUNK, drafter)
        fields = {"max_new": tokens, "temperature": temperature, "speculative": proposals, "ignore_eos": True}
        asked = [engine.submit(p, params(self.model, seed=i, **fields)) for i, p in enumerate(PROMPTS[:requests])]
        while engine.busy:
            engine.step()
        self.stats = [request.stats for request in asked]
        return [request.output for request in asked]

    def drafter(self, name: str, futures: Sequence[Sequence[int]]) -> Drafter:
        """A fresh drafter; the scripted one knows what is to come, and is right and wrong by chance of position."""
        if name == "scripted":
            wrong = random.Random(5)
            places = {position: wrong.random() < 0.3 for position in range(4000)}
            texts = [[*prompt, *future] for prompt, future in zip(PROMPTS, futures, strict=False)]
            return Scripted(*texts, count=15, wrong=places.__getitem__)
        named = str(self.folder / name) if name.startswith("dflash") else name
        return load_drafter(named, self.model, self.lm.checkpoint, SLOTS, CHUNK)

    def check(self, name: str, proposals: int, temperature: float, requests: int, tokens: int) -> None:
        """Decodes with the drafter and holds the tokens to plain decoding's."""
        expected = self.plain(temperature, requests, tokens)
        got = self.answers(self.drafter(name, expected), proposals, temperature, requests, tokens)
        assert got == expected, f"{self.family}, {name}, {proposals} proposals, T {temperature}, {requests} at once"
        assert sum(stats.proposed for stats in self.stats) > 0


class Scripted(Oracle):
    """An oracle whose futures may share tokens and positions: each slot is told which one is its own."""

    def admit(self, slot: int, prompt: Sequence[int], source: int | None, reused: int) -> None:
        super().admit(slot, prompt, source, reused)
        self.own = getattr(self, "own", {})
        self.own[slot] = next(f for f in self.futures if list(f[: len(prompt)]) == list(prompt))

    def propose(self, anchors: Any, count: Sequence[int], draw: Any) -> list[list[int]]:
        found = []
        for slot, position, n in zip(anchors.slots.tolist(), anchors.positions.tolist(), count, strict=True):
            tokens = self.own[slot][position + 1 : position + 1 + n]
            found.append([(t + 1) % 11 if self.wrong(position + 1 + i) else t for i, t in enumerate(tokens)])
        return found
