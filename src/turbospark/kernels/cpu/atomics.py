"""What threads need that share memory: numbers that change in one piece, short rests, sleep and waking."""

from __future__ import annotations

import platform
import sys

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.vector import I32, I64, Emit, Value, emitted

# the number of the futex call; where there is none, whoever sleeps wakes up again and again
FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
ALL = 1 << 30


@intrinsic
def look(typingctx, address):
    """The int64 at an address, as another thread may just have written it."""

    def write(e: Emit, address):
        pointer = e.b.inttoptr(address, I64.as_pointer())
        return e.b.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), emitted(write)


@intrinsic
def show(typingctx, address, value):
    """Writes an int64 so that other threads see it, and all that was written before it."""

    def write(e: Emit, address, value):
        e.b.store_atomic(value, e.b.inttoptr(address, I64.as_pointer()), "seq_cst", 8)

    return types.void(types.int64, types.int64), emitted(write)


@intrinsic
def add(typingctx, address, value):
    """Adds to an int64 that others add to at the same time; what it was before."""

    def write(e: Emit, address, value):
        return e.b.atomic_rmw("add", e.b.inttoptr(address, I64.as_pointer()), value, "seq_cst")

    return types.int64(types.int64, types.int64), emitted(write)


@intrinsic
def swap(typingctx, address, old, new):
    """Changes an int64 if it is `old`: whether it was, of all who try at once for one only."""

    def write(e: Emit, address, old, new):
        pointer = e.b.inttoptr(address, I64.as_pointer())
        return e.b.extract_value(e.b.cmpxchg(pointer, old, new, "seq_cst", "seq_cst"), 1)

    return types.boolean(types.int64, types.int64, types.int64), emitted(write)


@intrinsic
def pause(typingctx):
    """A short rest between two looks."""

    def write(e: Emit) -> None:
        if e.b.module.triple.startswith(("x86", "i386", "i686")):
            e.b.call(e.function("llvm.x86.sse2.pause", ir.VoidType(), []), [])

    return types.void(), emitted(write)


@intrinsic
def sleep(typingctx, address, old):
    """Sleeps until woken for an address, unless the number there is no longer `old`; may wake without a reason."""
    return types.void(types.int64, types.int64), emitted(_futex_wait if FUTEX else _doze)


@intrinsic
def rouse(typingctx, address):
    """Wakes all that sleep for an address."""
    return types.void(types.int64), emitted(_futex_wake if FUTEX else lambda e, address: None)


def _futex_wait(e: Emit, address: Value, old: Value) -> None:
    _system_call(e, FUTEX, address, e.number(128), old)


def _futex_wake(e: Emit, address: Value) -> None:
    _system_call(e, FUTEX, address, e.number(129), e.number(ALL))


def _doze(e: Emit, address: Value, old: Value) -> None:
    """Where the system offers no better: a short sleep."""
    e.b.call(e.function("usleep", I32, [I32]), [I32(50)])


def _system_call(e: Emit, number: int, *arguments: Value) -> None:
    given = [e.number(number), *arguments, *[e.number(0)] * (6 - len(arguments))]
    e.b.call(e.function("syscall", I64, [I64] * len(given)), given)


@intrinsic
def now(typingctx):
    """Nanoseconds of a clock that only goes forward."""

    def write(e: Emit):
        clock = I32(6 if sys.platform == "darwin" else 1)
        time = e.b.ptrtoint(e.variable(I64, 2), I64)
        e.b.call(e.function("clock_gettime", I32, [I32, I64]), [clock, time])
        return e.b.add(e.times(e.load(I64, time), 1000000000), e.load(I64, time, 8))

    return types.int64(), emitted(write)
