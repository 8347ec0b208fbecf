"""Vectors along a row: eight floats at a time, and what is left of the row by itself."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from turbospark.kernels.cpu.vector import F32, I32, Emit, F32x8, I32x8, Value

VOID = ir.VoidType()


class Lanes:
    """Eight elements at `offset` (bytes) of rows of float32, or the last few of them: the other lanes hold zeros."""

    def __init__(self, e: Emit, offset: Value, left: Value | None = None):
        self.e, self.offset = e, offset
        self.mask = None if left is None else mask(e, left)

    def load(self, address: Value) -> Value:
        e = self.e
        if self.mask is None:
            return e.load(F32x8, address, self.offset)
        pointer = e.b.inttoptr(e.at(address, self.offset), F32x8.as_pointer())
        kinds = [pointer.type, I32, self.mask.type, F32x8]
        load = e.function("llvm.masked.load.v8f32.p0", F32x8, kinds)
        return e.b.call(load, [pointer, ir.Constant(I32, 1), self.mask, ir.Constant(F32x8, None)])

    def store(self, value: Value, address: Value) -> None:
        e = self.e
        if self.mask is None:
            e.store(value, address, self.offset)
            return
        pointer = e.b.inttoptr(e.at(address, self.offset), F32x8.as_pointer())
        store = e.function("llvm.masked.store.v8f32.p0", VOID, [F32x8, pointer.type, I32, self.mask.type])
        e.b.call(store, [value, pointer, ir.Constant(I32, 1), self.mask])


def mask(e: Emit, count: Value) -> Value:
    """True in the first `count` lanes."""
    return e.b.icmp_signed("<", ir.Constant(I32x8, list(range(8))), e.splat(e.b.trunc(count, I32), 8))


def along(e: Emit, count: Value, body: Callable[[Lanes], None]) -> None:
    """Emits `body` for every eight of `count` elements, in order, and once more for those left over."""
    whole = e.b.sdiv(count, e.number(8))
    left = e.b.srem(count, e.number(8))
    with e.loop(whole) as i:
        body(Lanes(e, e.times(i, 32)))
    with e.b.if_then(e.b.icmp_signed(">", left, e.number(0))):
        body(Lanes(e, e.times(whole, 32), left))


def sum_along(e: Emit, count: Value, term: Callable[[Lanes, Value], Value]) -> Value:
    """Eight running sums, `term(lanes, sums)` the next ones, added at last in the fixed tree of `Emit.total`."""
    sums = e.variable(F32x8)
    e.b.store(ir.Constant(F32x8, None), sums)
    along(e, count, lambda lanes: e.b.store(term(lanes, e.b.load(sums)), sums))
    return e.total(e.b.load(sums))


def number(value: float) -> Value:
    return ir.Constant(F32, value)
