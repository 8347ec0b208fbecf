"""Norms of one row: the squares are added in eight lanes and a fixed tree."""

from __future__ import annotations

from numba import types

from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.lanes import along, number, sum_along
from turbospark.kernels.cpu.vector import F32, Emit, Value, emitted


def _root(e: Emit, x: Value) -> Value:
    return e.call("llvm.sqrt.f32", F32, x)


def _squares(e: Emit, x: Value, count: Value) -> Value:
    def term(lanes, sums):
        value = lanes.load(x)
        return e.fma(value, value, sums)

    return sum_along(e, count, term)


@intrinsic
def rms_row(typingctx, x, weight, eps, out, count):
    """out = x / sqrt(mean(x^2) + eps) * weight over `count` floats; no weight where its address is 0. eps float32."""

    def write(e: Emit, x, weight, eps, out, count):
        mean = e.b.fdiv(_squares(e, x, count), e.b.sitofp(count, F32))
        factor = e.splat(e.b.fdiv(number(1.0), _root(e, e.b.fadd(mean, eps))), 8)
        with e.b.if_else(e.b.icmp_signed("==", weight, e.number(0))) as (plain, weighted):
            with plain:
                along(e, count, lambda lanes: lanes.store(e.b.fmul(lanes.load(x), factor), out))
            with weighted:
                times = lambda lanes: e.b.fmul(e.b.fmul(lanes.load(x), factor), lanes.load(weight))
                along(e, count, lambda lanes: lanes.store(times(lanes), out))

    return types.void(types.int64, types.int64, types.float32, types.int64, types.int64), emitted(write)


@intrinsic
def l2_row(typingctx, x, eps, scale, out, count):
    """out = x * scale / sqrt(sum(x^2) + eps) over `count` floats; eps and scale float32."""

    def write(e: Emit, x, eps, scale, out, count):
        factor = e.splat(e.b.fdiv(scale, _root(e, e.b.fadd(_squares(e, x, count), eps))), 8)
        along(e, count, lambda lanes: lanes.store(e.b.fmul(lanes.load(x), factor), out))

    return types.void(types.int64, types.float32, types.float32, types.int64, types.int64), emitted(write)
