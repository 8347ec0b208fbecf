"""What a trunk wrote, with its tapped states, and the blocks that a step trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turbospark.train.dflash import Blocks
from turbospark.train.noise import gumbel
from turbospark.train.trunk import Trunk
from turbospark.train.writer import Written


class Batch(NamedTuple):
    """taps [S, T, n * H]; labels [S, A, B - 1] token ids; weights [S, A, B - 1], 0 where there is nothing to learn.

    told [S, A, B - 1, H]: the trunk's own hidden state from which it chose each label. keys [S], temperature [S]: the
    noise that it chose with.
    """

    taps: Tensor
    blocks: Blocks
    labels: Tensor
    weights: Tensor
    told: Tensor
    keys: Tensor
    temperature: Tensor

    def noise(self, ids: Tensor) -> Tensor:
        """What was added to the trunk's logits of token ids [S, A, B - 1, k] where it chose the labels."""
        rows = torch.arange(1, ids.shape[2] + 1, device=ids.device)
        at = self.blocks.positions[..., None, None] + rows[:, None]
        of = lambda values: values[:, None, None, None]
        return of(self.temperature) * gumbel(of(self.keys), at, ids)


@dataclass
class Corpus:
    """What was written (tokens [N, T]), and the trunk's states there: taps [N, T, n * H], hidden [N, T, H]."""

    tokens: Tensor
    answer: Tensor
    keys: Tensor
    temperature: Tensor
    taps: Tensor
    hidden: Tensor

    def blocks(self, which: Tensor, anchors: int, block: int, gamma: float) -> Batch:
        """`anchors` random blocks in each of the sequences `which` [S], all inside answers."""
        tokens, answer = self.tokens[which].long(), self.answer[which]
        able = answer & answer.roll(-1, 1)
        able[:, -1] = False
        chances = torch.rand(able.shape, device=able.device).masked_fill(~able, -1.0)
        chance, at = chances.topk(min(anchors, able.shape[1]), 1)
        return self._batch(which, tokens, answer, at, chance >= 0, block, gamma)

    def every_block(self, which: int, first: int, last: int, block: int) -> Batch:
        """A block at each position first .. last - 1 of one sequence."""
        at = torch.arange(first, last, device=self.tokens.device)[None]
        one = slice(which, which + 1)
        good = torch.ones_like(at, dtype=torch.bool)
        return self._batch(one, self.tokens[one].long(), self.answer[one], at, good, block, 1e9)

    def _batch(
        self, which: Any, tokens: Tensor, answer: Tensor, at: Tensor, good: Tensor, block: int, gamma: float
    ) -> Batch:
        rows = torch.arange(1, block, device=at.device)
        inside = (at[..., None] + rows) < tokens.shape[1]
        index = (at[..., None] + rows).clamp(max=tokens.shape[1] - 1).flatten(1)
        labels = tokens.gather(1, index).view(*at.shape, -1)
        valid = (answer.gather(1, index).view(*at.shape, -1) & inside & good[..., None]).cumprod(-1)
        weights = valid * torch.exp(-(rows - 1) / gamma)
        hidden = self.hidden[which]
        told = hidden.gather(1, (index - 1)[..., None].expand(-1, -1, hidden.shape[-1]))
        told = told.view(*labels.shape, -1)
        blocks = Blocks(tokens.gather(1, at), at)
        return Batch(self.taps[which], blocks, labels, weights, told, self.keys[which], self.temperature[which])


def read(trunk: Trunk, made: Written, taps: Sequence[int], size: int = 32) -> Corpus:
    """Sequences that were written, read whole again for their states."""
    tokens = made.tokens
    if tokens.is_cuda:
        torch.cuda.empty_cache()  # what writing left; these states take most of the memory
    make = lambda width: torch.empty(*tokens.shape, width, device=tokens.device, dtype=trunk.dtype)
    side, hidden = make(len(taps) * trunk.config.hidden), make(trunk.config.hidden)
    for start in range(0, len(tokens), size):
        part = slice(start, start + size)
        taken = trunk.full(tokens[part].long(), taps)
        side[part], hidden[part] = taken.taps, taken.hidden
    return Corpus(*made, side, hidden)


def draft_vocabulary(corpus: Corpus, size: int, vocab: int, keep: Sequence[int] = ()) -> tuple[Tensor, float]:
    """The `size` ids that answers hold most often, ascending, and the share of answer tokens that they cover."""
    counts = torch.bincount(corpus.tokens[corpus.answer].long(), minlength=vocab).double()
    chances = counts.clone()
    chances[list(keep)] = float("inf")
    ids = chances.topk(min(size, vocab)).indices.sort().values
    return ids, float(counts[ids].sum() / counts.sum())
