"""What a step minimises: the rows' cross-entropy, and the selector's over its candidates.

The target is the trunk's own distribution where it chose the label, mixed with the label: a token says little, and
conversations are few. A drafter draws with the noise that the trunk draws with, so the selector may also be told that
noise, and learns which candidate wins under it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from turbospark.train.data import Batch
from turbospark.train.dflash import DFlash2

SHARP = 0.5  # what noisy scores are divided by: the largest wins, however little it leads


class Loss(NamedTuple):
    """total = rows + selector; first and listed: recall at 1 and among the candidates, picked: the selector's."""

    total: Tensor
    rows: Tensor
    selector: Tensor
    first: Tensor
    listed: Tensor
    picked: Tensor


def loss_of(model: DFlash2, batch: Batch, soft: float = 0.0, noisy: float = 0.0) -> Loss:
    """soft: the share of the trunk's distribution in the target, the label has the rest. noisy: the share of the
    selector's loss that is over scores with the label's noise, where the label is a candidate.

    Labels outside the draft vocabulary weigh nothing; the true predecessor is given to the selector.
    """
    guess = model.guess(batch.taps, batch.blocks)
    label = model.column[batch.labels]
    weights = batch.weights * (label >= 0)
    total = weights.sum().clamp(min=1e-6)
    mean = lambda values: (values * weights).sum() / total
    label = label.clamp(min=0)
    with torch.no_grad():
        trunk = model.logits(batch.told)
    rows = _cross_entropy(guess.logits, label, trunk, soft)
    hit = guess.candidates == label[..., None]
    listed = hit.any(-1)
    first = hit[..., 0]
    # a label that is no candidate takes the last one's place
    candidates = torch.cat(
        [guess.candidates[..., :-1], torch.where(listed, guess.candidates[..., -1], label)[..., None]], -1
    )
    guess = guess._replace(candidates=candidates, unary=guess.logits.gather(-1, candidates))
    before = torch.cat([batch.blocks.anchors[..., None], batch.labels[..., :-1]], -1)
    scores = model.scores(guess, before)
    choice = (candidates == label[..., None]).to(torch.uint8).argmax(-1)
    chosen = _cross_entropy(scores, choice, trunk.gather(-1, candidates), soft)
    if noisy:
        winner = _cross_entropy((scores + batch.noise(model.ids[candidates])) / SHARP, choice, scores, 0.0)
        chosen = (1 - noisy) * chosen + noisy * winner * listed
    with torch.no_grad():
        # what follows only reports, so the mean is over labels, not over weights
        counted = (weights > 0).float()
        share = lambda values: (values * counted).sum() / counted.sum().clamp(min=1)
        picked = share((scores.argmax(-1) == choice) & listed)
        seen = share(first), share(listed), picked
    by_row, by_selector = mean(rows), mean(chosen)
    return Loss(by_row + by_selector, by_row.detach(), by_selector.detach(), *seen)


def _cross_entropy(logits: Tensor, label: Tensor, trunk: Tensor, soft: float) -> Tensor:
    """[...] of logits [..., n] against the label [...] and, as far as `soft`, the trunk's logits [..., n]."""
    wide = logits.float()
    hit = wide.gather(-1, label[..., None])[..., 0]
    if soft:
        hit = (1 - soft) * hit + soft * (trunk.float().softmax(-1) * wide).sum(-1)
    return wide.logsumexp(-1) - hit
