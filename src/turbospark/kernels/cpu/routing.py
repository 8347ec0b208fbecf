"""Which experts a row goes to, and how much each weighs."""

from __future__ import annotations

import math

import numpy as np

from turbospark.kernels.cpu.compile import kernel


@kernel
def route(logits, bias, biased, sigmoid, groups, groups_used, top2, renormalise, scale, ids, weights):
    """See Kernels.route: logits [R, experts] -> ids int64 and weights float32 [R, used]; ties go to the lowest id.

    bias float32 [experts], added to scores for the choice only if `biased`. Sums run in the order of the experts.
    """
    rows, count = logits.shape
    used, size = ids.shape[1], count // groups
    scores, choice = np.empty(count, np.float32), np.empty(count, np.float32)
    for r in range(rows):
        _score(logits[r], sigmoid, scores)
        for i in range(count):
            choice[i] = scores[i] + bias[i] if biased else scores[i]
        if groups > 1:
            _keep_groups(choice, groups, size, groups_used, top2)
        total = np.float32(0)
        for j in range(used):
            best = -1
            for i in range(count):
                if not math.isnan(choice[i]) and (best < 0 or choice[i] > choice[best]):
                    best = i
            best = max(best, 0)
            ids[r, j], weights[r, j] = best, scores[best]
            choice[best] = np.nan  # taken
            total += scores[best]
        for j in range(used):
            if renormalise:
                weights[r, j] /= total + np.float32(1e-20)
            weights[r, j] *= scale


@kernel
def _score(logits, sigmoid, scores):
    if sigmoid:
        for i in range(len(logits)):
            scores[i] = np.float32(1 / (1 + math.exp(-np.float64(logits[i]))))
        return
    most = logits.max()
    total = np.float32(0)
    for i in range(len(logits)):
        scores[i] = np.float32(math.exp(np.float64(logits[i] - most)))
        total += scores[i]
    for i in range(len(logits)):
        scores[i] /= total


@kernel
def _keep_groups(choice, groups, size, kept, top2):
    """Experts outside the best groups get minus infinity. A group ranks by its best, or by the sum of its best two."""
    rank = np.empty(groups, np.float32)
    for g in range(groups):
        first = second = np.float32(-np.inf)
        for value in choice[g * size : (g + 1) * size]:
            if value > first:
                first, second = value, first
            elif value > second:
                second = value
        rank[g] = first + second if top2 else first
    chosen = np.zeros(groups, np.bool_)
    for _ in range(kept):
        best = -1
        for g in range(groups):
            if not chosen[g] and (best < 0 or rank[g] > rank[best]):
                best = g
        chosen[best] = True
    for g in range(groups):
        if not chosen[g]:
            choice[g * size : (g + 1) * size] = -np.inf
