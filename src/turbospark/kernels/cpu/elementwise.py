"""Rows of float32 element by element: each function takes addresses of rows and how many elements they have."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.elementary import ACTIVATIONS, CODE, select, sigmoid, silu, tanh
from turbospark.kernels.cpu.lanes import Lanes, along
from turbospark.kernels.cpu.levels import level
from turbospark.kernels.cpu.vector import F16, Emit, F32x8, emitted


@intrinsic
def zero_row(typingctx, out, count):
    """out = 0."""

    def write(e: Emit, out, count):
        along(e, count, lambda lanes: lanes.store(ir.Constant(F32x8, None), out))

    return types.void(types.int64, types.int64), emitted(write)


@intrinsic
def copy_row(typingctx, x, out, count):
    """out = x."""

    def write(e: Emit, x, out, count):
        along(e, count, lambda lanes: lanes.store(lanes.load(x), out))

    return types.void(*[types.int64] * 3), emitted(write)


@intrinsic
def divide_row(typingctx, x, by, out, count):
    """out = x / by; by float32."""

    def write(e: Emit, x, by, out, count):
        divisor = e.splat(by, 8)
        along(e, count, lambda lanes: lanes.store(e.b.fdiv(lanes.load(x), divisor), out))

    return types.void(types.int64, types.float32, types.int64, types.int64), emitted(write)


@intrinsic
def gate_row(typingctx, activation, gate, up, out, count):
    """out = act(gate) * up; activation is a CODE."""

    def write(e: Emit, activation, gate, up, out, count):
        for name, function in ACTIVATIONS.items():
            with e.b.if_then(e.b.icmp_signed("==", activation, e.number(CODE[name]))):

                def body(lanes: Lanes, function=function) -> None:
                    lanes.store(e.b.fmul(function(e, lanes.load(gate)), lanes.load(up)), out)

                along(e, count, body)

    return types.void(*[types.int64] * 5), emitted(write)


@intrinsic
def sigmoid_row(typingctx, x, y, out, count):
    """out = sigmoid(x) * y, or sigmoid(x) where y is 0."""

    def write(e: Emit, x, y, out, count):
        with e.b.if_else(e.b.icmp_signed("==", y, e.number(0))) as (alone, times):
            with alone:
                along(e, count, lambda lanes: lanes.store(sigmoid(e, lanes.load(x)), out))
            with times:
                along(e, count, lambda lanes: lanes.store(e.b.fmul(sigmoid(e, lanes.load(x)), lanes.load(y)), out))

    return types.void(*[types.int64] * 4), emitted(write)


@intrinsic
def softcap_row(typingctx, x, cap, out, count):
    """out = tanh(x / cap) * cap; cap float32."""

    def write(e: Emit, x, cap, out, count):
        caps = e.splat(cap, 8)
        cut = lambda value: e.b.fmul(tanh(e, e.b.fdiv(value, caps)), caps)
        along(e, count, lambda lanes: lanes.store(cut(lanes.load(x)), out))

    return types.void(types.int64, types.float32, types.int64, types.int64), emitted(write)


@intrinsic
def add_row(typingctx, x, y, out, count):
    """out = x + y."""

    def write(e: Emit, x, y, out, count):
        along(e, count, lambda lanes: lanes.store(e.b.fadd(lanes.load(x), lanes.load(y)), out))

    return types.void(*[types.int64] * 4), emitted(write)


@intrinsic
def cache_row(typingctx, element, x, out, count):
    """Writes a row to a cache of numbers of `element` bytes; what float16 cannot hold becomes its largest number.

    The cached row has room for whole vectors of eight, those beyond `count` become zeros.
    """

    def write(e: Emit, element, x, out, count):
        largest = e.fill(F32x8, 65504.0)

        def half(lanes: Lanes) -> None:
            value = lanes.load(x)
            value = select(e, ">", value, largest, largest, value)
            value = select(e, "<", value, e.b.fneg(largest), e.b.fneg(largest), value)
            e.store(e.b.fptrunc(value, ir.VectorType(F16, 8)), out, e.b.sdiv(lanes.offset, e.number(2)))

        with e.b.if_else(e.b.icmp_signed("==", element, e.number(2))) as (halves, floats):
            with halves:
                if level() != "generic":  # which caches float32
                    along(e, count, half)
            with floats:
                along(e, count, lambda lanes: e.store(lanes.load(x), out, lanes.offset))

    return types.void(*[types.int64] * 4), emitted(write)


@intrinsic
def add_product_row(typingctx, x, y, out, count):
    """out = x * y + out, rounded once."""

    def write(e: Emit, x, y, out, count):
        along(e, count, lambda lanes: lanes.store(e.fma(lanes.load(x), lanes.load(y), lanes.load(out)), out))

    return types.void(*[types.int64] * 4), emitted(write)


@intrinsic
def add_scaled_row(typingctx, x, scale, out, count):
    """out = x * scale + out, rounded once; scale float32."""

    def write(e: Emit, x, scale, out, count):
        scales = e.splat(scale, 8)
        along(e, count, lambda lanes: lanes.store(e.fma(lanes.load(x), scales, lanes.load(out)), out))

    return types.void(types.int64, types.float32, types.int64, types.int64), emitted(write)


@intrinsic
def silu_row(typingctx, x, out, count):
    """out = x sigmoid(x)."""

    def write(e: Emit, x, out, count):
        along(e, count, lambda lanes: lanes.store(silu(e, lanes.load(x)), out))

    return types.void(*[types.int64] * 3), emitted(write)
