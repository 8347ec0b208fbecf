"""Vector instructions as a vocabulary: what a kernel's code generator says, in the order it is executed.

An `Emit` writes LLVM instructions at a builder's position. Addresses are 64-bit integers; loads and stores may be
unaligned. Vectors are named by lanes and element: F32x8, I32x8, I8x32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from turbospark.kernels.cpu.levels import level

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
I8x16, I8x32 = ir.VectorType(I8, 16), ir.VectorType(I8, 32)
I16x8, I16x16 = ir.VectorType(I16, 8), ir.VectorType(I16, 16)
I32x4, I32x8, F32x8 = ir.VectorType(I32, 4), ir.VectorType(I32, 8), ir.VectorType(F32, 8)

Value = Any  # an LLVM value


class Emit:
    def __init__(self, builder: ir.IRBuilder):
        self.b = builder

    # numbers and addresses

    def number(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def at(self, address: Value, offset: int | Value) -> Value:
        """An address so many bytes further."""
        if isinstance(offset, int):
            return self.b.add(address, self.number(offset)) if offset else address
        return self.b.add(address, offset)

    def times(self, a: Value, b: int | Value) -> Value:
        return self.b.mul(a, self.number(b) if isinstance(b, int) else b)

    def least(self, a: Value, b: Value) -> Value:
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    @contextmanager
    def loop(self, count: Value) -> Iterator[Value]:
        """The body runs with the index 0 .. count - 1."""
        with cgutils.for_range(self.b, count, intp=I64) as loop:
            yield loop.index

    @contextmanager
    def tiles(self, count: Value, size: int) -> Iterator[tuple[Value, Value]]:
        """The body runs for each tile of `count` things with its start and its length, `size` but for the last."""
        with self.loop(self.b.sdiv(self.at(count, size - 1), self.number(size))) as tile:
            start = self.times(tile, size)
            yield start, self.least(self.number(size), self.b.sub(count, start))

    def variable(self, kind: ir.Type, count: int = 1) -> Value:
        """Memory on the stack for `count` values: an LLVM pointer, which the optimiser may keep in registers.

        What is in it first is anything: `cgutils.alloca_once` would clear it at every call of the function.
        """
        with self.b.goto_entry_block():
            pointer = self.b.alloca(ir.ArrayType(kind, count))
        return self.b.bitcast(pointer, kind.as_pointer())

    # memory

    def load(self, kind: ir.Type, address: Value, offset: int | Value = 0) -> Value:
        return self.b.load(self.b.inttoptr(self.at(address, offset), kind.as_pointer()), align=1)

    def store(self, value: Value, address: Value, offset: int | Value = 0) -> None:
        self.b.store(value, self.b.inttoptr(self.at(address, offset), value.type.as_pointer()), align=1)

    def prefetch(self, address: Value, nearness: int) -> None:
        """Asks for the cache line of an address, which may be anything; nearness 3 is the first cache, 0 the last."""
        pointer = self.b.inttoptr(address, I8.as_pointer())
        kind = [pointer.type, I32, I32, I32]
        function = self.function("llvm.prefetch.p0", ir.VoidType(), kind)
        self.b.call(function, [pointer, I32(0), I32(nearness), I32(1)])

    def gather(self, kind: ir.Type, addresses: Sequence[Value]) -> Value:
        """One element from each address."""
        vector: Value = ir.Constant(ir.VectorType(kind, len(addresses)), ir.Undefined)
        for lane, address in enumerate(addresses):
            vector = self.b.insert_element(vector, self.load(kind, address), ir.Constant(I32, lane))
        return vector

    # lanes

    def splat(self, scalar: Value, lanes: int) -> Value:
        kind = ir.VectorType(scalar.type, lanes)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.shuffle(one, one, [0] * lanes)

    def fill(self, kind: ir.VectorType, value: int | float) -> Value:
        """The same constant in every lane."""
        return ir.Constant(kind, [value] * kind.count)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes of a, counted from 0, and of b, counted on."""
        return self.b.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))

    def join(self, low: Value, high: Value) -> Value:
        """Two vectors behind each other."""
        return self.shuffle(low, high, range(2 * low.type.count))

    def cast(self, value: Value, kind: ir.Type) -> Value:
        """The same bits as another type."""
        return self.b.bitcast(value, kind)

    # arithmetic

    def call(self, name: str, kind: ir.Type, *arguments: Value) -> Value:
        """An LLVM intrinsic."""
        return self.b.call(self.function(name, kind, [a.type for a in arguments]), arguments)

    def function(self, name: str, kind: ir.Type, arguments: Sequence[ir.Type]) -> Value:
        module = self.b.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, arguments), name)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        suffix = f"v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "f32"
        return self.call(f"llvm.fma.{suffix}", a.type, a, b, c)

    def bits(self, value: Value, mask: int) -> Value:
        """value & mask in every lane."""
        return self.b.and_(value, self.fill(value.type, mask))

    def right(self, value: Value, count: int) -> Value:
        """Every lane shifted right, zeros coming in."""
        return self.b.lshr(value, self.fill(value.type, count)) if count else value

    def left(self, value: Value, count: int) -> Value:
        return self.b.shl(value, self.fill(value.type, count)) if count else value

    def floats(self, ints: Value) -> Value:
        """Signed integers to float32."""
        return self.b.sitofp(ints, ir.VectorType(F32, ints.type.count))

    def widen(self, value: Value, element: ir.Type, signed: bool = False) -> Value:
        """Integers to wider ones."""
        kind = ir.VectorType(element, value.type.count)
        return self.b.sext(value, kind) if signed else self.b.zext(value, kind)

    def narrow(self, value: Value, element: ir.Type) -> Value:
        return self.b.trunc(value, ir.VectorType(element, value.type.count))

    def halves(self, bits: Value) -> Value:
        """float16 in the bits of 16-bit integers, to float32."""
        count = bits.type.count
        floats, ints = ir.VectorType(F32, count), ir.VectorType(I32, count)
        if level() != "generic":
            return self.b.fpext(self.cast(bits, ir.VectorType(F16, count)), floats)
        wide = self.widen(bits, I32)
        sign = self.left(self.bits(wide, 0x8000), 16)
        size = self.left(self.bits(wide, 0x7FFF), 13)
        value = self.cast(self.b.fmul(self.cast(size, floats), self.fill(floats, 2.0**112)), ints)
        endless = self.b.icmp_unsigned(">=", size, self.fill(ints, 0x7C00 << 13))
        value = self.b.select(endless, self.b.or_(size, self.fill(ints, 0x7F800000)), value)
        return self.cast(self.b.or_(value, sign), floats)

    def bfloats(self, bits: Value) -> Value:
        """bfloat16 in the bits of 16-bit integers, to float32."""
        return self.cast(self.left(self.widen(bits, I32), 16), ir.VectorType(F32, bits.type.count))

    def total(self, vector: Value) -> Value:
        """The sum of eight lanes in one fixed tree: lanes l and l + 4, of those 0 and 2, 1 and 3, at last the two."""
        add = self.b.fadd if vector.type.element == F32 else self.b.add
        half = add(self.shuffle(vector, vector, range(4)), self.shuffle(vector, vector, range(4, 8)))
        pair = add(self.shuffle(half, half, (0, 1)), self.shuffle(half, half, (2, 3)))
        return add(*(self.b.extract_element(pair, ir.Constant(I32, lane)) for lane in (0, 1)))

    def totals(self, vectors: Sequence[Value]) -> Value:
        """The `total` of one vector, or those of four as four lanes; each is added up in the same tree."""
        if len(vectors) == 1:
            return self.total(vectors[0])
        a, b, c, d = vectors
        first, second = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
        ab, cd = (self.b.fadd(self.shuffle(v, w, first), self.shuffle(v, w, second)) for v, w in ((a, b), (c, d)))
        low, high = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
        pairs = self.b.fadd(self.shuffle(ab, cd, low), self.shuffle(ab, cd, high))
        return self.b.fadd(self.shuffle(pairs, pairs, (0, 4, 2, 6)), self.shuffle(pairs, pairs, (1, 5, 3, 7)))

    def transpose4(self, rows: Sequence[Value]) -> list[Value]:
        """Four I32x8, each two quads of a row: result i holds element i of the four rows' first quads, then seconds."""
        a, b, c, d = rows
        low, high = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
        first, second = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
        return [
            self.shuffle(self.shuffle(a, b, half), self.shuffle(c, d, half), quad)
            for half in (low, high)
            for quad in (first, second)
        ]

    def halves_of(self, a: Value, b: Value) -> tuple[Value, Value]:
        """(the first quads of a and b, the second quads), I32x8 each."""
        return self.shuffle(a, b, (0, 1, 2, 3, 8, 9, 10, 11)), self.shuffle(a, b, (4, 5, 6, 7, 12, 13, 14, 15))


def emitted(write: Callable[..., Value | None]) -> Callable:
    """The codegen function of a Numba intrinsic from `write(emit, *values)`."""

    def codegen(context, builder, signature, values):
        result = write(Emit(builder), *values)
        return context.get_dummy_value() if result is None else result

    return codegen
