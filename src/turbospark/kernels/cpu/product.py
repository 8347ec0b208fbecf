"""The integer product: weight rows by quantised activation rows, the same sums for any number of rows.

An output is the sum over chunks, and pairs after them, of

    acc = fma(float(sum of codes * quants, exact), weight scale * activation scale, acc)

in each of eight lanes, lane l taking the blocks LANES[l] of the chunks in their order; a format with lows adds
fma(low, activation scale * sum, acc) after it, one with two parts a block takes one fma each. At last the lanes are
added in one fixed tree. One or two rows keep their sums in registers; more rows share each decoded chunk of a tile.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.activations import CHUNK_BYTES, NUMBERS, PAIR_BYTES
from turbospark.kernels.cpu.codes import CODES, Codes, Decoded
from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.dots import added, dot
from turbospark.kernels.cpu.operands import ARGUMENTS, Operands, Stored
from turbospark.kernels.cpu.vector import Emit, F32x8, I8x32, I32x8, Value, emitted

TILE_N, TILE_M = 16, 32  # weight rows and activation rows that share a pass: sums 16 KB, a chunk's records 12 KB
AHEAD = 4096  # bytes a single stream of weights is asked for in advance: 0.6 of the memory's speed became 0.8 to 1


@intrinsic
def product(typingctx, format, weight, x, xq, rows, y, y_stride, start, stop, add):
    """y[m, n] = or += sum of w[n] * x[m] for n in start..stop-1 and all rows m; `format` is a literal name."""
    if not isinstance(format, types.StringLiteral):
        return None
    codes = CODES[format.literal_value]

    def write(e: Emit, _, *values: Value) -> None:
        _Product(Operands(e, *values), codes).write()

    return types.void(format, *[types.int64] * len(ARGUMENTS)), emitted(write)


class _Product:
    def __init__(self, operands: Operands, codes: Codes):
        self.e, self.operands = operands.e, operands
        self.stored = Stored(operands, codes)

    def write(self) -> None:
        e = self.e
        rows_are = lambda count: e.b.icmp_signed("==", self.operands.rows, e.number(count))
        with e.b.if_else(rows_are(1)) as (one, more):
            with one:
                self._few_rows(1)
            with more, e.b.if_else(rows_are(2)) as (two, many):
                with two:
                    self._few_rows(2)
                with many:
                    self._many_rows()

    def _few_rows(self, rows: int) -> None:
        e, operands = self.e, self.operands
        sums = [e.variable(F32x8) for _ in range(rows)]
        ahead = e.number(AHEAD)
        with e.loop(operands.count) as i:
            n = e.b.add(i, operands.start)
            for acc in sums:
                e.b.store(ir.Constant(F32x8, None), acc)
            for count, decode, records, size in self._steps():
                with e.loop(count) as step:
                    decoded = decode(n, step, ahead)
                    for m, acc in enumerate(sums):
                        record = e.at(records, e.at(e.times(step, rows * size), m * size))
                        e.b.store(self._added(decoded, record, size, e.b.load(acc)), acc)
            for m, acc in enumerate(sums):
                operands.put(e.total(e.b.load(acc)), e.number(m), n)

    def _many_rows(self) -> None:
        e, operands = self.e, self.operands
        sums = e.variable(F32x8, TILE_N * TILE_M)
        ahead = e.b.sub(operands.row(e.number(TILE_N)), operands.row(e.number(0)))
        place = lambda i, m: e.b.gep(sums, [e.b.add(e.times(i, TILE_M), m)])
        with e.tiles(operands.count, TILE_N) as (n0, width):
            n0 = e.b.add(n0, operands.start)
            with e.tiles(operands.rows, TILE_M) as (m0, height):
                with e.loop(width) as i, e.loop(height) as m:
                    e.b.store(ir.Constant(F32x8, None), place(i, m))
                for count, decode, records, size in self._steps():
                    with e.loop(count) as step, e.loop(width) as i:
                        decoded = decode(e.b.add(n0, i), step, ahead)
                        first = e.b.add(e.b.mul(step, operands.rows), m0)
                        with e.loop(height) as m:
                            record = e.at(records, e.times(e.b.add(first, m), size))
                            acc = place(i, m)
                            e.b.store(self._added(decoded, record, size, e.b.load(acc)), acc)
                with e.loop(width) as i, e.loop(height) as m:
                    operands.put(e.total(e.b.load(place(i, m))), e.b.add(m0, m), e.b.add(n0, i))

    def _steps(self) -> list[tuple[Value, Callable[[Value, Value, Value], Decoded], Value, int]]:
        """Chunks, then pairs: (how many, the decoder, the records, the size of a record)."""
        e, stored, records = self.e, self.stored, self.operands.xq
        chunks = (stored.chunks, stored.chunk, records, CHUNK_BYTES)
        if stored.pairs is None:
            return [chunks]
        behind = e.at(records, e.times(stored.chunks, e.times(self.operands.rows, CHUNK_BYTES)))
        return [chunks, (stored.pairs, stored.pair, behind, PAIR_BYTES)]

    def _added(self, decoded: Decoded, record: Value, size: int, acc: Value) -> Value:
        """The sums with one record's product added."""
        e = self.e
        numbers = e.at(record, size - NUMBERS)
        scale, x_low = e.load(F32x8, numbers), e.load(F32x8, numbers, 32)
        start = 0
        for i, part in enumerate(decoded.parts):
            xs = [e.load(I8x32, record, 32 * (start + k)) for k in range(len(part.codes))]
            start += len(part.codes)
            ints = dot(e, part.codes, xs, part.width)
            if size == PAIR_BYTES:
                ints = self._quad_totals(ints)
            if taken := part.centre + added(part.width):
                total = self._sum(numbers, i, len(decoded.parts))
                ints = e.b.sub(ints, e.left(total, taken.bit_length() - 1))
            acc = e.fma(e.floats(ints), e.b.fmul(part.scale, scale), acc)
        return acc if decoded.low is None else e.fma(decoded.low, x_low, acc)

    def _sum(self, numbers: Value, part: int, parts: int) -> Value:
        """The sum of the quants of a part: of whole blocks, or of their first or second sixteen."""
        e = self.e
        if parts == 1:
            return e.load(I32x8, numbers, 64)
        first = e.load(I32x8, numbers, 96)
        return first if part == 0 else e.b.sub(e.load(I32x8, numbers, 64), first)

    def _quad_totals(self, ints: Value) -> Value:
        """In every lane the sum of its half: of one block of a pair."""
        e = self.e
        for lanes in ((2, 3, 0, 1, 6, 7, 4, 5), (1, 0, 3, 2, 5, 4, 7, 6)):
            ints = e.b.add(ints, e.shuffle(ints, ints, lanes))
        return ints
