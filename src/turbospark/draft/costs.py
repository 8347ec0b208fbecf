"""What a call costs by its size, learnt from noisy measurements of some sizes."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

FIRST = 4  # measurements that count alike; later ones count for 1 / FIRST at least
SPIKE = log(1.5)  # a known size moves by no more at once, so that a stall of the machine is soon forgotten
DRIFT = 0.1  # of a known size's change that is taken to be the machine's, and so every size's


class Costs:
    """Seconds by size. A size not measured lies between its neighbours' lines and the smaller neighbour's own value,
    so that it is tried once; past the largest, `beyond(largest size, its seconds, size)` guesses."""

    def __init__(self, beyond: Callable[[int, float, int], float]):
        self._logs: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._beyond = beyond

    def learn(self, size: int, seconds: float) -> None:
        value = log(max(seconds, 1e-9))
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count == 1:
            self._logs[size] = value
            return
        change = value - self._logs[size]
        if count == 2:
            # a first call may have compiled, or touched its memory for the first time
            self._logs[size] = min(value, self._logs[size])
            return
        change = max(-SPIKE, min(SPIKE, change))
        for other in self._logs:
            self._logs[other] += DRIFT * change / FIRST if other != size else change / min(count, FIRST)

    def __contains__(self, size: int) -> bool:
        return size in self._logs

    def __call__(self, size: int) -> float:
        if size in self._logs:
            return exp(self._logs[size])
        below = max((s for s in self._logs if s < size), default=None)
        above = min((s for s in self._logs if s > size), default=None)
        if below is None:
            return exp(self._logs[above]) if above is not None else 0.0
        low = exp(self._logs[below])
        if above is None:
            return self._beyond(below, low, size)
        line = low + (exp(self._logs[above]) - low) * (size - below) / (above - below)
        return min(line, (low + line) / 2)
