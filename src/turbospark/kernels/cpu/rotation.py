"""Rotation of one head's row by its position."""

from __future__ import annotations

from numba import types

from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.vector import F32, Emit, emitted


@intrinsic
def rotate_row(typingctx, x, cos, sin, pairs, interleaved):
    """Turns the first 2 * pairs elements of x in place; cos and sin are the addresses of the position's angles.

    Pairs are (2i, 2i + 1) where `interleaved` is 1, else (i, i + pairs).
    """

    def write(e: Emit, x, cos, sin, pairs, interleaved):
        step = e.times(e.at(interleaved, 1), 4)
        near = e.b.icmp_signed("==", interleaved, e.number(1))
        apart = e.b.select(near, e.number(4), e.times(pairs, 4))
        with e.loop(pairs) as i:
            first = e.at(x, e.b.mul(i, step))
            second = e.at(first, apart)
            a, b = e.load(F32, first), e.load(F32, second)
            c, s = e.load(F32, cos, e.times(i, 4)), e.load(F32, sin, e.times(i, 4))
            e.store(e.b.fsub(e.b.fmul(a, c), e.b.fmul(b, s)), first)
            e.store(e.b.fadd(e.b.fmul(b, c), e.b.fmul(a, s)), second)

    return types.void(*[types.int64] * 5), emitted(write)
