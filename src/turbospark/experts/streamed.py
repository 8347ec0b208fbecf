"""Experts on disk and a bounded number of them in memory; the core is read into memory when the model is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from turbospark.errors import TurbosparkError
from turbospark.experts.ahead import Ahead
from turbospark.experts.base import Expert, ExpertStore, Parts, Residency
from turbospark.experts.files import Extent, File, Files, moved, pages
from turbospark.experts.reader import Reader
from turbospark.experts.resident import InMemory
from turbospark.experts.slots import HALF_LIFE, Slot, Slots
from turbospark.kernels.api import Kernels
from turbospark.quant.tensor import QTensor

GUESSING_ROWS = 16  # rows of a forward for which experts are read ahead; more touch nearly all of them


class Streamed(Residency):
    """One pool of slots for all layers, each as large as the largest expert, allocated at the first use.

    ahead: how many experts a row are read ahead for the next layer while that pays, 0: none. least: slots that are
    taken in any case. room: tells the bytes that the process may still take; where a slot's memory does not fit in any
    more, there are as many slots as have been used.
    """

    name = "streamed"

    def __init__(
        self,
        files: Iterable[File],
        slots: int,
        reader: Reader,
        half_life: float = HALF_LIFE,
        ahead: int = 0,
        least: int = 1,
        room: Callable[[], int] | None = None,
    ):
        super().__init__()
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise TurbosparkError("bad_slots", f"expert slots are {slots!r}, at least 1 is needed")
        self.files, self.reader, self.ahead = Files(files), reader, Ahead(ahead)
        self._count, self._half_life, self._least, self._room = slots, half_life, least, room
        self._slots: Slots | None = None
        self.stores: list[Store] = []
        self.rows = 0

    @property
    def slots(self) -> Slots:
        if self._slots is None:
            nbytes = max(store.slot_bytes for store in self.stores)
            memory = pages(nbytes * self._count)
            memories = (memory[i * nbytes : (i + 1) * nbytes] for i in range(self._count))
            room = self._room
            may_grow = lambda: room is None or room() >= nbytes
            self._slots = Slots(memories, self._half_life, self._least, may_grow)
        return self._slots

    def beside(self, files: Iterable[File]) -> Residency:
        return InMemory(files, self.reader)

    def core(self, tensor: QTensor) -> QTensor:
        return self.files.copied([tensor], self.reader)[0]

    def experts(self, parts: Sequence[Parts], kernels: Kernels) -> Store:
        if self._slots is not None:
            raise RuntimeError("a layer with experts is added to a model that has run")
        self.stores.append(Store(self, len(self.stores), parts, kernels))
        return self.stores[-1]

    def begin(self, rows: int) -> None:
        self.rows = rows
        self.traffic.tokens += rows
        for slot in self.slots.slots:  # a forward that broke off may have left some
            slot.pinned = False
        self.slots.age(rows)
        self.ahead.begin(rows)

    def settle(self) -> None:
        """Behind an error: waits for all that is being read, and lets go of what could not be."""
        for slot in self.slots.slots:
            while slot.job is not None and not slot.job.done:
                self.reader.wait([slot.job])
            if slot.job is not None and slot.job.error is not None:
                self.slots.give_back(slot)


class Place:
    """Where an expert lies in files, and in a slot."""

    def __init__(self, files: Files, parts: Parts):
        self.parts = parts
        self.extents, self.where = files.extents(parts)
        apart = [part.name for i, part in enumerate(parts) if (i, "data") not in self.where]
        if apart:
            hint = "streamed experts are read from the file as they are; use resident or mapped"
            raise TurbosparkError("not_streamable", f"tensor {apart[0]} does not lie in the file as it is used", hint)
        self.nbytes = sum(extent.nbytes for extent in self.extents)

    def split(self, memory: np.ndarray) -> Iterator[tuple[Extent, np.ndarray]]:
        """Its extents, and each one's part of a slot's memory."""
        at = 0
        for extent in self.extents:
            yield extent, memory[at : at + extent.nbytes]
            at += extent.nbytes


class Store(ExpertStore):
    """The experts of one layer, in the slots of all."""

    def __init__(self, residency: Streamed, layer: int, parts: Sequence[Parts], kernels: Kernels):
        self._residency, self._layer, self._kernels = residency, layer, kernels
        self._places = [Place(residency.files, expert) for expert in parts]
        self._asked: dict[int, Slot | None] = {}  # experts of this forward that were not given out yet
        self._guessed: list[Slot] = []
        self._first: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._places)

    @property
    def shape(self) -> tuple[int, int]:
        width, hidden = self._places[0].parts[0].shape
        return width, hidden

    @property
    def slot_bytes(self) -> int:
        return max(place.nbytes for place in self._places)

    def expert(self, index: int) -> Expert:
        """Usable until anything else is asked of the stores of this model."""
        (group,) = self.arrivals(np.array([index]))
        return group[index]

    def request(self, ids: np.ndarray) -> None:
        slots, traffic = self._residency.slots, self._residency.traffic
        counts = np.bincount(ids.ravel(), minlength=len(self))
        self._first, self._asked = ids, {}
        for e in np.flatnonzero(counts).tolist():
            slots.used((self._layer, e), int(counts[e]))
            slot = slots.find((self._layer, e))
            if slot is not None and slot.job is not None and slot.job.done and slot.job.error is not None:
                slots.give_back(slot)  # nobody was told of it: it may succeed now
                slot = None
            self._asked[e] = slot
            if slot is None:
                traffic.misses += 1
                continue
            slot.pinned = True
            there = slot.job is None or slot.job.done
            traffic.hits += there
            traffic.misses += not there
            if slot.guessed:
                self._came_true(slot)
            if not there and slot.job is not None:
                self._residency.reader.hurry(slot.job)
        self._drop_guesses()
        self._fetch()

    def _came_true(self, slot: Slot) -> None:
        """What was read ahead is asked for."""
        traffic, job = self._residency.traffic, slot.job
        saved = 0.0 if job is None or not job.begun else (job.ended or perf_counter()) - job.begun
        slot.guessed = False
        traffic.useful += 1
        traffic.saved_s += saved
        self._residency.ahead.useful(saved)

    def arrivals(self, ids: np.ndarray) -> Iterator[dict[int, Expert]]:
        if self._first is not ids:
            self.request(ids)
        self._first = None
        reader, traffic = self._residency.reader, self._residency.traffic
        try:
            while self._asked:
                group = {e: slot for e, slot in self._asked.items() if slot and (slot.job is None or slot.job.done)}
                if not group:
                    begun = perf_counter()
                    reader.wait(self._loading())
                    traffic.wait_s += perf_counter() - begun
                    self._fetch()
                    continue
                yield {e: self._weights(e, slot) for e, slot in group.items()}
                for e, given in group.items():
                    given.pinned = False
                    del self._asked[e]
                self._fetch()
        finally:
            for slot in self._asked.values():
                if slot is not None:
                    slot.pinned = False
            self._asked = {}

    def look_ahead(self, x: Any) -> None:
        residency = self._residency
        wanted = residency.ahead.wanted
        if not wanted or residency.rows > GUESSING_ROWS or self._layer + 1 == len(residency.stores):
            return
        following = residency.stores[self._layer + 1]
        if following.guess is not None:
            following.read_ahead(following.guess(x)[:, :wanted])

    def read_ahead(self, ids: np.ndarray) -> None:
        """Reads experts that may be asked for, when nothing else has to be read."""
        slots, traffic = self._residency.slots, self._residency.traffic
        for e in dict.fromkeys(ids.T.ravel().tolist()):  # those that rows want most come first
            if slots.find((self._layer, e)) is None:
                slot = slots.take((self._layer, e))
                if slot is None:
                    return
                slot.guessed = True
                self._guessed.append(slot)
                traffic.guesses += 1
                self._read(e, slot, urgent=False)

    def _drop_guesses(self) -> None:
        """What was guessed wrong and is not being read yet need not be read at all."""
        residency = self._residency
        slots, traffic = residency.slots, residency.traffic
        for slot in self._guessed:
            job = slot.job
            if slot.guessed and job is not None:
                if residency.reader.cancel(job):
                    traffic.dropped += 1
                    traffic.bytes_read -= job.nbytes
                    slots.give_back(slot)
                else:
                    traffic.vain += job.nbytes
                    residency.ahead.wasted(job.nbytes)
            slot.guessed = False
        self._guessed = []

    def _fetch(self) -> None:
        """Begins to read what is asked for and has no slot, as far as there are slots."""
        for e, slot in self._asked.items():
            if slot is None:
                taken = self._residency.slots.take((self._layer, e))
                if taken is None:
                    return
                taken.pinned = True
                self._asked[e] = taken
                self._read(e, taken, urgent=True)

    def _read(self, e: int, slot: Slot, urgent: bool) -> None:
        reads = [read for extent, memory in self._places[e].split(slot.memory) for read in extent.reads(memory)]
        slot.job = self._residency.reader.submit(reads, urgent)
        self._residency.traffic.bytes_read += slot.job.nbytes

    def _loading(self) -> list[Any]:
        """The reads to wait for: those asked for, or where there was no slot for any, those that hold one."""
        asked = [slot.job for slot in self._asked.values() if slot is not None]
        held = [slot.job for slot in self._residency.slots.slots if slot.job is not None and not slot.job.done]
        return asked or held

    def _weights(self, e: int, slot: Slot) -> Expert:
        if slot.job is not None and slot.job.error is not None:
            error = slot.job.error
            self._residency.settle()
            raise error
        if slot.weights is None:
            if slot.job is not None:
                self._residency.ahead.measured(slot.job.nbytes, slot.job.ended - slot.job.begun)
            place = self._places[e]
            memories = [memory for _, memory in place.split(slot.memory)]
            slot.weights = tuple(self._kernels.borrowed(part) for part in moved(place.parts, memories, place.where))
            slot.job = None
        return slot.weights
