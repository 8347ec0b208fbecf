"""Reads at given places of files, several at once, past the page cache where the file system allows it."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from turbospark.errors import TurbosparkError

PAGE = 4096  # direct reads begin and end at multiples of it, in the file and in memory
THREADS = 4  # reads at once: one keeps a disk busy half of the time
DIRECT = getattr(os, "O_DIRECT", 0)


class Read(NamedTuple):
    """Bytes of a file from `offset` to memory; the first `needed` of them must be there. `what` is in them."""

    file: Any
    offset: int
    memory: np.ndarray
    needed: int
    what: str


@dataclass(eq=False)
class Job:
    """Reads that belong together. `error` is what the first that failed raised; begun and ended: when, 0: not yet."""

    left: int
    nbytes: int
    urgent: bool = True
    begun: float = 0.0
    ended: float = 0.0
    error: TurbosparkError | None = None

    @property
    def done(self) -> bool:
        return self.left == 0


class Disk:
    """Positional reads, direct where the file system has them; `note` is told once where it has not."""

    def __init__(self, note: Callable[[str], None] = lambda text: None):
        self._note, self._told = note, False
        self._lock = threading.Lock()
        self._direct: dict[int, int] = {}  # by a file's descriptor: one for direct reads, or -1
        self._open: list[int] = []
        weakref.finalize(self, _close, self._open)

    def read(self, read: Read) -> None:
        """Fills the memory as far as the file goes. Raises `file_cut`, `file_changed`, `file_unreadable`."""
        file, got, size = read.file, 0, read.memory.nbytes
        try:
            direct = self._descriptor(file)
            while got < size and direct >= 0:
                count = self._once(direct, read, got)
                got += count
                if count <= 0 or count % 512:  # the end of the file, a short read, or no direct reads after all
                    break
            while got < read.needed:
                count = os.preadv(file.descriptor, [read.memory[got:].data], read.offset + got)
                if count == 0:
                    break
                got += count
        except OSError as error:
            message = f"{file.path} cannot be read: tensor {read.what} at byte {read.offset}: {error.strerror}"
            raise TurbosparkError("file_unreadable", message) from None
        if got < read.needed:
            message = f"{file.path} was cut while open: tensor {read.what} needs {read.needed} bytes at byte "
            raise TurbosparkError("file_cut", f"{message}{read.offset}, has {got}", "open it again")
        try:
            file.check_unchanged()
        except TurbosparkError as error:
            raise TurbosparkError(error.code, f"{error.message}; tensor {read.what} was read", error.hint) from None

    def _once(self, direct: int, read: Read, got: int) -> int:
        try:
            return os.preadv(direct, [read.memory[got:].data], read.offset + got)
        except OSError as error:
            self._buffered(read.file, error)
            return 0

    def _descriptor(self, file: Any) -> int:
        """For direct reads of the same file, whatever its name leads to by now."""
        with self._lock:
            found = self._direct.get(file.descriptor)
        if found is not None:
            return found
        try:
            if not DIRECT:
                raise OSError(0, "this system has none")
            found = os.open(f"/proc/self/fd/{file.descriptor}", os.O_RDONLY | DIRECT)
        except OSError as error:
            self._buffered(file, error)
            return -1
        with self._lock:
            self._open.append(found)
            return self._direct.setdefault(file.descriptor, found)

    def _buffered(self, file: Any, error: OSError) -> None:
        with self._lock:
            self._direct[file.descriptor] = -1
            told, self._told = self._told, True
        if not told:
            self._note(f"no direct reads of {file.path.name} ({error.strerror}): experts go through the page cache")


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@dataclass
class _Queue:
    """What reader and threads share, so that the threads end with the reader."""

    disk: Any
    changed: threading.Condition = field(default_factory=threading.Condition)
    urgent: deque[tuple[Job, Read]] = field(default_factory=deque)
    later: deque[tuple[Job, Read]] = field(default_factory=deque)
    closed: bool = False

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def serve(self) -> None:
        while True:
            with self.changed:
                while not (self.urgent or self.later or self.closed):
                    self.changed.wait()
                if self.closed:
                    return
                job, read = (self.urgent or self.later).popleft()
                job.begun = job.begun or perf_counter()
            error = None
            try:
                if job.error is None:
                    self.disk.read(read)
            except TurbosparkError as caught:
                error = caught
            except Exception as caught:  # whoever waits must learn of it
                error = TurbosparkError("file_unreadable", f"tensor {read.what} cannot be read: {caught}")
            with self.changed:
                job.error = job.error or error
                job.left -= 1
                if job.left == 0:
                    job.ended = perf_counter()
                    self.changed.notify_all()


class Reader:
    """A pool of threads that read. Jobs end in any order, urgent ones are begun first."""

    def __init__(self, disk: Any = None, threads: int = THREADS):
        self._queue = _Queue(disk or Disk())
        self._wanted, self._threads = threads, list[threading.Thread]()
        weakref.finalize(self, self._queue.close)

    @property
    def disk(self) -> Any:
        return self._queue.disk

    @disk.setter
    def disk(self, disk: Any) -> None:
        self._queue.disk = disk

    def submit(self, reads: Sequence[Read], urgent: bool = True) -> Job:
        job = Job(len(reads), sum(read.memory.nbytes for read in reads), urgent)
        queue = self._queue
        if not self._threads:
            make = lambda i: threading.Thread(target=queue.serve, name=f"reader-{i}", daemon=True)
            self._threads = [make(i) for i in range(self._wanted)]
            for thread in self._threads:
                thread.start()
        with queue.changed:
            (queue.urgent if urgent else queue.later).extend((job, read) for read in reads)
            queue.changed.notify(len(reads))
        return job

    def hurry(self, job: Job) -> None:
        """Makes a job urgent."""
        queue = self._queue
        with queue.changed:
            if job.urgent:
                return
            job.urgent = True
            queue.urgent.extend(pair for pair in queue.later if pair[0] is job)
            queue.later = deque(pair for pair in queue.later if pair[0] is not job)

    def cancel(self, job: Job) -> bool:
        """Takes back a job that is not urgent and not begun; False where it is too late."""
        queue = self._queue
        with queue.changed:
            if job.begun or job.urgent:
                return False
            queue.later = deque(pair for pair in queue.later if pair[0] is not job)
            return True

    def wait(self, jobs: Iterable[Job]) -> None:
        """Returns when at least one of them is done; at once when there are none."""
        jobs = list(jobs)
        with self._queue.changed:
            while jobs and not any(job.done for job in jobs):
                self._queue.changed.wait()
