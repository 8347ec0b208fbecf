"""A fixed number of places for experts of all layers, and which expert has to leave when another needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from turbospark.experts.reader import PAGE, Job

Key = tuple[int, int]  # layer and expert
HALF_LIFE = 64.0  # tokens after which a use counts half
LARGEST = 1e200  # of a use, before all are scaled down


class Slot:
    """memory: uint8, whole pages. weights: the backend's, once read and built. pins: how many need it as it is."""

    def __init__(self, number: int, memory: np.ndarray):
        self.number, self.memory = number, memory
        self.key: Key | None = None
        self.job: Job | None = None
        self.weights: Any = None
        self.pinned = self.guessed = False

    @property
    def busy(self) -> bool:
        return self.pinned or (self.job is not None and not self.job.done)


class Slots:
    """The expert with the least uses leaves first, a use counting less the longer ago it was (LFU with aging).

    half_life: in tokens; 0 makes the one unused for longest leave (LRU). may_grow: asked before memory is touched that
    was not yet, from the `least`-th slot on; at the first no, there are as many slots as have been used.
    """

    def __init__(
        self,
        memories: Iterable[np.ndarray],
        half_life: float = HALF_LIFE,
        least: int = 1,
        may_grow: Callable[[], bool] = lambda: True,
    ):
        self.slots = [Slot(number, memory) for number, memory in enumerate(memories)]
        self._by_key: dict[Key, Slot] = {}
        self._fresh, self._free = self.slots[::-1], list[Slot]()  # untouched; and given back
        self._least, self._may_grow = least, may_grow
        self._scores: dict[Key, float] = {}
        self._of_slots = np.zeros(len(self.slots))
        self._half_life, self._use = half_life, 1.0

    def __len__(self) -> int:
        return len(self.slots)

    def _new(self) -> Slot | None:
        used = len(self.slots) - len(self._fresh)
        if self._fresh and (used < self._least or self._may_grow()):
            slot = self._fresh.pop()
            slot.memory[::PAGE] = 0  # counts from now on, and not when it is read into
            return slot
        self._fresh = []
        del self.slots[used:]
        return None

    def find(self, key: Key) -> Slot | None:
        return self._by_key.get(key)

    def age(self, tokens: int) -> None:
        """So many tokens later: rather than that all earlier uses count less, the next ones count more."""
        if self._half_life > 0:
            self._use *= 2.0 ** (tokens / self._half_life)
            if self._use > LARGEST:
                self._scores = {key: score / self._use for key, score in self._scores.items()}
                self._of_slots /= self._use
                self._use = 1.0

    def used(self, key: Key, times: int) -> None:
        if self._half_life > 0:
            score = self._scores.get(key, 0.0) + self._use * times
        else:
            self._use += 1.0
            score = self._use
        self._scores[key] = score
        if key in self._by_key:
            self._of_slots[self._by_key[key].number] = score

    def take(self, key: Key) -> Slot | None:
        """A slot for an expert that has none: a free one, or that of another which leaves. None: all are busy."""
        slot = self._free.pop() if self._free else self._new() or self._coldest()
        if slot is None:
            return None
        if slot.key is not None:
            del self._by_key[slot.key]
        slot.key, slot.weights, slot.job, slot.guessed = key, None, None, False
        self._by_key[key] = slot
        self._of_slots[slot.number] = self._scores.get(key, 0.0)
        return slot

    def give_back(self, slot: Slot) -> None:
        """What was to be read into it did not come."""
        if slot.key is not None:
            del self._by_key[slot.key]
        slot.key = slot.weights = slot.job = None
        slot.pinned = slot.guessed = False
        self._free.append(slot)

    def _coldest(self) -> Slot | None:
        for number in np.argsort(self._of_slots[: len(self.slots)], kind="stable"):
            if not self.slots[number].busy:
                return self.slots[number]
        return None
