"""How fast a disk is, by the very reads of a run: the same places, sizes, order and threads, with nothing beside."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from turbospark.experts.files import pages
from turbospark.experts.reader import THREADS, Disk, Read, Reader


class Seen(NamedTuple):
    """A read, and when it was under way."""

    read: Read
    begun: float
    ended: float


class Recorded:
    """A disk that remembers what was read of it."""

    def __init__(self, disk: Any):
        self._disk, self.seen = disk, list[Seen]()

    def read(self, read: Read) -> None:
        begun = time.perf_counter()
        self._disk.read(read)
        self.seen.append(Seen(read, begun, time.perf_counter()))


def busy(seen: list[Seen]) -> float:
    """Seconds in which at least one read was under way."""
    total, end = 0.0, 0.0
    for begun, ended in sorted((one.begun, one.ended) for one in seen):
        total += max(0.0, ended - max(begun, end))
        end = max(end, ended)
    return total


def replay(seen: list[Seen], disk: Any = None, threads: int = THREADS) -> float:
    """Seconds that the same reads take with all of them waiting from the beginning, into memory of their own."""
    if not seen:
        return 0.0
    order = [one.read for one in sorted(seen, key=lambda one: one.begun)]
    size = max(read.memory.nbytes for read in order)
    memories = [pages(size) for _ in range(4 * threads)]
    for memory in memories:
        memory[:] = 0
    reads = [read._replace(memory=memories[i % len(memories)][: read.memory.nbytes]) for i, read in enumerate(order)]
    reader = Reader(disk or Disk(), threads)
    begun = time.perf_counter()
    job = reader.submit(reads)
    reader.wait([job])
    if job.error is not None:
        raise job.error
    return time.perf_counter() - begun
