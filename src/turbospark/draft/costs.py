"""What a call costs by its size, learnt from noisy measurements of some sizes."""

from __future__ import annotations

from bisect import bisect_left, insort
from math import exp, log

COUNTED = 8  # measurements that count alike; later ones count for 1 / COUNTED at least
SPIKE = log(1.5)  # a known size moves by no more at once, so that a stall of the machine is soon forgotten
COLD = log(1.5)  # a first call that took so many times as long as expected is not believed
SLOWER = 0.7  # what a slower measurement counts for: other work on the machine only ever slows
DRIFT = 0.1  # of a known size's step that is taken to be the machine's, and so every size's
HOPE = 0.85  # of the rise between neighbours that a size between them is expected to show: it is tried sooner or later


class Costs:
    """Seconds by size. A size that was measured seldom leans on its neighbours; past the largest the rise so far goes
    on, and where only one was measured each further unit is guessed to add `slope` of its seconds."""

    def __init__(self, slope: float):
        self._slope = slope
        self._sizes: list[int] = []
        self._logs: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._firsts: dict[int, float] = {}
        self._doubted: set[int] = set()

    def learn(self, size: int, seconds: float, expected: float = 0.0) -> None:
        """A first call may have compiled something, or touched its memory for the first time: where it took far more
        than `expected` (0: no idea), that is believed until the second one tells."""
        value = log(max(seconds, 1e-9))
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count == 1:
            insort(self._sizes, size)
            self._firsts[size] = value
            slow = expected > 0 and value - log(expected) > COLD
            self._logs[size] = log(expected) if slow else value
            self._doubted.update([size] * slow)
        elif count == 2:
            self._logs[size] = min(value, self._firsts.pop(size))
            self._doubted.discard(size)
        else:
            step = max(-SPIKE, min(SPIKE, value - self._logs[size])) / min(count, COUNTED)
            step *= SLOWER if step > 0 else 1.0
            for other in self._sizes:
                self._logs[other] += step if other == size else DRIFT * step

    @property
    def largest(self) -> int:
        """The largest size whose seconds are believed."""
        return max((size for size in self._sizes if size not in self._doubted), default=0)

    def known(self, size: int) -> int:
        """How often a size was measured."""
        return self._counts.get(size, 0)

    def __contains__(self, size: int) -> bool:
        return size in self._logs

    def __call__(self, size: int) -> float:
        own = self._logs.get(size)
        at = bisect_left(self._sizes, size)
        after = at if own is None else at + 1
        below = self._sizes[at - 1] if at else None
        above = self._sizes[after] if after < len(self._sizes) else None
        if below is None or above is None:
            return self._at_the_edge(size, own, below, above)
        low, high = exp(self._logs[below]), exp(self._logs[above])
        line = low + (high - low) * (size - below) / (above - below)
        if own is None:
            return min(line, low + HOPE * (line - low))
        count = min(self._counts[size], COUNTED)
        return exp((count * own + log(line)) / (count + 1))

    def _at_the_edge(self, size: int, own: float | None, below: int | None, above: int | None) -> float:
        if own is not None:
            return exp(own)
        if below is None:
            return exp(self._logs[above]) if above is not None else 0.0
        last, first = exp(self._logs[below]), self._sizes[0]
        rise = self._slope * last if first == below else max(0.0, last - exp(self._logs[first])) / (below - first)
        return last + rise * (size - below)
