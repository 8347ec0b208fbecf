"""A target and a drafter that exist as tables: acceptance by position and time, seconds by size, noise on the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turbospark.draft.adaptive import Adaptive

LONGEST = 15


@dataclass(frozen=True)
class Workload:
    """accept(t): chance of a proposal at each place, once those before it were right, for the token at t.

    verify(rows) and draft(counts): seconds; a plain step of one row is about 1. noise: standard deviation of the
    logarithm of every measurement; one in a hundred is a stall of ten times as long.
    """

    accept: Callable[[int], np.ndarray]
    verify: Callable[[int], float]
    draft: Callable[[Sequence[int]], float]
    noise: float = 0.0
    first_call: float = 1.0  # how many times as long the first call of a size takes


def seconds(
    workload: Workload,
    policy: Adaptive | int,
    seed: int,
    tokens: int = 600,
    requests: int = 1,
    used: dict | None = None,
) -> float:
    """True seconds until every request has its tokens, under a policy or a fixed number of proposals."""
    chances = np.random.default_rng(seed).random((requests, tokens + LONGEST, LONGEST)).tolist()
    random = np.random.default_rng(seed + 1)
    done, total, called = [0] * requests, 0.0, set()
    if isinstance(policy, Adaptive):
        for slot in range(requests):
            policy.admit(slot)

    def measured(what: str, size: int, true: float) -> float:
        first = workload.first_call if (what, size) not in called else 1.0
        called.add((what, size))
        stall = 10.0 if workload.noise and random.random() < 0.01 else 1.0
        return true * first * stall * float(np.exp(workload.noise * random.standard_normal()))

    while min(done) < tokens:
        live = [i for i in range(requests) if done[i] < tokens]
        most = [min(LONGEST, tokens - done[i] - 1) for i in live]
        asked = policy.choose(live, most) if isinstance(policy, Adaptive) else [min(policy, m) for m in most]
        accepted = []
        for i, count in zip(live, asked, strict=True):
            rates, kept = workload.accept(done[i]), 0
            while kept < count and chances[i][done[i] + kept][kept] < rates[kept]:
                kept += 1
            accepted.append(kept)
            done[i] += kept + 1
        rows = len(live) + sum(asked)
        draft, verify = workload.draft(asked) if any(asked) else 0.0, workload.verify(rows)
        total += draft + verify
        if used is not None:
            used[sum(asked)] = used.get(sum(asked), 0) + 1
        if isinstance(policy, Adaptive):
            drafted = measured("draft", sum(asked), draft) if any(asked) else 0.0
            policy.learn(live, asked, asked, accepted, drafted, measured("verify", rows, verify))
    return total


def best_fixed(workload: Workload, seeds: Sequence[int], **options: int) -> float:
    """Seconds over all seeds of the best fixed number of proposals, none included."""
    return min(sum(seconds(workload, count, s, **options) for s in seeds) for count in (0, 1, 2, 3, 4, 6, 8, 11, 15))
