"""The gated delta rule on some columns of one head's state [key width, value width]: every column is its own sum.

In each column, with t = S * decay rounded once:

    u = beta * (v - sum of k[i] * t[i]),  S[i] = fma(k[i], u, t[i]),  out = sum of q[i] * S[i]

and both sums run over i in order. A replayed step does the same to S, so that it ends in the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.lanes import Lanes
from turbospark.kernels.cpu.vector import F32, Emit, F32x8, Value, emitted

TOGETHER = 4  # vectors of columns whose sums are formed side by side


@intrinsic
def step_row(typingctx, state, key_width, value_width, k, q, v, decay, beta, u, out):
    """One step of all columns; decay and beta are float32, the rest addresses and sizes. u and out [value width]."""

    def write(e: Emit, state, key_width, value_width, k, q, v, decay, beta, u, out):
        decays, betas = e.splat(decay, 8), e.splat(beta, 8)

        def columns(group: list[Lanes]) -> None:
            sums = _sums(e, len(group))
            with e.loop(key_width) as i:
                row, key = e.at(state, e.times(e.b.mul(i, value_width), 4)), e.splat(e.load(F32, k, e.times(i, 4)), 8)
                for lanes, cell in zip(group, sums, strict=True):
                    e.b.store(e.fma(key, e.b.fmul(lanes.load(row), decays), e.b.load(cell)), cell)
            changes = []
            for lanes, cell in zip(group, sums, strict=True):
                changes.append(e.b.fmul(betas, e.b.fsub(lanes.load(v), e.b.load(cell))))
                lanes.store(changes[-1], u)
                e.b.store(ir.Constant(F32x8, None), cell)
            with e.loop(key_width) as i:
                row = e.at(state, e.times(e.b.mul(i, value_width), 4))
                key, query = (e.splat(e.load(F32, address, e.times(i, 4)), 8) for address in (k, q))
                for lanes, cell, change in zip(group, sums, changes, strict=True):
                    value = e.fma(key, change, e.b.fmul(lanes.load(row), decays))
                    lanes.store(value, row)
                    e.b.store(e.fma(query, value, e.b.load(cell)), cell)
            for lanes, cell in zip(group, sums, strict=True):
                lanes.store(e.b.load(cell), out)

        _by_columns(e, value_width, columns)

    signature = [*[types.int64] * 6, types.float32, types.float32, types.int64, types.int64]
    return types.void(*signature), emitted(write)


@intrinsic
def replay_row(typingctx, state, key_width, value_width, k, u, decay):
    """What `step_row` did to the state, from its u."""

    def write(e: Emit, state, key_width, value_width, k, u, decay):
        decays = e.splat(decay, 8)

        def columns(group: list[Lanes]) -> None:
            changes = [lanes.load(u) for lanes in group]
            with e.loop(key_width) as i:
                row, key = e.at(state, e.times(e.b.mul(i, value_width), 4)), e.splat(e.load(F32, k, e.times(i, 4)), 8)
                for lanes, change in zip(group, changes, strict=True):
                    lanes.store(e.fma(key, change, e.b.fmul(lanes.load(row), decays)), row)

        _by_columns(e, value_width, columns)

    return types.void(*[types.int64] * 5, types.float32), emitted(write)


def _sums(e: Emit, count: int) -> list[Any]:
    cells = [e.variable(F32x8) for _ in range(count)]
    for cell in cells:
        e.b.store(ir.Constant(F32x8, None), cell)
    return cells


def _by_columns(e: Emit, width: Value, body: Callable[[list[Lanes]], None]) -> None:
    """Emits `body` for four vectors of columns at a time, then for one, then for the columns left over."""
    wide = 8 * TOGETHER
    whole = e.b.sdiv(width, e.number(wide))
    with e.loop(whole) as i:
        body([Lanes(e, e.at(e.times(i, 4 * wide), 32 * j)) for j in range(TOGETHER)])
    done = e.times(whole, wide)
    rest = e.b.sub(width, done)
    single = e.b.sdiv(rest, e.number(8))
    with e.loop(single) as i:
        body([Lanes(e, e.times(e.b.add(done, e.times(i, 8)), 4))])
    left = e.b.srem(rest, e.number(8))
    with e.b.if_then(e.b.icmp_signed(">", left, e.number(0))):
        body([Lanes(e, e.times(e.b.sub(width, left), 4), left)])
