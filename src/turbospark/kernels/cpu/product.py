"""The integer product: weight rows by quantised activation rows, the same sums for any number of rows.

An output is the sum over chunks, and pairs after them, of

    acc = fma(float(sum of codes * quants, exact), weight scale * activation scale, acc)

in each of eight lanes, lane l taking the blocks LANES[l] of the chunks in their order; a format with lows adds
fma(low, activation scale * sum, acc) after it, one with two parts a block takes one fma each. At last the lanes are
added in one fixed tree. Up to eight rows keep their sums in registers; more rows share each
decoded chunk of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.activations import CHUNK_BYTES, PAIR_BYTES
from turbospark.kernels.cpu.codes import CODES, Codes, Decoded
from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.dots import added, dot
from turbospark.kernels.cpu.levels import abreast
from turbospark.kernels.cpu.operands import ARGUMENTS, Operands, Stored
from turbospark.kernels.cpu.vector import F32, Emit, Value, emitted

FEW = (1, 2, 4, 6, 8)  # numbers of rows with a kernel of their own, which also does for one less
SHORT = 4  # rows whose records of 4096 columns fit the first cache
TILE_N, TILE_M = 16, 32  # weight rows and activation rows that share a pass: sums 16 KB, a chunk's records 12 KB
NEAR = 20 << 10  # bytes of records that stay in the first cache, of 32 KB, while the weight rows of a tile pass
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


# the first, how many, decoder, records, the size of one
Step = tuple[Value, Value, Callable[[Value, Value, Value], Decoded], Value, int]


def _quads(e: Emit, width: Value) -> list[tuple[int, Value, Value]]:
    """Things taken in fours and then one by one: how many together, the first, and how often."""
    fours = e.b.sdiv(width, e.number(4))
    done = e.times(fours, 4)
    return [(4, e.number(0), fours), (1, done, e.b.sub(width, done))]


class _Product:
    def __init__(self, operands: Operands, codes: Codes):
        self.e, self.operands = operands.e, operands
        self.stored = Stored(operands, codes)

    def write(self) -> None:
        e, many = self.e, abreast()
        with ExitStack() as larger:
            for most in FEW:
                up_to = e.b.icmp_signed("<=", self.operands.rows, e.number(most))
                few, rest = larger.enter_context(e.b.if_else(up_to))
                with few:
                    beside = min(most, many)
                    self._few_rows(most // beside, beside)
                larger.enter_context(rest)
            self._many_rows(many)

    def _few_rows(self, most: int, beside: int) -> None:
        """Sums in registers: `most` groups of rows, `beside` each in one vector; one row less goes twice."""
        e, operands = self.e, self.operands
        kind = ir.VectorType(F32, 8 * beside)
        sums, done = [e.variable(kind) for _ in range(most)], e.variable(kind, TILE_N * most)
        groups = self._groups(beside)
        depth = NEAR // (most * beside * CHUNK_BYTES) if most * beside > SHORT else None
        ahead = e.number(AHEAD) if depth is None else e.times(operands.stride, 2)
        last = e.b.sub(groups, e.number(1))
        numbers = [e.number(group) for group in range(most - 1)] + [last]
        place = lambda i, group: e.b.gep(done, [e.at(e.times(i, most), group)])
        with e.tiles(operands.count, TILE_N) as (n0, width):
            n0 = e.b.add(n0, operands.start)
            with self._pieces(depth) as (begin, end), e.loop(width) as i:
                n, opens = e.b.add(n0, i), e.b.icmp_signed("==", begin, e.number(0))
                for group, acc in enumerate(sums):
                    e.b.store(e.b.select(opens, ir.Constant(kind, None), e.b.load(place(i, group))), acc)
                for first, count, decode, records, size in self._steps(groups, beside, begin, end):
                    with e.loop(count) as step:
                        step = e.b.add(first, step)
                        decoded = self._spread(decode(n, step, ahead), beside)
                        record = e.at(records, e.times(e.b.mul(step, groups), size))
                        for number, acc in zip(numbers, sums, strict=True):
                            at = e.at(record, e.times(number, size))
                            e.b.store(self._added(decoded, at, size, e.b.load(acc)), acc)
                for group, acc in enumerate(sums):
                    e.b.store(e.b.load(acc), place(i, group))
            for together, begin, steps in _quads(e, width):
                with e.loop(steps) as quad:
                    i = e.b.add(begin, e.times(quad, together))
                    for group, number in enumerate(numbers):
                        # what went twice must not be added twice
                        with e.b.if_then(e.b.icmp_signed("<", e.number(group), groups)):
                            cells = [e.b.load(place(e.at(i, k), group)) for k in range(together)]
                            self._put(cells, e.times(number, beside), e.b.add(n0, i), certain=beside == 1)

    def _groups(self, beside: int) -> Value:
        """Groups of rows that lie beside each other; the last may be short of some."""
        return self.e.b.sdiv(self.e.at(self.operands.rows, beside - 1), self.e.number(beside))

    def _many_rows(self, beside: int) -> None:
        """Sums in memory near by: each decoded chunk of a weight row meets all rows of a tile."""
        e, operands = self.e, self.operands
        groups = self._groups(beside)
        kind, height = ir.VectorType(F32, 8 * beside), TILE_M // beside
        sums = e.variable(kind, TILE_N * height)
        ahead = e.b.sub(operands.row(e.number(TILE_N)), operands.row(e.number(0)))
        place = lambda i, group: e.b.gep(sums, [e.b.add(e.times(i, height), group)])
        with e.loop(e.number(TILE_N * height)) as i:
            e.b.store(ir.Constant(kind, None), e.b.gep(sums, [i]))
        with e.tiles(operands.count, TILE_N) as (n0, width):
            n0 = e.b.add(n0, operands.start)
            with e.tiles(groups, height) as (first, count_here):
                for _, count, decode, records, size in self._steps(groups, beside, e.number(0), self.stored.chunks):
                    with e.loop(count) as step, e.loop(width) as i:
                        decoded = self._spread(decode(e.b.add(n0, i), step, ahead), beside)
                        before = e.b.add(e.b.mul(step, groups), first)
                        with e.loop(count_here) as group:
                            record = e.at(records, e.times(e.b.add(before, group), size))
                            acc = place(i, group)
                            e.b.store(self._added(decoded, record, size, e.b.load(acc)), acc)
                for together, begin, steps in _quads(e, width):
                    with e.loop(steps) as quad, e.loop(count_here) as group:
                        i = e.b.add(begin, e.times(quad, together))
                        cells = [place(e.at(i, k), group) for k in range(together)]
                        m = e.times(e.b.add(first, group), beside)
                        self._put([e.b.load(cell) for cell in cells], m, e.b.add(n0, i), certain=beside == 1)
                        for cell in cells:  # ready for the next tile
                            e.b.store(ir.Constant(kind, None), cell)

    def _put(self, sums: Sequence[Value], m: Value, n: Value, certain: bool) -> None:
        """Outputs n and those behind it of rows m, m + 1 whose sums lie beside each other; if not `certain` there may
        be no second."""
        e, operands = self.e, self.operands
        for side in range(sums[0].type.count // 8):
            totals = e.totals([e.shuffle(s, s, range(8 * side, 8 * side + 8)) for s in sums])
            if side == 0 or certain:
                operands.put(totals, e.at(m, side), n)
                continue
            with e.b.if_then(e.b.icmp_signed("<", e.at(m, side), operands.rows)):
                operands.put(totals, e.at(m, side), n)

    def _spread(self, decoded: Decoded, beside: int) -> Decoded:
        """The same for every row that lies beside another."""
        again = lambda v: self.e.shuffle(v, v, list(range(v.type.count)) * beside) if beside > 1 else v
        parts = [replace(p, codes=[again(c) for c in p.codes], scale=again(p.scale)) for p in decoded.parts]
        return Decoded(parts, None if decoded.low is None else again(decoded.low))

    @contextmanager
    def _pieces(self, depth: int | None) -> Iterator[tuple[Value, Value]]:
        """The body runs with chunks begin..end-1, all or `depth` at a time, and at least once."""
        e, chunks = self.e, self.stored.chunks
        if depth is None:
            yield e.number(0), chunks
            return
        count = e.b.sdiv(e.at(chunks, depth - 1), e.number(depth))
        with e.loop(e.b.select(e.b.icmp_signed("==", count, e.number(0)), e.number(1), count)) as piece:
            begin = e.times(piece, depth)
            yield begin, e.least(chunks, e.at(begin, depth))

    def _steps(self, groups: Value, beside: int, begin: Value, end: Value) -> list[Step]:
        """Chunks begin..end-1, and behind the last one pairs."""
        e, stored, records = self.e, self.stored, self.operands.xq
        chunks = (begin, e.b.sub(end, begin), stored.chunk, records, beside * CHUNK_BYTES)
        if stored.pairs is None:
            return [chunks]
        pairs = e.b.select(e.b.icmp_signed("==", end, stored.chunks), stored.pairs, e.number(0))
        behind = e.at(records, e.times(e.b.mul(stored.chunks, groups), beside * CHUNK_BYTES))
        return [chunks, (e.number(0), pairs, stored.pair, behind, beside * PAIR_BYTES)]

    def _added(self, decoded: Decoded, record: Value, size: int, acc: Value) -> Value:
        """The sums with one record's product added."""
        e, kind = self.e, acc.type
        width = 4 * kind.count  # bytes of a vector
        numbers = e.at(record, size - 4 * width)
        scale, x_low = e.load(kind, numbers), e.load(kind, numbers, width)
        start = 0
        for i, part in enumerate(decoded.parts):
            xs = [e.load(c.type, record, width * (start + k)) for k, c in enumerate(part.codes)]
            start += len(part.codes)
            ints = dot(e, part.codes, xs, part.width)
            if len(part.codes) == 2:
                ints = self._quad_totals(ints)
            if taken := part.centre + added(part.width):
                total = self._sum(ints.type, numbers, i, len(decoded.parts))
                ints = e.b.sub(ints, e.left(total, taken.bit_length() - 1))
            acc = e.fma(e.floats(ints), e.b.fmul(part.scale, scale), acc)
        return acc if decoded.low is None else e.fma(decoded.low, x_low, acc)

    def _sum(self, kind: ir.Type, numbers: Value, part: int, parts: int) -> Value:
        """The sum of the quants of a part: of whole blocks, or of their first or second sixteen."""
        e, width = self.e, 4 * kind.count
        if parts == 1:
            return e.load(kind, numbers, 2 * width)
        first = e.load(kind, numbers, 3 * width)
        return first if part == 0 else e.b.sub(e.load(kind, numbers, 2 * width), first)

    def _quad_totals(self, ints: Value) -> Value:
        """In every lane of a pair the sum of its block's four."""
        e = self.e
        for other in (2, 1):
            ints = e.b.add(ints, e.shuffle(ints, ints, [lane ^ other for lane in range(ints.type.count)]))
        return ints
