"""The integer product: weight rows by quantised activation rows, the same sums for any number of rows.

An output is the sum over chunks, and pairs after them, of

    acc = fma(float(sum of codes * quants, exact), weight scale * activation scale, acc)

in each of eight lanes, lane l taking the blocks LANES[l] of the chunks in their order; a format with lows adds
fma(low, activation scale * sum, acc) after it, one with two parts a block takes one fma each. At last the lanes are
added in one fixed tree. One or two rows keep their sums in registers; more rows share each decoded chunk of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.activations import CHUNK_BYTES, NUMBERS, PAIR_BYTES
from turbospark.kernels.cpu.codes import BLOCK, CHUNK, CODES, Codes, Decoded, Row
from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.dots import dot
from turbospark.kernels.cpu.vector import F32, I64, Emit, F32x8, I8x32, I32x8, Value, emitted

FIELDS = ("kernel", "data", "rows", "columns", "stride", "scales", "biases", "integer")  # of a weight, int64 each
ARGUMENTS = ("weight", "x", "xq", "rows", "y", "y_stride", "start", "stop", "add")  # of a kernel, int64 each
TILE_N, TILE_M = 16, 32  # weight rows and activation rows that share a pass: sums 16 KB, a chunk's records 12 KB
AHEAD = 4096  # bytes a single stream of weights is asked for in advance: 0.6 of the memory's speed became 0.8 to 1


@intrinsic
def product(typingctx, format, weight, x, xq, rows, y, y_stride, start, stop, add):
    """y[m, n] = or += sum of w[n] * x[m] for n in start..stop-1 and all rows m; `format` is a literal name."""
    if not isinstance(format, types.StringLiteral):
        return None
    codes = CODES[format.literal_value]

    def write(e: Emit, _, *values: Value) -> None:
        _Product(e, codes, *values).write()

    return types.void(format, *[types.int64] * len(ARGUMENTS)), emitted(write)


class _Product:
    def __init__(self, e, codes: Codes, weight, x, xq, rows, y, y_stride, start, stop, add):
        self.e, self.codes = e, codes
        field = {name: e.load(I64, weight, 8 * i) for i, name in enumerate(FIELDS)}
        self.data, self.stride = field["data"], field["stride"]
        self.scales, self.biases = field["scales"], field["biases"]
        self.rows, self.y, self.y_stride, self.start, self.stop = rows, y, y_stride, start, stop
        self.add = e.b.icmp_signed("!=", add, e.number(0))
        blocks = e.b.sdiv(field["columns"], e.number(BLOCK))
        self.chunks = e.b.sdiv(blocks, e.number(8))
        rest = e.b.srem(blocks, e.number(8))
        self.pairs = e.b.sdiv(e.at(rest, 1), e.number(2))
        self.last = e.b.sub(blocks, e.number(1))
        self.groups = e.b.sdiv(field["columns"], e.number(codes.block))
        self.xq = xq
        self.xq_pairs = e.at(xq, e.times(self.chunks, e.times(rows, CHUNK_BYTES)))

    def write(self) -> None:
        e = self.e
        rows_are = lambda count: e.b.icmp_signed("==", self.rows, e.number(count))
        with e.b.if_else(rows_are(1)) as (one, more):
            with one:
                self._few_rows(1)
            with more, e.b.if_else(rows_are(2)) as (two, many):
                with two:
                    self._few_rows(2)
                with many:
                    self._many_rows()

    def _few_rows(self, rows: int) -> None:
        e = self.e
        sums = [e.variable(F32x8) for _ in range(rows)]
        ahead = e.number(AHEAD)
        with e.loop(e.b.sub(self.stop, self.start)) as i:
            n = e.b.add(i, self.start)
            for acc in sums:
                e.b.store(ir.Constant(F32x8, None), acc)
            for count, decode, records, size in self._steps():
                with e.loop(count) as step:
                    decoded = decode(n, step, ahead)
                    for m, acc in enumerate(sums):
                        record = e.at(records, e.at(e.times(step, rows * size), m * size))
                        e.b.store(self._added(decoded, record, size, e.b.load(acc)), acc)
            for m, acc in enumerate(sums):
                self._put(e.total(e.b.load(acc)), e.number(m), n)

    def _many_rows(self) -> None:
        e = self.e
        sums = e.variable(F32x8, TILE_N * TILE_M)
        ahead = e.times(self.stride, TILE_N)
        place = lambda i, m: e.b.gep(sums, [e.b.add(e.times(i, TILE_M), m)])
        with self._tiles(e.b.sub(self.stop, self.start), TILE_N) as (n0, width):
            n0 = e.b.add(n0, self.start)
            with self._tiles(self.rows, TILE_M) as (m0, height):
                with e.loop(width) as i, e.loop(height) as m:
                    e.b.store(ir.Constant(F32x8, None), place(i, m))
                for count, decode, records, size in self._steps():
                    with e.loop(count) as step, e.loop(width) as i:
                        decoded = decode(e.b.add(n0, i), step, ahead)
                        first = e.b.add(e.b.mul(step, self.rows), m0)
                        with e.loop(height) as m:
                            record = e.at(records, e.times(e.b.add(first, m), size))
                            acc = place(i, m)
                            e.b.store(self._added(decoded, record, size, e.b.load(acc)), acc)
                with e.loop(width) as i, e.loop(height) as m:
                    self._put(e.total(e.b.load(place(i, m))), e.b.add(m0, m), e.b.add(n0, i))

    @contextmanager
    def _tiles(self, count: Value, size: int) -> Iterator[tuple[Value, Value]]:
        """The body runs for each tile with its start and its length."""
        e = self.e
        tiles = e.b.sdiv(e.at(count, size - 1), e.number(size))
        with e.loop(tiles) as tile:
            start = e.times(tile, size)
            yield start, e.least(e.number(size), e.b.sub(count, start))

    def _steps(self) -> list[tuple[Value, Callable[[Value, Value, Value], Decoded], Value, int]]:
        """Chunks, then pairs: (how many, the decoder, the records, the size of a record)."""
        chunks = (self.chunks, self._chunk, self.xq, CHUNK_BYTES)
        if self.codes.pair is None:
            return [chunks]
        return [chunks, (self.pairs, self._pair, self.xq_pairs, PAIR_BYTES)]

    def _chunk(self, n: Value, step: Value, ahead: Value) -> Decoded:
        """Decodes a chunk of row n, and asks for the bytes `ahead` of it."""
        e, codes = self.e, self.codes
        count = CHUNK // codes.block
        start = e.at(self._row(n), e.times(step, count * codes.nbytes))
        for line in range(0, count * codes.nbytes, 64):
            e.prefetch(e.at(e.at(start, ahead), line), 3)
        return codes.chunk(e, self._blocks(n, start, count, e.times(step, count)))

    def _pair(self, n: Value, step: Value, ahead: Value) -> Decoded:
        """A second block beyond the end of the row is the first again: its activations are zeros."""
        e, codes = self.e, self.codes
        count = max(1, 2 * BLOCK // codes.block)
        first = e.b.add(e.times(self.chunks, CHUNK // codes.block), e.times(step, count))
        row = self._blocks(n, e.at(self._row(n), e.times(first, codes.nbytes)), 1, first)
        if count == 2:
            second = e.least(e.at(first, 1), self.last)
            row.blocks.append(e.at(self._row(n), e.times(second, codes.nbytes)))
        assert codes.pair is not None
        return codes.pair(e, row)

    def _blocks(self, n: Value, start: Value, count: int, number: Value) -> Row:
        """The blocks of row n that lie behind each other from `start`; `number` counts them from the row's first."""
        e = self.e
        beside = e.times(e.b.add(e.b.mul(n, self.groups), number), 2)
        blocks = [e.at(start, self.codes.nbytes * i) for i in range(count)]
        return Row(blocks, e.at(self.scales, beside), e.at(self.biases, beside))

    def _row(self, n: Value) -> Value:
        return self.e.at(self.data, self.e.times(n, self.stride))

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
            if part.shift is not None:
                ints = e.b.sub(ints, e.left(self._sum(numbers, i, len(decoded.parts)), part.shift))
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

    def _put(self, value: Value, m: Value, n: Value) -> None:
        e = self.e
        at = e.at(self.y, e.times(e.b.add(e.b.mul(m, self.y_stride), n), 4))
        with e.b.if_else(self.add) as (adds, writes):
            with adds:
                e.store(e.b.fadd(e.load(F32, at), value), at)
            with writes:
                e.store(value, at)
