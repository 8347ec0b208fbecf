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
FLAT = 0.2  # of the final norms: logits that differ less leave more to the noise, and who shares it is right more often
PAIRS = [(family, drafter) for family in FAMILIES for drafter in DRAFTERS if (family, drafter) != ("llama", "mtp")]


@dataclass
class Trunk:
    """A tiny model of a family on a backend, its drafters' files beside it, and answers of plain decoding."""

    folder: Path
    family: str
    backend: str
    threads: int | None = None

    def __post_init__(self) -> None:
        path = write_trunk(self.folder, self.family)
        self.lm = turbospark.load(path, self.backend, slots=SLOTS, chunk=CHUNK, threads=self.threads)
        self.model = self.lm.engine.model
        self.model.norm *= FLAT
        for name in ("dflash2", "dflash"):
            write_dflash(self.folder / name, dflash_config(self.lm.config, name == "dflash2"))
        self._plain = cache(lambda temperatures, tokens: self.run(None, [("off", t) for t in temperatures], tokens))

    def plain(self, temperature: float, requests: int, tokens: int) -> list[list[int]]:
        """What plain decoding answers."""
        return self._plain((temperature,) * requests, tokens)

    def answers(
        self, drafter: Drafter | None, proposals: Any, temperature: float, requests: int, tokens: int
    ) -> list[list[int]]:
        """The outputs of requests that run at once and are alike but for prompt and seed."""
        return self.run(drafter, [(proposals, temperature)] * requests, tokens)

    def run(self, drafter: Drafter | None, settings: Sequence[tuple[Any, float]], tokens: int) -> list[list[int]]:
        """The outputs of requests that run at once, each with its own prompt, seed, proposals and temperature."""
        engine, asked = Engine(self.model, SLOTS, CHUNK, drafter), []
        for i, (proposals, temperature) in enumerate(settings):
            fields = {"max_new": tokens, "temperature": temperature, "speculative": proposals, "ignore_eos": True}
            asked.append(engine.submit(PROMPTS[i], params(self.model, seed=i, **fields)))
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
        drafter = load_drafter(named, self.model, self.lm.checkpoint, SLOTS, CHUNK)
        if hasattr(drafter, "model"):
            drafter.model.norm.weight[...] *= FLAT
        return drafter

    def check(self, name: str, settings: Sequence[tuple[int, float]], tokens: int) -> None:
        """Decodes with the drafter, (proposals, temperature) for each request, and holds the tokens to plain ones."""
        expected = self._plain(tuple(temperature for _, temperature in settings), tokens)
        got = self.run(self.drafter(name, expected), settings, tokens)
        assert got == expected, f"{self.family}, {name}, (proposals, temperature) {settings}"
        assert all(len(answer) == tokens for answer in got)
        assert all(stats.proposed > 0 for stats in self.stats)


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
