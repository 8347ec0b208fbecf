"""A format's stored blocks as vectors of codes: what the integer kernels know of each format.

Work goes by *chunks* of 256 values, eight blocks of 32, and by *pairs* of two blocks where a row ends before a whole
chunk. In a chunk lane l of every vector belongs to block LANES[l], and code vector i holds values 4i..4i+3 of each
block. In a pair the low half of every vector belongs to the first block and the high half to the second; code vector 0
holds values 0..15 of both and code vector 1 values 16..31.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from turbospark.kernels.cpu.dots import SIGNED
from turbospark.kernels.cpu.vector import I16, I32, I64, Emit, I8x16, I8x32, I16x8, I32x4, I32x8, Value

CHUNK, BLOCK = 256, 32
LANES = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Part:
    """Codes that share one scale a lane; a code stands for scale * (code - centre), centre a power of two or 0."""

    codes: list[Value]
    scale: Value
    width: int
    centre: int = 0


@dataclass
class Decoded:
    """A chunk or pair of one weight row: one part, or two that halve each block; `low` is added to every value."""

    parts: list[Part]
    low: Value | None = None


@dataclass(frozen=True)
class Codes:
    """How to decode a format. `chunk(e, row)` and `pair(e, row)`: see `Row`. `nbytes` is the size of `block` values."""

    block: int
    nbytes: int
    chunk: Callable[[Emit, Row], Decoded]
    pair: Callable[[Emit, Row], Decoded] | None = None


@dataclass
class Row:
    """Where a chunk or pair lies: addresses of its stored blocks, and of its first scale and bias kept apart (BF16)."""

    blocks: list[Value]
    scales: Value | None = None
    biases: Value | None = None


# blocks of 32


def _nibbles(e: Emit, packed: Sequence[Value]) -> list[Value]:
    """The low halves of all vectors, then the high ones, as bytes."""
    rows = [e.cast(p, I8x32) for p in packed]
    return [e.bits(p, 15) for p in rows] + [e.right(p, 4) for p in rows]


def _quads(e: Emit, row: Row, offset: int) -> list[Value]:
    """16 bytes at an offset of each of eight blocks, dword i of all of them in vector i."""
    rows = [_two(e, row.blocks[2 * k : 2 * k + 2], offset) for k in range(4)]
    return e.transpose4(rows)


def _two(e: Emit, blocks: Sequence[Value], offset: int) -> Value:
    """16 bytes at an offset of two blocks."""
    return e.join(*(e.load(I32x4, block, offset) for block in blocks))


def _each(e: Emit, kind: ir.Type, row: Row, offset: int = 0) -> Value:
    """What lies at an offset of each block, in lane order."""
    if len(row.blocks) == 2:
        two = e.gather(kind, [e.at(block, offset) for block in row.blocks])
        return e.shuffle(two, two, [0] * 4 + [1] * 4)
    return e.gather(kind, [e.at(row.blocks[block], offset) for block in LANES])


def _two_halves(e: Emit, both: Value) -> tuple[Value, Value]:
    """The float16 in the low bits of each lane, and in the high bits."""
    return e.halves(e.narrow(both, I16)), e.halves(e.narrow(e.right(both, 16), I16))


def _q8_0_chunk(e: Emit, row: Row) -> Decoded:
    codes = [e.cast(v, I8x32) for v in _quads(e, row, 2) + _quads(e, row, 18)]
    return Decoded([Part(codes, e.halves(_each(e, I16, row)), SIGNED)])


def _q8_0_pair(e: Emit, row: Row) -> Decoded:
    codes = [e.cast(_two(e, row.blocks, offset), I8x32) for offset in (2, 18)]
    return Decoded([Part(codes, e.halves(_each(e, I16, row)), SIGNED)])


def _q4_0_chunk(e: Emit, row: Row) -> Decoded:
    return Decoded([Part(_nibbles(e, _quads(e, row, 2)), e.halves(_each(e, I16, row)), 4, 8)])


def _q4_0_pair(e: Emit, row: Row) -> Decoded:
    return Decoded([Part(_nibbles(e, [_two(e, row.blocks, 2)]), e.halves(_each(e, I16, row)), 4, 8)])


def _q4_1_chunk(e: Emit, row: Row) -> Decoded:
    scale, low = _two_halves(e, _each(e, I32, row))
    return Decoded([Part(_nibbles(e, _quads(e, row, 4)), scale, 4)], low)


def _q4_1_pair(e: Emit, row: Row) -> Decoded:
    scale, low = _two_halves(e, _each(e, I32, row))
    return Decoded([Part(_nibbles(e, [_two(e, row.blocks, 4)]), scale, 4)], low)


def _heads(e: Emit, row: Row) -> tuple[Value, Value]:
    """The first and the second four bytes of each block, in lane order."""
    if len(row.blocks) == 2:
        two = _two(e, row.blocks, 0)
        return e.shuffle(two, two, [0] * 4 + [4] * 4), e.shuffle(two, two, [1] * 4 + [5] * 4)
    first, second, *_ = _quads(e, row, 0)
    return first, second


def _five_bits(e: Emit, nibbles: Sequence[Value], high: Sequence[Value]) -> list[Value]:
    """Codes of nibbles and of fifth bits, of which each lane of the two vectors `high` has sixteen, lowest first."""
    whole = len(nibbles) == 8
    codes = []
    # a dword's four bits come to the upper half of a byte, that byte to all of the dword, and each keeps one bit
    for i, nibble in enumerate(nibbles):
        source = high[i // 4 if whole else i]
        if whole:
            source, at = (e.left(source, 4) if i % 2 == 0 else source), [i // 2 % 2] * 8
        else:
            source, at = e.b.shl(source, ir.Constant(I32x8, [4, 0] * 4)), [0, 0, 1, 1] * 2
        source = e.cast(source, I8x32)
        same = e.shuffle(source, source, [4 * lane + at[lane] for lane in range(8) for _ in range(4)])
        bit = e.b.and_(same, ir.Constant(I8x32, [16, 32, 64, 128] * 8))
        codes.append(e.b.or_(nibble, e.call("llvm.umin.v32i8", I8x32, bit, e.fill(I8x32, 16))))
    return codes


def _q5_0(e: Emit, row: Row) -> Decoded:
    first, second = _heads(e, row)
    packed = _quads(e, row, 6) if len(row.blocks) == 8 else [_two(e, row.blocks, 6)]
    codes = _five_bits(e, _nibbles(e, packed), (e.right(first, 16), second))
    return Decoded([Part(codes, e.halves(e.narrow(first, I16)), 5, 16)])


def _q5_1(e: Emit, row: Row) -> Decoded:
    first, high = _heads(e, row)
    scale, low = _two_halves(e, first)
    packed = _quads(e, row, 8) if len(row.blocks) == 8 else [_two(e, row.blocks, 8)]
    return Decoded([Part(_five_bits(e, _nibbles(e, packed), (high, e.right(high, 16))), scale, 5)], low)


# INT4 affine: a group of 64 is two blocks


def _int4_group(e: Emit, address: Value) -> list[Value]:
    """32 bytes to values 0..15 of both blocks and values 16..31 of both."""
    packed = e.load(I8x32, address)
    low, high = e.bits(packed, 15), e.right(packed, 4)
    mixed = []
    for start in (0, 8):
        lanes = [
            lane + 32 * odd for half in (0, 16) for lane in range(half + start, half + start + 8) for odd in (0, 1)
        ]
        mixed.append(e.shuffle(low, high, lanes))
    return mixed


def _int4_chunk(e: Emit, row: Row) -> Decoded:
    groups = [_int4_group(e, block) for block in row.blocks]
    codes = [e.cast(v, I8x32) for i in (0, 1) for v in e.transpose4([e.cast(g[i], I32x8) for g in groups])]
    scale, low = (e.bfloats(e.load(ir.VectorType(I16, 4), at)) for at in (row.scales, row.biases))
    twice = (0, 1, 2, 3) * 2
    return Decoded([Part(codes, e.shuffle(scale, scale, twice), 4)], e.shuffle(low, low, twice))


def _int4_pair(e: Emit, row: Row) -> Decoded:
    scale, low = (e.bfloats(e.gather(I16, [at] * 8)) for at in (row.scales, row.biases))
    return Decoded([Part(_int4_group(e, row.blocks[0]), scale, 4)], low)


# superblocks of 256


def _by_dword(e: Emit, blocks: Sequence[Value]) -> list[Value]:
    """Eight byte vectors, each the 32 codes of a block, to code vectors of a chunk."""
    rows = [e.cast(b, I32x8) for b in blocks]
    halves = [e.halves_of(a, b) for a, b in zip(e.transpose4(rows[0::2]), e.transpose4(rows[1::2]), strict=True)]
    return [e.cast(half, I8x32) for k in (0, 1) for half in (h[k] for h in halves)]


def by_block(e: Emit, codes: Sequence[Value]) -> list[Value]:
    """The inverse of `_by_dword`: code vectors of a chunk to eight byte vectors, each the 32 codes of a block."""
    rows = [e.cast(c, I32x8) for c in codes]
    halves = [e.halves_of(rows[i], rows[i + 4]) for i in range(4)]
    even, odd = (e.transpose4([h[k] for h in halves]) for k in (0, 1))
    return [e.cast(v, I8x32) for pair in zip(even, odd, strict=True) for v in pair]


def _six_bits(e: Emit, block: Value) -> tuple[Value, Value]:
    """d * scale and -(dmin * low) of the eight groups of a Q4_K or Q5_K block, in lane order.

    Two words hold scales and lows of groups 0..3 and of groups 4..7, four bytes each.
    """
    b, every = e.b, lambda byte: I64(byte * 0x0101010101010101)
    six, nibbles = e.load(I64, block, 4), b.zext(e.load(I32, block, 12), I64)
    early = b.and_(six, every(0x3F))
    upper = b.and_(b.lshr(six, I64(2)), every(0x30))
    late = b.or_(b.and_(b.or_(nibbles, b.shl(nibbles, I64(28))), every(0x0F)), upper)
    words = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
    for i, word in enumerate((early, late)):
        words = b.insert_element(words, word, I32(i))
    numbers = e.cast(words, I8x16)
    of_groups = lambda first: e.shuffle(numbers, numbers, [first + group % 4 + 8 * (group // 4) for group in LANES])
    scale, low = (e.floats(e.widen(of_groups(first), I32)) for first in (0, 4))
    units = e.halves(e.load(I16x8, block))
    d, dmin = (e.shuffle(units, units, [i] * 8) for i in (0, 1))
    return b.fmul(d, scale), b.fneg(b.fmul(dmin, low))


def _q4_k_chunk(e: Emit, row: Row) -> Decoded:
    block = row.blocks[0]
    scale, low = _six_bits(e, block)
    packed = e.transpose4([e.load(I32x8, block, 16 + 32 * k) for k in range(4)])
    nibbles = [e.cast(v, I32x8) for v in _nibbles(e, packed)]
    halves = [e.halves_of(nibbles[i], nibbles[i + 4]) for i in range(4)]
    codes = [e.cast(h[k], I8x32) for k in (0, 1) for h in halves]
    return Decoded([Part(codes, scale, 4)], low)


def _q5_k_chunk(e: Emit, row: Row) -> Decoded:
    block = row.blocks[0]
    scale, low = _six_bits(e, block)
    high = e.load(I8x32, block, 16)
    codes = []
    for group in range(8):
        quad = e.load(I8x32, block, 48 + 32 * (group // 2))
        nibble = e.right(quad, 4) if group % 2 else e.bits(quad, 15)
        fifth = e.right(high, group - 4) if group >= 4 else e.left(high, 4 - group)
        codes.append(e.b.or_(nibble, e.bits(fifth, 16)))
    return Decoded([Part(_by_dword(e, codes), scale, 5)], low)


def _q6_k_chunk(e: Emit, row: Row) -> Decoded:
    block = row.blocks[0]
    codes = []
    for half in range(2):
        high = e.load(I8x32, block, 128 + 32 * half)
        for run in range(4):
            quad = e.load(I8x32, block, 64 * half + 32 * (run % 2))
            nibble = e.right(quad, 4) if run >= 2 else e.bits(quad, 15)
            upper = e.right(high, 2 * run - 4) if run >= 2 else e.left(high, 4 - 2 * run)
            codes.append(e.b.or_(nibble, e.bits(upper, 0x30)))
    codes = _by_dword(e, codes)
    scales = e.load(I8x16, block, 192)
    d = e.halves(e.gather(I16, [e.at(block, 208)] * 8))
    parts = []
    for odd in (0, 1):
        eight = e.shuffle(scales, scales, [2 * b + odd for b in LANES])
        scale = e.b.fmul(d, e.floats(e.widen(eight, I32, signed=True)))
        parts.append(Part(codes[4 * odd : 4 * odd + 4], scale, 6, 32))
    return Decoded(parts)


CODES = {
    "Q8_0": Codes(32, 34, _q8_0_chunk, _q8_0_pair),
    "Q4_0": Codes(32, 18, _q4_0_chunk, _q4_0_pair),
    "Q4_1": Codes(32, 20, _q4_1_chunk, _q4_1_pair),
    "Q5_0": Codes(32, 22, _q5_0, _q5_0),
    "Q5_1": Codes(32, 24, _q5_1, _q5_1),
    "INT4": Codes(64, 32, _int4_chunk, _int4_pair),
    "Q4_K": Codes(256, 144, _q4_k_chunk),
    "Q5_K": Codes(256, 176, _q5_k_chunk),
    "Q6_K": Codes(256, 210, _q6_k_chunk),
}
