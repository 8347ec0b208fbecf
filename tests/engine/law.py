"""Whether counts follow a law: Pearson's chi-square with one fixed threshold."""

from __future__ import annotations

import math

import numpy as np


def follows(counts: np.ndarray, law: np.ndarray) -> bool:
    """counts [n] of independent draws against probabilities [n]; false at a chance of about 1 in 10,000.

    Cells expected fewer than 5 times are pooled; a draw in a cell of probability 0 is refused outright.
    """
    counts, law = np.ravel(counts), np.ravel(law)
    if counts[law == 0].any():
        return False
    expected = law * counts.sum()
    small = expected < 5
    seen = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    seen, expected = seen[expected > 0], expected[expected > 0]
    degrees = len(seen) - 1
    if degrees == 0:
        return True
    # Wilson and Hilferty's approximation of the chi-square quantile, 3.72 standard deviations up.
    threshold = degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3
    return float(((seen - expected) ** 2 / expected).sum()) < threshold


def law_of(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """The distribution by definition: sort everything, cut, renormalise."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k > 0:
        order = order[:top_k]
    weight = {i: math.exp((logits[i] - logits[order[0]]) / temperature) for i in order}
    total, mass, kept = sum(weight.values()), 0.0, []
    for i in order:
        kept.append(i)
        mass += weight[i]
        if mass >= top_p * total:
            break
    kept = [i for i in kept if weight[i] >= min_p]
    law = np.zeros(len(logits))
    law[kept] = [weight[i] for i in kept]
    return law / law.sum()
