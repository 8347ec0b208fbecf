"""What a call costs by its size, learnt from noisy measurements of some sizes."""

from __future__ import annotations

from bisect import bisect_left, insort
from math import exp, log

FIRST = 4  # measurements that count alike; later ones count for 1 / FIRST at least
SPIKE = log(1.5)  # a known size moves by no more at once, so that a stall of the machine is soon forgotten
DRIFT = 0.1  # of a known size's change that is taken to be the machine's, and so every size's


class Costs:
    """Seconds by size. A size not measured lies between its neighbours' line and its smaller neighbour, so that it is
    tried once; past the largest each further unit is guessed to add `slope` of that one's seconds."""

    def __init__(self, slope: float):
        self._slope = slope
        self._sizes: list[int] = []
        self._logs: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def learn(self, size: int, seconds: float) -> None:
        value = log(max(seconds, 1e-9))
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count == 1:
            insort(self._sizes, size)
            self._logs[size] = value
        elif count == 2:
            # a first call may have compiled, or touched its memory for the first time
            self._logs[size] = min(value, self._logs[size])
        else:
            change = max(-SPIKE, min(SPIKE, value - self._logs[size]))
            for other in self._sizes:
                self._logs[other] += change / min(count, FIRST) if other == size else DRIFT * change / FIRST

    def __contains__(self, size: int) -> bool:
        return size in self._logs

    def __call__(self, size: int) -> float:
        if size in self._logs:
            return exp(self._logs[size])
        at = bisect_left(self._sizes, size)
        if at == 0:
            return exp(self._logs[self._sizes[0]]) if self._sizes else 0.0
        below = self._sizes[at - 1]
        low = exp(self._logs[below])
        if at == len(self._sizes):
            return low * (1 + self._slope * (size - below))
        above = self._sizes[at]
        line = (exp(self._logs[above]) - low) * (size - below) / (above - below)
        return low + min(line, line / 2)
