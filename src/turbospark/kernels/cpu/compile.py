"""How the kernels are compiled and kept on disk.

Numba knows a cached function by its own file alone, but the vector instructions of a kernel come from other files and
from the level of the machine: all of them name the folder the cache lies in.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import ir
from numba import extending, types
from numba.core import event

from turbospark import environment
from turbospark.kernels.cpu.levels import level
from turbospark.kernels.cpu.progress import progress

intrinsic: Any = extending.intrinsic  # of `write(typing context, argument types)`, called without the context


@cache
def folder() -> Path | None:
    """Where compiled kernels of exactly this source, level and compiler lie; None where nothing can be written."""
    digest = hashlib.sha256(f"{level()} {numba.__version__} {llvmlite.__version__}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    path = environment.cache_folder() / f"kernels-{digest.hexdigest()[:16]}"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return path if os.access(path, os.W_OK) else None


@contextmanager
def _cached() -> Iterator[bool]:
    """Functions declared inside are kept in our folder; yields whether there is one."""
    config: Any = numba.config
    path, before = folder(), config.CACHE_DIR
    config.CACHE_DIR = str(path or "")
    try:
        yield path is not None
    finally:
        config.CACHE_DIR = before


class _Passes(event.Listener):
    """Hears of the passes of the compiler: none run for what comes from the cache."""

    def on_start(self, event: Any) -> None:
        progress.begins()

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:run_pass", _Passes())


def kernel(function: Callable) -> Any:
    """A compiled function of numbers and addresses that other kernels call; cached, runs without the GIL."""
    with _cached() as kept:
        return numba.njit(cache=kept, nogil=True, error_model="numpy")(function)


class Callback:
    """A compiled function known by its address, so that whoever calls it needs not be compiled with it."""

    def __init__(self, function: Callable, arguments: int):
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self._signature = types.void(*[types.int64] * arguments)

    @cached_property
    def _compiled(self) -> Any:
        with _cached() as kept:
            return numba.cfunc(self._signature, cache=kept, error_model="numpy")(self.__wrapped__)

    @property
    def address(self) -> int:
        """Compiles at the first use."""
        return self._compiled.address


def callback(function: Callable) -> Callback:
    """A kernel `f(int64, ...) -> None` to be called through its address."""
    return Callback(function, function.__code__.co_argcount)


@intrinsic
def call_address(typingctx, address, arguments):
    """Calls the callback at an address with a tuple of int64."""
    count = len(arguments)
    signature = types.void(types.int64, types.UniTuple(types.int64, count))

    def codegen(context, builder, _, values):
        target, packed = values
        i64 = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [i64] * count)
        function = builder.inttoptr(target, kind.as_pointer())
        builder.call(function, [builder.extract_value(packed, i) for i in range(count)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def load_int(typingctx, address):
    """The int64 at an address."""

    def codegen(context, builder, _, values):
        return builder.load(builder.inttoptr(values[0], ir.IntType(64).as_pointer()), align=1)

    return types.int64(types.int64), codegen
