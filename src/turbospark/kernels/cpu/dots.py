"""Exact integer products of codes and quantised activations, each level in its own instructions.

Every function takes equally many byte vectors of codes and of activations, -127..127, and gives 32-bit integers: lane l
holds the sum over all vectors of the four products of dword l. Vectors have 32 bytes, with VNNI also 64.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from turbospark.kernels.cpu.levels import level
from turbospark.kernels.cpu.vector import I1, I16, I32, Emit, I8x32, I16x16, I32x8, Value

SIGNED = 0  # in place of a width: codes -128..127, else codes 0..2**width - 1


def dot(e: Emit, codes: Sequence[Value], xs: Sequence[Value], width: int) -> Value:
    """The sums of (codes + `added(width)`) times activations; `width` is the bits of an unsigned code or SIGNED."""
    if level() == "avx512vnni":
        return _vnni(e, codes, xs, width)
    if level() == "avx2":
        return _avx2_signed(e, codes, xs) if width == SIGNED else _avx2(e, codes, xs, width)
    return _generic(e, codes, xs, width)


def added(width: int) -> int:
    """What this level adds to every code: its product wants unsigned ones."""
    return 128 if level() == "avx512vnni" and width == SIGNED else 0


def _vnni(e: Emit, codes: Sequence[Value], xs: Sequence[Value], width: int) -> Value:
    """Two chains of sums, as each product waits for the one before it in its chain."""
    kind = ir.VectorType(I32, xs[0].type.count // 4)
    sums: list[Value] = [ir.Constant(kind, None)] * 2
    for i, (code, x) in enumerate(zip(codes, xs, strict=True)):
        if width == SIGNED:
            code = e.b.xor(code, e.fill(code.type, 0x80))
        sums[i % 2] = e.call(f"llvm.x86.avx512.vpdpbusd.{32 * kind.count}", kind, sums[i % 2], code, x)
    return e.b.add(*sums)


def _avx2(e: Emit, codes: Sequence[Value], xs: Sequence[Value], width: int) -> Value:
    """Sums stay in 16 bits as long as the largest code and activation allow."""
    together = 32767 // (2 * 127 * ((1 << width) - 1))
    total = None
    for start in range(0, len(codes), together):
        part = None
        for code, x in zip(codes[start : start + together], xs[start : start + together], strict=True):
            pairs = e.call("llvm.x86.avx2.pmadd.ub.sw", I16x16, code, x)
            part = pairs if part is None else e.b.add(part, pairs)
        total = _add(e, total, _pairs(e, part))
    return total


def _avx2_signed(e: Emit, codes: Sequence[Value], xs: Sequence[Value]) -> Value:
    """The sign of the code moves to the activation: |code| <= 128 times 127, twice, fits 16 bits."""
    total = None
    for code, x in zip(codes, xs, strict=True):
        size = e.call("llvm.abs.v32i8", I8x32, code, ir.Constant(I1, 0))
        turned = e.call("llvm.x86.avx2.psign.b", I8x32, x, code)
        total = _add(e, total, _pairs(e, e.call("llvm.x86.avx2.pmadd.ub.sw", I16x16, size, turned)))
    return total


def _generic(e: Emit, codes: Sequence[Value], xs: Sequence[Value], width: int) -> Value:
    total = None
    for code, x in zip(codes, xs, strict=True):
        products = e.b.mul(e.widen(code, I16, signed=width == SIGNED), e.widen(x, I16, signed=True))
        wide = e.widen(products, I32, signed=True)
        for _ in range(2):  # neighbours
            count = wide.type.count
            wide = e.b.add(
                e.shuffle(wide, wide, range(0, count, 2)),
                e.shuffle(wide, wide, range(1, count, 2)),
            )
        total = _add(e, total, wide)
    return total


def _pairs(e: Emit, sums: Value) -> Value:
    """Neighbouring 16-bit sums added into 32 bits."""
    return e.call("llvm.x86.avx2.pmadd.wd", I32x8, sums, e.fill(I16x16, 1))


def _add(e: Emit, total: Value | None, value: Value) -> Value:
    return value if total is None else e.b.add(total, value)
