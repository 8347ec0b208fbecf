"""Attention of some queries to one block of 64 positions: scores, weights, and the mixture of values.

Queries that read the same keys lie behind each other, [queries, width] float32; keys and values are rows of a cache,
float16 or float32, padded with zeros to whole vectors of eight. Each score is added up over the width in eight lanes
and a fixed tree; each value element over the positions in their order. So a query's result depends on nothing but its
own row and the positions it sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.elementary import exp, select, tanh
from turbospark.kernels.cpu.vector import F32, I16, I64, Emit, F32x8, I32x8, Value, emitted

BLOCK = 64  # positions
QUERIES, KEYS, COLUMNS = 3, 4, 4  # of a tile: its sums stay in twelve registers
NOTHING = float("-inf")


@intrinsic
def scores(typingctx, element, q, queries, q_stride, k, k_stride, low, high, width, out):
    """out [queries, 64]: q . k for the positions low..high-1 of a block, and some around them.

    element: the literal bytes of a cached number, 2 or 4. Strides are bytes; width a multiple of 8.
    """
    if not isinstance(element, types.IntegerLiteral):
        return None
    size = element.literal_value

    def write(e: Emit, _, q, queries, q_stride, k, k_stride, low, high, width, out):
        first = e.b.sdiv(low, e.number(KEYS))
        quads = e.b.sub(e.b.sdiv(e.at(high, KEYS - 1), e.number(KEYS)), first)
        chunks = e.b.sdiv(width, e.number(8))
        with e.loop(quads) as i:
            key = e.times(e.b.add(i, first), KEYS)
            keys = [e.at(k, e.times(e.at(key, j), k_stride)) for j in range(KEYS)]
            for at, tile in _tiles(e, queries, QUERIES):
                with at as n:
                    rows = [e.at(q, e.times(e.at(n, m), q_stride)) for m in range(tile)]
                    sums = _dots(e, rows, keys, chunks, size)
                    for m in range(tile):
                        line = e.at(out, e.times(e.at(n, m), 4 * BLOCK))
                        e.store(_four_totals(e, sums[m]), line, e.times(key, 4))

    return types.void(element, *[types.int64] * 9), emitted(write)


def _dots(e: Emit, rows: Sequence[Value], keys: Sequence[Value], chunks: Value, size: int) -> list[list[Value]]:
    """The eight running sums of every row by every key."""
    sums = [[e.variable(F32x8) for _ in keys] for _ in rows]
    for line in sums:
        for cell in line:
            e.b.store(ir.Constant(F32x8, None), cell)
    with e.loop(chunks) as c:
        parts = [e.load(F32x8, row, e.times(c, 32)) for row in rows]
        for j, key in enumerate(keys):
            value = load_cached(e, size, key, e.times(c, 8 * size))
            for part, line in zip(parts, sums, strict=True):
                e.b.store(e.fma(part, value, e.b.load(line[j])), line[j])
    return [[e.b.load(cell) for cell in line] for line in sums]


def _four_totals(e: Emit, vectors: Sequence[Value]) -> Value:
    """The totals of four vectors as one of four lanes: lanes 0 + 2 and 1 + 3 of each half, then these, then halves."""
    a, b, c, d = vectors
    pairs = lambda a, b: e.b.fadd(
        e.shuffle(a, b, (0, 8, 1, 9, 4, 12, 5, 13)), e.shuffle(a, b, (2, 10, 3, 11, 6, 14, 7, 15))
    )
    ab, cd = pairs(a, b), pairs(c, d)
    halves = e.b.fadd(e.shuffle(ab, cd, (0, 1, 8, 9, 4, 5, 12, 13)), e.shuffle(ab, cd, (2, 3, 10, 11, 6, 7, 14, 15)))
    return e.b.fadd(e.shuffle(halves, halves, range(4)), e.shuffle(halves, halves, range(4, 8)))


@intrinsic
def weigh(typingctx, line, low, high, scale, softcap, most, total):
    """Turns the 64 scores at `line` into weights e^(s - m) of the positions low..high-1, others 0.

    s = score * scale, through tanh(s / softcap) * softcap where softcap is not 0; m, the largest s, goes to the address
    `most` and the sum of the weights to `total`. scale and softcap are float32, the rest int64.
    """

    def write(e: Emit, line, low, high, scale, softcap, most, total):
        chunks = range(BLOCK // 8)
        scales, caps = e.splat(scale, 8), e.splat(softcap, 8)
        capped = e.b.fcmp_ordered("!=", softcap, ir.Constant(F32, 0.0))
        lanes = [ir.Constant(I32x8, list(range(8 * c, 8 * c + 8))) for c in chunks]
        bound = lambda value: e.splat(e.b.trunc(value, ir.IntType(32)), 8)
        after, before = bound(low), bound(high)
        largest = e.fill(F32x8, NOTHING)
        for c in chunks:
            raw = e.b.fmul(e.load(F32x8, line, 32 * c), scales)
            value = e.variable(F32x8)
            e.b.store(raw, value)
            with e.b.if_then(capped):
                e.b.store(e.b.fmul(tanh(e, e.b.fdiv(raw, caps)), caps), value)
            seen = e.b.and_(e.b.icmp_signed(">=", lanes[c], after), e.b.icmp_signed("<", lanes[c], before))
            score = e.b.select(seen, e.b.load(value), e.fill(F32x8, NOTHING))
            e.store(score, line, 32 * c)
            largest = select(e, ">", score, largest, score, largest)
        for lanes_of in ((4, 5, 6, 7, 0, 1, 2, 3), (2, 3, 0, 1, 6, 7, 4, 5), (1, 0, 3, 2, 5, 4, 7, 6)):
            other = e.shuffle(largest, largest, lanes_of)
            largest = select(e, ">", other, largest, other, largest)
        sums: Value = ir.Constant(F32x8, None)
        for c in chunks:
            score = e.load(F32x8, line, 32 * c)
            weight = exp(e, e.b.fsub(score, largest))
            weight = select(e, "==", score, e.fill(F32x8, NOTHING), ir.Constant(F32x8, None), weight)
            e.store(weight, line, 32 * c)
            sums = e.b.fadd(sums, weight)
        e.store(e.b.extract_element(largest, ir.Constant(ir.IntType(32), 0)), most)
        e.store(e.total(sums), total)

    signature = types.void(*[types.int64] * 3, types.float32, types.float32, types.int64, types.int64)
    return signature, emitted(write)


@intrinsic
def mix(typingctx, element, weights, queries, v, v_stride, low, high, width, out, out_stride):
    """out [queries, width] = weights [queries, 64] by the values at positions low..high-1, added in their order."""
    if not isinstance(element, types.IntegerLiteral):
        return None
    size = element.literal_value

    def write(e: Emit, _, weights, queries, v, v_stride, low, high, width, out, out_stride):
        chunks = e.b.sdiv(width, e.number(8))
        first = e.at(v, e.times(low, v_stride))
        line = e.at(weights, e.times(low, 4))
        count = e.b.sub(high, low)
        for across, columns in _tiles(e, chunks, COLUMNS):
            with across as c:
                for at, tile in _tiles(e, queries, QUERIES):
                    with at as n:
                        sums = [[e.variable(F32x8) for _ in range(columns)] for _ in range(tile)]
                        for row in sums:
                            for cell in row:
                                e.b.store(ir.Constant(F32x8, None), cell)
                        lines = [e.at(line, e.times(e.at(n, m), 4 * BLOCK)) for m in range(tile)]
                        values = e.at(first, e.times(c, 8 * size))
                        with e.loop(count) as j:
                            row_at = e.at(values, e.times(j, v_stride))
                            shares = [e.splat(e.load(F32, line, e.times(j, 4)), 8) for line in lines]
                            for i in range(columns):  # one at a time: there are no registers for more
                                part = load_cached(e, size, row_at, 8 * size * i)
                                for share, row in zip(shares, sums, strict=True):
                                    e.b.store(e.fma(share, part, e.b.load(row[i])), row[i])
                        for m in range(tile):
                            to = e.at(e.at(out, e.times(e.at(n, m), out_stride)), e.times(c, 32))
                            for i, cell in enumerate(sums[m]):
                                e.store(e.b.load(cell), to, 32 * i)

    return types.void(element, *[types.int64] * 9), emitted(write)


@intrinsic
def merge_row(typingctx, so_far, most, total, part, part_most, part_total, width):
    """Adds one block's mixture, with its largest score and sum of weights, to what a query has so far.

    All are addresses: of rows float32 [width], and of single floats. The first block comes to a total of 0.
    """

    def write(e: Emit, so_far, most, total, part, part_most, part_total, width):
        one = lambda address: e.load(F32, address)
        old, new = one(most), one(part_most)
        top = e.b.select(e.b.fcmp_ordered(">", old, new), old, new)
        keep, take = (exp(e, e.splat(e.b.fsub(value, top), 8)) for value in (old, new))
        lane = lambda vector: e.b.extract_element(vector, ir.Constant(ir.IntType(32), 0))
        e.store(e.fma(one(part_total), lane(take), e.b.fmul(one(total), lane(keep))), total)
        e.store(top, most)
        with e.loop(e.b.sdiv(width, e.number(8))) as c:
            at = e.times(c, 32)
            e.store(e.fma(e.load(F32x8, part, at), take, e.b.fmul(e.load(F32x8, so_far, at), keep)), so_far, at)

    return types.void(*[types.int64] * 7), emitted(write)


def load_cached(e: Emit, size: int, address: Value, offset: Value | int) -> Value:
    """Eight cached numbers as float32."""
    if size == 4:
        return e.load(F32x8, address, offset)
    return e.halves(e.load(ir.VectorType(I16, 8), address, offset))


def _tiles(e: Emit, count: Value, most: int) -> Iterator[tuple[Any, int]]:
    """Cuts 0..count-1 into tiles: (a loop over their first items, their size), no tile of one where it can be two."""
    number = e.number
    if most == 4:
        whole = e.b.sdiv(count, number(4))
        yield _every(e, whole, 4, number(0)), 4
        done = e.times(whole, 4)
        yield _every(e, e.b.sub(count, done), 1, done), 1
        return
    lone = e.b.and_(
        e.b.icmp_signed("==", e.b.srem(count, number(3)), number(1)), e.b.icmp_signed(">", count, number(1))
    )
    triples = e.b.sub(e.b.sdiv(count, number(3)), e.b.zext(lone, I64))
    done = e.times(triples, 3)
    yield _every(e, triples, 3, number(0)), 3
    pairs = e.b.sdiv(e.b.sub(count, done), number(2))
    yield _every(e, pairs, 2, done), 2
    done = e.b.add(done, e.times(pairs, 2))
    yield _every(e, e.b.sub(count, done), 1, done), 1


@contextmanager
def _every(e: Emit, count: Value, step: int, start: Value) -> Iterator[Value]:
    with e.loop(count) as i:
        yield e.b.add(e.times(i, step), start)
