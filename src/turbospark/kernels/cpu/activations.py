"""Rows of activations as 8-bit blocks of 32, laid out as the integer kernels read them.

A row of K values is K // 256 chunks and then pairs of blocks for what is left. A record holds, in this order: the
int8 quants (see `codes` for their order: code vector i of a chunk or pair), and one number a lane: `scale` float32,
`scale * sum` float32, `sum` int32 of the block's quants, `first` int32 of its first sixteen. In a pair numbered p only
lanes p and p + 4 have scales, those of its two blocks: the other lanes add zeros. Records of all rows of a chunk lie
behind each other, then those of the next chunk, and pairs follow the chunks in the same way. Where a level holds two
rows abreast, several rows are laid in twos: each 32 bytes of the first row of two have those of the second behind them.

scale = largest magnitude / 127, quant = value * (127 / largest) rounded to nearest even. A block whose largest is too
small for that (below 4e-37) counts as zero; one with a NaN or infinity has a scale that is not finite.

Blocks of 32 serve every format: blocks of 256, which some engines take for K formats, are coarser and would save no
instruction here.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.codes import BLOCK, CHUNK
from turbospark.kernels.cpu.compile import intrinsic, kernel
from turbospark.kernels.cpu.levels import abreast
from turbospark.kernels.cpu.vector import I8, I32, Emit, F32x8, I32x8, Value, emitted

NUMBERS = 4 * 32  # bytes after the quants
CHUNK_BYTES, PAIR_BYTES = CHUNK + NUMBERS, 2 * BLOCK + NUMBERS
ABREAST = abreast()
ROUNDING = 12582912.0  # 1.5 * 2**23: adding it rounds to a whole number, held in the low bits


@kernel
def quantised_bytes(rows, columns):
    """Bytes of a buffer for so many rows; give it an address that is a multiple of 64."""
    blocks = (columns + BLOCK - 1) // BLOCK
    side_by_side = 1 if rows == 1 else ABREAST
    whole = (rows + side_by_side - 1) // side_by_side * side_by_side
    return whole * (blocks // 8 * CHUNK_BYTES + (blocks % 8 + 1) // 2 * PAIR_BYTES)


@intrinsic
def _block(typingctx, x, quants, quant_step, step, numbers, number_step):
    """Quantises 32 floats: dword i goes to quants + quant_step * (i // 4) + step * (i % 4)."""
    signature = types.void(*[types.int64] * 6)

    def write(e: Emit, x, quants, quant_step, step, numbers, number_step):
        values = [e.load(F32x8, x, 32 * i) for i in range(4)]
        largest = _largest(e, values)
        scale = e.b.fdiv(largest, ir.Constant(largest.type, 127.0))
        inverse = e.b.fdiv(ir.Constant(largest.type, 127.0), largest)
        tiny = e.b.fcmp_ordered("<", largest, ir.Constant(largest.type, 4e-37))
        zero = ir.Constant(largest.type, 0.0)
        scale, inverse = e.b.select(tiny, zero, scale), e.b.select(tiny, zero, inverse)
        rounding, factor = e.fill(F32x8, ROUNDING), e.splat(inverse, 8)
        sums, first = ir.Constant(I32x8, None), None
        for i, value in enumerate(values):
            # the low byte of the sum is the quant: it lies between -127 and 127
            bits = e.cast(e.b.fadd(e.b.fmul(value, factor), rounding), I32x8)
            quant = e.narrow(bits, I8)
            sums = e.b.add(sums, e.widen(quant, I32, signed=True))
            dwords = e.cast(quant, ir.VectorType(I32, 2))
            for k in (0, 1):
                dword = 2 * i + k
                at = e.at(e.at(quants, e.times(quant_step, dword // 4)), e.times(step, dword % 4))
                e.store(e.b.extract_element(dwords, ir.Constant(I32, k)), at)
            if i == 1:
                first = e.total(sums)
        total = e.total(sums)
        together = e.b.fmul(scale, e.b.sitofp(total, scale.type))
        for place, number in enumerate((scale, together, total, first)):
            e.store(number, e.at(numbers, e.times(number_step, place)))

    return signature, emitted(write)


def _largest(e: Emit, values: list[Value]) -> Value:
    """The largest magnitude; a NaN is larger than all numbers, as its bits are."""
    largest = None
    for value in values:
        size = e.bits(e.cast(value, I32x8), 0x7FFFFFFF)
        largest = size if largest is None else e.call("llvm.umax.v8i32", I32x8, largest, size)
    most = e.call("llvm.vector.reduce.umax.v8i32", I32, largest)
    return e.cast(most, ir.FloatType())


@intrinsic
def _clear(typingctx, address, step, count):
    """Writes 32 zero bytes `count` times, `step` apart."""

    def write(e: Emit, address, step, count):
        with e.loop(count) as i:
            e.store(ir.Constant(I32x8, None), e.at(address, e.times(i, step)))

    return types.void(*[types.int64] * 3), emitted(write)


@kernel
def quantise(x, rows, columns, x_stride, out, first, stop):
    """Rows first..stop-1 of x float32 [rows, columns], whose rows are x_stride values apart, into the buffer at `out`.

    columns: a multiple of 32. Addresses and sizes are int64.
    """
    blocks = columns // BLOCK
    chunks = blocks // 8
    beside = 1 if rows == 1 else ABREAST  # rows in a record
    groups = (rows + beside - 1) // beside
    step = 32 * beside
    pairs_out = out + chunks * groups * beside * CHUNK_BYTES
    for m in range(first, stop):
        source = x + m * x_stride * 4
        group, side = m // beside, 32 * (m % beside)
        for c in range(chunks):
            record = out + (c * groups + group) * beside * CHUNK_BYTES + side
            for block in range(8):
                lane = 4 * (block // 2 + 4 * (block % 2))
                _block(source, record + lane, 4 * step, step, record + CHUNK * beside + lane, step)
                source += 128
        for p in range((blocks % 8 + 1) // 2):
            record = pairs_out + (p * groups + group) * beside * PAIR_BYTES + side
            _clear(record, step, PAIR_BYTES // 32)
            for half in range(min(2, blocks % 8 - 2 * p)):
                lane = 4 * (p + 4 * half)
                _block(source, record + 16 * half, step, 4, record + 2 * BLOCK * beside + lane, step)
                source += 128
