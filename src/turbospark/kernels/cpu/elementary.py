"""Elementary functions of float32 vectors. Every lane gets the same bits from the same value, wherever it lies."""

from __future__ import annotations

import math

from llvmlite import ir

from turbospark.kernels.cpu.vector import I32, Emit, F32x8, Value

LOWEST, HIGHEST = -87.0, 88.0  # beyond them exp stays where it is: no zeros, no infinities
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.428606765330187e-06
TERMS = [1 / math.factorial(n) for n in range(7, -1, -1)]
ROUNDING = 12582912.0  # 1.5 * 2**23: adding it rounds to a whole number, held in the low bits


def exp(e: Emit, x: Value) -> Value:
    """e^x within 1.5e-7 of itself for x in -87..88: 2^n times the Taylor polynomial of what is left; exp(0) = 1."""
    fill = lambda value: e.fill(x.type, value)
    ints = ir.VectorType(I32, x.type.count)
    x = select(e, "<", x, fill(LOWEST), fill(LOWEST), x)
    x = select(e, ">", x, fill(HIGHEST), fill(HIGHEST), x)
    shifted = e.fma(x, fill(1 / math.log(2)), fill(ROUNDING))
    n = e.b.fsub(shifted, fill(ROUNDING))
    r = e.fma(n, fill(-LN2_LOW), e.fma(n, fill(-LN2_HIGH), x))
    p = fill(TERMS[0])
    for term in TERMS[1:]:
        p = e.fma(p, r, fill(term))
    power = e.left(e.b.add(e.cast(shifted, ints), e.fill(ints, 127)), 23)
    return e.b.fmul(p, e.cast(power, x.type))


def sigmoid(e: Emit, x: Value) -> Value:
    one = e.fill(F32x8, 1.0)
    return e.b.fdiv(one, e.b.fadd(one, exp(e, negative(e, x))))


def tanh(e: Emit, x: Value) -> Value:
    """2 sigmoid(2x) - 1: within 2e-7, not relative to small values."""
    return e.fma(e.fill(F32x8, 2.0), sigmoid(e, e.b.fadd(x, x)), e.fill(F32x8, -1.0))


def silu(e: Emit, x: Value) -> Value:
    return e.b.fdiv(x, e.b.fadd(e.fill(F32x8, 1.0), exp(e, negative(e, x))))


def gelu_tanh(e: Emit, x: Value) -> Value:
    """x / 2 (1 + tanh u) is x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    cubic = e.fma(e.b.fmul(x, x), e.fill(F32x8, 0.044715), e.fill(F32x8, 1.0))
    u = e.b.fmul(e.b.fmul(x, cubic), e.fill(F32x8, 2 * math.sqrt(2 / math.pi)))
    return e.b.fmul(x, sigmoid(e, u))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}
CODE = {name: code for code, name in enumerate(ACTIVATIONS)}  # as kernels are told


def negative(e: Emit, x: Value) -> Value:
    return e.b.fneg(x)


def select(e: Emit, sign: str, a: Value, b: Value, yes: Value, no: Value) -> Value:
    """Lane by lane `yes` where a < b (or another sign), else `no`, also where one is not a number."""
    return e.b.select(e.b.fcmp_ordered(sign, a, b), yes, no)
