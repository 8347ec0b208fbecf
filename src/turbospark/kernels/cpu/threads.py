"""Threads that run one region of a kernel together.

A region is a callback `region(record, team, thread, threads)`. From a kernel:
    launch(team, region, record)    runs a region (its address) on all threads of the team, returns when all have ended
    wait(team, threads)             inside a region: goes on when all threads have come here
From Python: `team()` is the address of the team, `count()` how many threads it has, `set_count(n)` changes that.

The caller is thread 0; the others are Python threads inside a kernel without the GIL. Whoever waits looks again for a
short while and then sleeps. A region begins with those that have come when the caller has waited as long as the last
region took, or as waking takes where one of the last dozen took that long: on a busy machine a thread may be away for
milliseconds. A region launched while another runs, from a second Python thread, is run by its caller alone.
The bits are the same for any number of threads.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from pathlib import Path

import numpy as np

from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu.atomics import add, look, now, pause, rouse, show, sleep, swap
from turbospark.kernels.cpu.compile import call_address, kernel, load_int

MANY, FEWEST = 20000, 100  # looks before sleeping: some 300 microseconds, as waking a thread takes up to 100, or 2
WAKING = 200_000  # nanoseconds that a thread which sleeps takes to come, at most, where a core is free
TOO_LONG = 1_000_000  # nanoseconds; another process has had the core of a thread that is waited for so long
MOST = 256

# bytes from the start of the team, apart from each other so that waiting for one does not disturb another
THREADS, TAKEN, LASTED, GENERATION, JOINED, START, REGION = range(0, 7 * 128, 128)
RECORD, RUNNING, DONE, ARRIVED, PHASE, SPINS, DISMISSED, LATELY = range(7 * 128, 15 * 128, 128)
SLEEPERS = 64  # bytes behind a number: how many sleep until it changes
OPEN = 1 << 16  # an offer is its generation times this, and how many have joined


@kernel
def _await(team, place, old):
    """Returns when the number at a place of the team is no longer `old`."""
    for _ in range(load_int(team + SPINS)):
        if look(team + place) != old:
            return
        pause()
    add(team + place + SLEEPERS, 1)
    while look(team + place) == old:
        sleep(team + place, old)
    add(team + place + SLEEPERS, -1)


@kernel
def _await_partner(team, place, old):
    """The same where the others are at work: where looking was in vain, it is done more shortly for some time."""
    if look(team + place) != old:
        return
    begin = now()
    _await(team, place, old)
    spins = load_int(team + SPINS)
    if now() - begin > TOO_LONG:
        spins = max(FEWEST, spins // 4)
    else:
        spins = min(MANY, spins + spins // 64 + 1)
    show(team + SPINS, spins)


@kernel
def _change(team, place, value):
    """Sets a number that others may wait for."""
    show(team + place, value)
    if look(team + place + SLEEPERS) > 0:
        rouse(team + place)


@kernel
def _gathered(team, begin):
    """Closes the offer of a region when all have joined, or when it is time to begin: how many run it."""
    others = load_int(team + THREADS) - 1
    patience = max(load_int(team + LASTED), min(load_int(team + LATELY), WAKING))
    offer = look(team + JOINED)
    while offer % OPEN < others and now() - begin < patience:
        for _ in range(16):
            pause()
            offer = look(team + JOINED)
            if offer % OPEN == others:
                break
    while not swap(team + JOINED, offer, 0):
        offer = look(team + JOINED)
    return offer % OPEN + 1


@kernel
def launch(team, region, record):
    if load_int(team + THREADS) == 1 or not swap(team + TAKEN, 0, 1):
        call_address(region, (record, team, 0, 1))
        return
    begin = now()
    generation = load_int(team + GENERATION) + 1
    show(team + JOINED, generation * OPEN)
    _change(team, GENERATION, generation)
    threads = _gathered(team, begin)
    if threads > 1:
        show(team + REGION, region)
        show(team + RECORD, record)
        show(team + DONE, 0)
        show(team + RUNNING, threads)
        _change(team, START, generation)
    work = now()
    call_address(region, (record, team, 0, threads))
    done = look(team + DONE)
    while threads > 1 and done < threads - 1:
        _await_partner(team, DONE, done)
        done = look(team + DONE)
    lasted, lately = now() - work, load_int(team + LATELY)
    show(team + LASTED, lasted)
    show(team + LATELY, max(lasted, lately - lately // 4))
    show(team + TAKEN, 0)


@kernel
def wait(team, threads):
    if threads == 1:
        return
    phase = look(team + PHASE)
    if add(team + ARRIVED, 1) == threads - 1:
        show(team + ARRIVED, 0)
        _change(team, PHASE, phase + 1)
    else:
        _await_partner(team, PHASE, phase)


@kernel
def _serve(team, generation):
    """What a thread of the team does all its life: it joins the regions that are offered, until it is dismissed."""
    while True:
        _await(team, GENERATION, generation)
        generation = look(team + GENERATION)
        if look(team + DISMISSED) != 0:
            return
        offer = look(team + JOINED)
        while offer // OPEN == generation and not swap(team + JOINED, offer, offer + 1):
            offer = look(team + JOINED)
        if offer // OPEN != generation:  # begun without this thread
            continue
        started = look(team + START)
        while started != generation:
            _await_partner(team, START, started)
            started = look(team + START)
        call_address(look(team + REGION), (look(team + RECORD), team, offer % OPEN + 1, look(team + RUNNING)))
        add(team + DONE, 1)
        if look(team + DONE + SLEEPERS) > 0:
            rouse(team + DONE)


@kernel
def _dismiss(team):
    """Ends the threads of a team that runs no region."""
    show(team + DISMISSED, 1)
    _change(team, GENERATION, look(team + GENERATION) + 1)


class Team:
    """The memory of a team, at one address for good, and its Python threads."""

    def __init__(self) -> None:
        memory = np.zeros(16 * 128, np.uint8)
        self._memory = memory
        self.address = memory.ctypes.data + -memory.ctypes.data % 128
        self._set(THREADS, 1)
        self._set(SPINS, MANY)
        self._others: list[threading.Thread] = []

    @property
    def threads(self) -> int:
        return 1 + len(self._others)

    def resize(self, threads: int) -> None:
        """No region may be running."""
        _dismiss(self.address)
        for other in self._others:
            other.join()
        self._set(DISMISSED, 0)
        self._set(THREADS, threads)
        given = (self.address, ctypes.c_int64.from_address(self.address + GENERATION).value)
        names = (f"kernels-{thread}" for thread in range(1, threads))
        self._others = [threading.Thread(target=_serve, args=given, name=name, daemon=True) for name in names]
        for other in self._others:
            other.start()

    def _set(self, place: int, value: int) -> None:
        ctypes.c_int64.from_address(self.address + place).value = value


_team: Team | None = None
_wanted: int | None = None
_lock = threading.Lock()


def team() -> int:
    """The address of this process's team, the same for good; its threads are started at the first use."""
    global _team
    if _team is None:
        with _lock:
            if _team is None:
                _team = Team()
                _team.resize(count())
    return _team.address


def count() -> int:
    """How many threads regions are run by: what was set, or one for each core this process may use."""
    return _wanted if _wanted is not None else cores()


def set_count(threads: int) -> None:
    """Regions launched from now on have at most so many threads; none may be running. Raises `bad_threads`.

    Memory that a region shares out by thread must have room for all of them.
    """
    global _wanted
    if not 1 <= threads <= MOST:
        raise TurbosparkError("bad_threads", f"threads must be between 1 and {MOST}, {threads} asked")
    with _lock:
        _wanted = threads
        if _team is not None and _team.threads != threads:
            _team.resize(threads)


def cores(root: Path = Path("/")) -> int:
    """Cores this process may use: two hardware threads of one core share the units the kernels need and count once."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:
        return os.cpu_count() or 1
    siblings = set()
    for cpu in usable:
        file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings.add(file.read_text().strip() if file.exists() else str(cpu))
    return max(1, min(len(siblings), MOST))


@atexit.register
def _stop() -> None:
    """A thread inside a kernel must not outlive the kernel's code."""
    if _team is not None:
        _team.resize(1)


def _forget() -> None:
    """A forked child has the team's memory but none of its threads."""
    global _team, _lock
    _team, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
