"""Records: what a kernel needs to know, int64 fields behind each other that Python fills and kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.vector import F32, I64, Emit, emitted

# what every sublayer's record begins with: set at each call
CALL = ("rows", "x", "y", "out", "memory")
ROWS, X, Y, OUT, MEMORY = range(len(CALL))


class Record:
    """Fields by name, and tables behind them; a float is kept as the bits of a float32.

    keep: whatever the addresses in it point to.
    """

    def __init__(self, names: tuple[str, ...], keep: Any = None, **values: int | float):
        self.names, self.keep = names, keep
        self.fields = np.zeros(len(names), np.int64)
        self.address: int = self.fields.ctypes.data
        for name, value in values.items():
            self.set(name, value)

    @staticmethod
    def of(names: tuple[str, ...], values: Sequence[int | float], keep: Any = None) -> Record:
        return Record(names, keep, **dict(zip(names, values, strict=True)))

    def set(self, name: str, value: int | float) -> None:
        self.fields[self.names.index(name)] = bits(value) if isinstance(value, float) else value

    def append(self, table: Sequence[Sequence[int]]) -> None:
        """Puts rows of int64 behind the fields."""
        self.fields = np.concatenate([self.fields, np.asarray(table, np.int64).ravel()])
        self.address = self.fields.ctypes.data


def bits(value: float) -> int:
    """Of the float32 nearest to a number, as `real` reads them."""
    return int(np.float32(value).view(np.int32))


@intrinsic
def get(typingctx, record, field):
    """The int64 of a field."""

    def write(e: Emit, record, field):
        return e.load(I64, e.at(record, e.times(field, 8)))

    return types.int64(types.int64, types.int64), emitted(write)


@intrinsic
def put(typingctx, record, field, value):
    """Sets a field to an int64."""

    def write(e: Emit, record, field, value):
        e.store(value, e.at(record, e.times(field, 8)))

    return types.void(types.int64, types.int64, types.int64), emitted(write)


@intrinsic
def real(typingctx, record, field):
    """The float32 of a field."""

    def write(e: Emit, record, field):
        return e.load(F32, e.at(record, e.times(field, 8)))

    return types.float32(types.int64, types.int64), emitted(write)


@intrinsic
def load(typingctx, address):
    """The float32 at an address."""
    return types.float32(types.int64), emitted(lambda e, address: e.load(F32, address))


@intrinsic
def store(typingctx, address, value):
    """Writes a float32 to an address."""
    return types.void(types.int64, types.float32), emitted(lambda e, address, value: e.store(value, address))
