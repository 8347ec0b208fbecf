"""Accepted length on held-out answers: what verifying every round would have kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turbospark.train.data import Corpus
from turbospark.train.dflash import DFlash2
from turbospark.train.noise import gumbel


@dataclass(frozen=True)
class Answer:
    """Sequence `row` of a corpus answers at positions first .. last - 1, drawn at `temperature` with noise `key`."""

    row: int
    kind: str
    first: int
    last: int
    temperature: float
    key: int


@dataclass
class Tally:
    """length: tokens a round, proposals kept + 1. by_row: how often row i was kept, of all rounds."""

    tokens: int = 0
    rounds: int = 0
    kept: list[int] | None = None

    @property
    def length(self) -> float:
        return self.tokens / max(self.rounds, 1)

    @property
    def by_row(self) -> list[float]:
        return [round(count / max(self.rounds, 1), 4) for count in self.kept or []]


@torch.no_grad()
def proposals(model: DFlash2, corpus: Corpus, answer: Answer) -> tuple[Tensor, Tensor]:
    """Each position's walk [A, B - 1] as the anchor, and the tokens that follow there."""
    config = model.config
    batch = corpus.every_block(answer.row, answer.first, answer.last - 1, config.block)
    guess = model.guess(batch.taps, batch.blocks)
    last, walk = batch.blocks.anchors, []
    for row in range(config.block - 1):
        scores = model.scores(guess, last, row)
        ids = model.ids[guess.candidates[:, :, row]]
        if answer.temperature > 0:
            at = (batch.blocks.positions + 1 + row)[..., None]
            key = torch.tensor(answer.key, device=ids.device)
            scores = scores + answer.temperature * gumbel(key, at, ids)
        last = ids.gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
        walk.append(last[0])
    return torch.stack(walk, -1), batch.labels[0]


def accepted(
    model: DFlash2, corpus: Corpus, answers: Sequence[Answer], block: int | None = None
) -> dict[tuple[str, float], Tally]:
    """By kind and temperature; `block` rows a round, the trained number if None."""
    rows = (block or model.config.block) - 1
    found: dict[tuple[str, float], Tally] = {}
    for answer in (a for a in answers if a.last - a.first > 1):
        walk, truth = proposals(model, corpus, answer)
        right = (walk[:, :rows] == truth[:, :rows]).cumprod(-1).sum(-1).tolist()
        tally = found.setdefault((answer.kind, answer.temperature), Tally(kept=[0] * rows))
        at, end = 0, answer.last - answer.first
        while at < end - 1:
            kept = min(right[at], end - 1 - at)
            tally.rounds += 1
            for i in range(kept):
                tally.kept[i] += 1  # type: ignore[index]
            step = min(kept + 1, end - 1 - at)
            tally.tokens += step
            at += step
    return found
