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
from turbospark.kernels.cpu.inputs import LINE
from turbospark.kernels.cpu.vector import F32, I16, I32, I64, Emit, F32x8, I32x8, Value, emitted

BLOCK = 64  # positions
QUERIES, KEYS, COLUMNS = 3, 4, 4  # of a tile: its sums stay in twelve registers
LANES = 32  # positions whose weights are computed together: shorter chains one after the other leave the core waiting
NOTHING = float("-inf")


@intrinsic
def scores(typingctx, element, q, queries, q_stride, k, k_stride, low, high, width, out, next_k, v, v_stride, v_width):
    """out [queries, 64]: q . k for the positions low..high-1 of a block, and some around them.

    element: the literal bytes of a cached number, 2 or 4. Strides are bytes; width a multiple of 8. Meanwhile the rows
    at the same positions of next_k and v, which will be read next, are asked for.
    """
    if not isinstance(element, types.IntegerLiteral):
        return None
    size = element.literal_value

    def write(e: Emit, _, q, queries, q_stride, k, k_stride, low, high, width, out, next_k, v, v_stride, v_width):
        first = e.b.sdiv(low, e.number(KEYS))
        quads = e.b.sub(e.b.sdiv(e.at(high, KEYS - 1), e.number(KEYS)), first)
        chunks = e.b.sdiv(width, e.number(8))
        with e.loop(quads) as i:
            key = e.times(e.b.add(i, first), KEYS)
            keys = [e.at(k, e.times(e.at(key, j), k_stride)) for j in range(KEYS)]
            for rows, stride, columns in ((next_k, k_stride, width), (v, v_stride, v_width)):
                start = e.at(rows, e.times(key, stride))
                with e.loop(e.b.sdiv(e.times(columns, KEYS * size), e.number(LINE))) as line:
                    e.prefetch(e.at(start, e.times(line, LINE)), 3)
            for at, tile in _tiles(e, queries, QUERIES):
                with at as n:
                    rows = [e.at(q, e.times(e.at(n, m), q_stride)) for m in range(tile)]
                    sums = _dots(e, rows, keys, chunks, size)
                    for m in range(tile):
                        line = e.at(out, e.times(e.at(n, m), 4 * BLOCK))
                        e.store(_four_totals(e, sums[m]), line, e.times(key, 4))

    return types.void(element, *[types.int64] * 13), emitted(write)


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
def bound(typingctx, line, low, high, start, stop, scale, softcap, most):
    """Turns the scores at `line` into s = score * scale, through tanh(s / softcap) * softcap where softcap is not 0.

    Of the 64, the groups `start` to `stop` - 1 of LANES are looked at; s is nothing outside the positions low..high-1.
    The largest s goes to the address `most`. scale and softcap are float32, the rest int64.
    """

    def write(e: Emit, line, low, high, start, stop, scale, softcap, most):
        start, stop = (e.times(value, LANES // 8) for value in (start, stop))
        eights, capped = e.b.sub(stop, start), e.b.fcmp_ordered("!=", softcap, ir.Constant(F32, 0.0))
        with e.b.if_then(capped):
            scales, caps = e.splat(scale, 8), e.splat(softcap, 8)
            with e.loop(eights) as c:
                at = e.times(e.b.add(c, start), 32)
                ratio = e.b.fdiv(e.b.fmul(e.load(F32x8, line, at), scales), caps)
                e.store(e.b.fmul(tanh(e, ratio), caps), line, at)
        scales = e.splat(e.b.select(capped, ir.Constant(F32, 1.0), scale), 8)
        after, before = (e.splat(e.b.trunc(value, I32), 8) for value in (low, high))
        largest = e.variable(F32x8)
        e.b.store(e.fill(F32x8, NOTHING), largest)
        with e.loop(eights) as i:
            c = e.b.add(i, start)
            lanes = e.b.add(e.splat(e.b.trunc(e.times(c, 8), I32), 8), ir.Constant(I32x8, list(range(8))))
            seen = e.b.and_(e.b.icmp_signed(">=", lanes, after), e.b.icmp_signed("<", lanes, before))
            value = e.b.fmul(e.load(F32x8, line, e.times(c, 32)), scales)
            score = e.b.select(seen, value, e.fill(F32x8, NOTHING))
            e.store(score, line, e.times(c, 32))
            so_far = e.b.load(largest)
            e.b.store(select(e, ">", score, so_far, score, so_far), largest)
        top = e.b.load(largest)
        for order in ((4, 5, 6, 7, 0, 1, 2, 3), (2, 3, 0, 1, 6, 7, 4, 5), (1, 0, 3, 2, 5, 4, 7, 6)):
            other = e.shuffle(top, top, order)
            top = select(e, ">", other, top, other, top)
        e.store(e.b.extract_element(top, ir.Constant(I32, 0)), most)

    signature = types.void(*[types.int64] * 5, types.float32, types.float32, types.int64)
    return signature, emitted(write)


@intrinsic
def weigh(typingctx, line, start, stop, most, total):
    """Turns s into weights e^(s - m) after `bound`, nothing into 0; their sum goes to the address `total`."""
    wide = ir.VectorType(F32, LANES)

    def write(e: Emit, line, start, stop, most, total):
        largest, nothing = e.splat(e.load(F32, most), LANES), e.fill(wide, NOTHING)
        sums = e.variable(F32x8)
        e.b.store(ir.Constant(F32x8, None), sums)
        with e.loop(e.b.sub(stop, start)) as i:
            at = e.times(e.b.add(i, start), 4 * LANES)
            score = e.load(wide, line, at)
            weight = exp(e, e.b.fsub(score, largest))
            weight = select(e, "==", score, nothing, ir.Constant(wide, None), weight)
            e.store(weight, line, at)
            for lane in range(0, LANES, 8):
                part = e.shuffle(weight, weight, range(lane, lane + 8))
                e.b.store(e.b.fadd(e.b.load(sums), part), sums)
        e.store(e.total(e.b.load(sums)), total)

    return types.void(*[types.int64] * 5), emitted(write)


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
        both = exp(e, e.join(*(e.splat(e.b.fsub(value, top), 4) for value in (old, new))))
        keep, take = (e.shuffle(both, both, [lane] * 8) for lane in (0, 4))
        lane = lambda vector: e.b.extract_element(vector, ir.Constant(I32, 0))
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
