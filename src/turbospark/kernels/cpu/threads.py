"""Threads that run one region of a kernel together.

A region is a callback `region(record, team, thread, threads)`. From a kernel:
    launch(team, region, record)    runs a region (its address) on all threads of the team, returns when all have ended
    wait(team, threads)             inside a region: goes on when all threads have come here
From Python: `team()` is the address of the team, `count()` how many threads it has, `set_count(n)` changes that.

The caller is thread 0; the others are Python threads inside a kernel without the GIL. Whoever waits looks again for a
short while and then sleeps. A region begins with those that have come when the caller has waited as long as the last
region took: on a busy machine a thread may be away for milliseconds. A region launched while another runs, from a
second Python thread, is run by its caller alone. The bits are the same for any number of threads.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading
from pathlib import Path

import numpy as np
from llvmlite import ir
from numba import types

from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu.compile import call_address, intrinsic, kernel, load_int
from turbospark.kernels.cpu.vector import I32, I64, Emit, Value, emitted

MANY, FEWEST = 20000, 100  # looks before sleeping: some 300 microseconds, as waking a thread takes up to 100, or 2
TOO_LONG = 1_000_000  # nanoseconds; another process has had the core of a thread that is waited for so long
MOST = 256
FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0

# bytes from the start of the team, apart from each other so that waiting for one does not disturb another
THREADS, TAKEN, LASTED, CLOCK, GENERATION, JOINED, START = range(0, 7 * 128, 128)
REGION, RECORD, RUNNING, DONE, ARRIVED, PHASE, SPINS = range(7 * 128, 14 * 128, 128)
SLEEPERS = 64  # bytes behind a number: how many sleep until it changes
OPEN = 1 << 16  # an offer is its generation times this, and how many have joined
DISMISSED = -1


@intrinsic
def _look(typingctx, address):
    """The int64 at an address, as another thread may just have written it."""

    def write(e: Emit, address):
        pointer = e.b.inttoptr(address, I64.as_pointer())
        return e.b.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), emitted(write)


@intrinsic
def _show(typingctx, address, value):
    """Writes an int64 so that other threads see it, and all that was written before it."""

    def write(e: Emit, address, value):
        e.b.store_atomic(value, e.b.inttoptr(address, I64.as_pointer()), "seq_cst", 8)

    return types.void(types.int64, types.int64), emitted(write)


@intrinsic
def _add(typingctx, address, value):
    """Adds to an int64 that others add to at the same time; what it was before."""

    def write(e: Emit, address, value):
        return e.b.atomic_rmw("add", e.b.inttoptr(address, I64.as_pointer()), value, "seq_cst")

    return types.int64(types.int64, types.int64), emitted(write)


@intrinsic
def _swap(typingctx, address, old, new):
    """Changes an int64 if it is `old`: whether it was, of all who try at once for one only."""

    def write(e: Emit, address, old, new):
        pointer = e.b.inttoptr(address, I64.as_pointer())
        return e.b.extract_value(e.b.cmpxchg(pointer, old, new, "seq_cst", "seq_cst"), 1)

    return types.boolean(types.int64, types.int64, types.int64), emitted(write)


@intrinsic
def _pause(typingctx):
    """A short rest between two looks."""

    def write(e: Emit) -> None:
        if e.b.module.triple.startswith(("x86", "i386", "i686")):
            e.b.call(e.function("llvm.x86.sse2.pause", ir.VoidType(), []), [])

    return types.void(), emitted(write)


@intrinsic
def _sleep(typingctx, address, old):
    """Sleeps until woken for an address, unless the number there is no longer `old`; may wake without a reason."""
    return types.void(types.int64, types.int64), emitted(_futex_wait if FUTEX else _doze)


@intrinsic
def _rouse(typingctx, address):
    """Wakes all that sleep for an address."""
    return types.void(types.int64), emitted(_futex_wake if FUTEX else lambda e, address: None)


def _futex_wait(e: Emit, address: Value, old: Value) -> None:
    _system_call(e, FUTEX, address, e.number(128), old)


def _futex_wake(e: Emit, address: Value) -> None:
    _system_call(e, FUTEX, address, e.number(129), e.number(MOST))


def _doze(e: Emit, address: Value, old: Value) -> None:
    """Where the system offers no better: a short sleep."""
    e.b.call(e.function("usleep", I32, [I32]), [I32(50)])


def _system_call(e: Emit, number: int, *arguments: Value) -> None:
    given = [e.number(number), *arguments, *[e.number(0)] * (6 - len(arguments))]
    e.b.call(e.function("syscall", I64, [I64] * len(given)), given)


@intrinsic
def _now(typingctx, team):
    """Nanoseconds of a clock that only goes forward."""

    def write(e: Emit, team):
        clock = I32(6 if sys.platform == "darwin" else 1)
        e.b.call(e.function("clock_gettime", I32, [I32, I64]), [clock, e.at(team, CLOCK)])
        seconds, rest = e.load(I64, team, CLOCK), e.load(I64, team, CLOCK + 8)
        return e.b.add(e.times(seconds, 1000000000), rest)

    return types.int64(types.int64), emitted(write)


@kernel
def _await(team, place, old):
    """Returns when the number at a place of the team is no longer `old`."""
    for _ in range(load_int(team + SPINS)):
        if _look(team + place) != old:
            return
        _pause()
    _add(team + place + SLEEPERS, 1)
    while _look(team + place) == old:
        _sleep(team + place, old)
    _add(team + place + SLEEPERS, -1)


@kernel
def _await_partner(team, place, old):
    """The same where the others are at work: where looking was in vain, it is done more shortly for some time."""
    if _look(team + place) != old:
        return
    begin = _now(team)
    _await(team, place, old)
    spins = load_int(team + SPINS)
    if _now(team) - begin > TOO_LONG:
        spins = max(FEWEST, spins // 4)
    else:
        spins = min(MANY, spins + spins // 64 + 1)
    _show(team + SPINS, spins)


@kernel
def _change(team, place, value):
    """Sets a number that others may wait for."""
    _show(team + place, value)
    if _look(team + place + SLEEPERS) > 0:
        _rouse(team + place)


@kernel
def _gathered(team, begin):
    """Closes the offer of a region when all have joined, or when it is time to begin: how many run it."""
    others = load_int(team + THREADS) - 1
    patience = load_int(team + LASTED)
    offer = _look(team + JOINED)
    while offer % OPEN < others and _now(team) - begin < patience:
        for _ in range(16):
            _pause()
            offer = _look(team + JOINED)
            if offer % OPEN == others:
                break
    while not _swap(team + JOINED, offer, 0):
        offer = _look(team + JOINED)
    return offer % OPEN + 1


@kernel
def launch(team, region, record):
    if load_int(team + THREADS) == 1 or not _swap(team + TAKEN, 0, 1):
        call_address(region, (record, team, 0, 1))
        return
    begin = _now(team)
    generation = load_int(team + GENERATION) + 1
    _show(team + JOINED, generation * OPEN)
    _change(team, GENERATION, generation)
    threads = _gathered(team, begin)
    if threads > 1:
        _show(team + REGION, region)
        _show(team + RECORD, record)
        _show(team + DONE, 0)
        _show(team + RUNNING, threads)
        _change(team, START, generation)
    work = _now(team)
    call_address(region, (record, team, 0, threads))
    done = _look(team + DONE)
    while threads > 1 and done < threads - 1:
        _await_partner(team, DONE, done)
        done = _look(team + DONE)
    _show(team + LASTED, _now(team) - work)
    _show(team + TAKEN, 0)


@kernel
def wait(team, threads):
    if threads == 1:
        return
    phase = _look(team + PHASE)
    if _add(team + ARRIVED, 1) == threads - 1:
        _show(team + ARRIVED, 0)
        _change(team, PHASE, phase + 1)
    else:
        _await_partner(team, PHASE, phase)


@kernel
def _serve(team):
    """What a thread of the team does all its life: it joins the regions that are offered, until it is dismissed."""
    generation = 0
    while True:
        _await(team, GENERATION, generation)
        generation = _look(team + GENERATION)
        if generation == DISMISSED:
            return
        offer = _look(team + JOINED)
        while offer // OPEN == generation and not _swap(team + JOINED, offer, offer + 1):
            offer = _look(team + JOINED)
        if offer // OPEN != generation:  # begun without this thread
            continue
        started = _look(team + START)
        while started != generation:
            _await_partner(team, START, started)
            started = _look(team + START)
        call_address(_look(team + REGION), (_look(team + RECORD), team, offer % OPEN + 1, _look(team + RUNNING)))
        _add(team + DONE, 1)
        if _look(team + DONE + SLEEPERS) > 0:
            _rouse(team + DONE)


@kernel
def _dismiss(team):
    """Ends the threads of a team that runs no region."""
    _change(team, GENERATION, DISMISSED)


class Team:
    """The memory of a team and its Python threads."""

    def __init__(self, threads: int):
        memory = np.zeros(15 * 128, np.uint8)
        self._memory = memory
        self.address = memory.ctypes.data + -memory.ctypes.data % 128
        self.threads = threads
        for place, value in ((THREADS, threads), (SPINS, MANY)):
            ctypes.c_int64.from_address(self.address + place).value = value
        self._others = [
            threading.Thread(target=_serve, args=(self.address,), name=f"kernels-{thread}", daemon=True)
            for thread in range(1, threads)
        ]
        for other in self._others:
            other.start()

    def stop(self) -> None:
        _dismiss(self.address)
        for other in self._others:
            other.join()
        self._others = []


_team: Team | None = None
_wanted: int | None = None
_lock = threading.Lock()


def team() -> int:
    """The address of this process's team, whose threads are started at the first use."""
    global _team, _wanted
    if _team is None:
        with _lock:
            if _team is None:
                _wanted = count()  # asked at every call from then on
                _team = Team(_wanted)
    return _team.address


def count() -> int:
    """How many threads regions are run by: what was set, or one for each core this process may use."""
    return _wanted if _wanted is not None else cores()


def set_count(threads: int) -> None:
    """Regions launched from now on have so many threads. Raises `bad_threads`."""
    global _team, _wanted
    if not 1 <= threads <= MOST:
        raise TurbosparkError("bad_threads", f"threads must be between 1 and {MOST}, {threads} asked")
    with _lock:
        _wanted = threads
        if _team is not None and _team.threads != threads:
            _team.stop()
            _team = None


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
        _team.stop()


def _forget() -> None:
    """A forked child has the team's memory but none of its threads."""
    global _team, _lock
    _team, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
