"""The float product: float32 activations by weights that are floats, or by decoded codes.

Value k of a row belongs to lane k % 8 of sum k // 8 % 2: sum = fma(weight, x, sum), in the order of k. At last the two
sums are added, then the lanes in one fixed tree. Codes are decoded exactly as `quant.decode` does, so that a matrix of
any format gives the bits of its decoded float32 copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from llvmlite import ir
from numba import types

from turbospark.kernels.cpu.codes import BLOCK, CHUNK, CODES, LANES, Decoded, by_block
from turbospark.kernels.cpu.compile import intrinsic
from turbospark.kernels.cpu.dots import SIGNED
from turbospark.kernels.cpu.operands import ARGUMENTS, Operands, Stored
from turbospark.kernels.cpu.product import AHEAD
from turbospark.kernels.cpu.vector import F32, I16, I32, I64, Emit, F32x8, I8x32, I32x8, Value, emitted

SUMS = 2  # sums of an output, so that one fma needs not wait for the last
TOGETHER = 3  # activation rows that share a load of weights: their sums and two weight rows just fit 16 registers
TILE_N = 16  # weight rows that stay in the cache for all activation rows
STEP = 32  # values a step takes of weights that are floats
ELEMENTS = {"F32": F32, "F16": I16, "BF16": I16}  # as what a value is loaded


@intrinsic
def float_product(typingctx, format, weight, x, xq, rows, y, y_stride, start, stop, add):
    """y[m, n] = or += sum of w[n] * x[m] for n in start..stop-1 and all rows m; `format` is a literal name."""
    if not isinstance(format, types.StringLiteral):
        return None
    name = format.literal_value
    product = _Plain if name in ELEMENTS else _Coded

    def write(e: Emit, _, *values: Value) -> None:
        product(Operands(e, *values), name).write()

    return types.void(format, *[types.int64] * len(ARGUMENTS)), emitted(write)


class _Outputs:
    """Outputs that are formed together: every weight row in `ns` by every activation row in `ms`."""

    def __init__(self, operands: Operands, ns: Sequence[Value], ms: Sequence[Value]):
        e = operands.e
        self.e, self.operands, self.ns, self.ms = e, operands, ns, ms
        self._x = [e.at(operands.x, e.times(e.b.mul(m, operands.columns), 4)) for m in ms]
        self._sums = [[[e.variable(F32x8) for _ in range(SUMS)] for _ in ms] for _ in ns]
        for variable in (v for row in self._sums for sums in row for v in sums):
            e.b.store(ir.Constant(F32x8, None), variable)

    def add(self, k: Value, rows: Sequence[Sequence[Value]], valid: Sequence[Value] | None = None) -> None:
        """Values k, k + 1, .. of each weight row as F32x8; k is a multiple of 16. `valid`: lanes that count."""
        for v in range(len(rows[0])):
            for j, x in enumerate(self._x):
                at = self.e.at(k, 8 * v)
                values = load8(self.e, F32, x, at) if valid is None else load_valid(self.e, F32, x, at, valid[v])
                for i, vectors in enumerate(rows):
                    place = self._sums[i][j][v % SUMS]
                    self.e.b.store(self.e.fma(vectors[v], values, self.e.b.load(place)), place)

    def put(self) -> None:
        for n, row in zip(self.ns, self._sums, strict=True):
            for m, sums in zip(self.ms, row, strict=True):
                self.operands.put(self.e.total(self.e.b.fadd(*(self.e.b.load(s) for s in sums))), m, n)


class _Product(ABC):
    """The loops over outputs; how the values of a weight row come about is the subclass's."""

    abreast = 1  # weight rows that are taken together

    def __init__(self, operands: Operands, name: str):
        self.e, self.operands, self.name = operands.e, operands, name

    def write(self) -> None:
        e, operands = self.e, self.operands
        whole = e.b.sdiv(operands.rows, e.number(TOGETHER))
        with e.tiles(operands.count, TILE_N) as (first, width):
            n = e.b.add(first, operands.start)
            with e.loop(whole) as i:
                m = e.times(i, TOGETHER)
                self._beside(n, width, [e.at(m, k) for k in range(TOGETHER)])
            with e.loop(e.b.srem(operands.rows, e.number(TOGETHER))) as i:
                self._beside(n, width, [e.b.add(e.times(whole, TOGETHER), i)])

    def _beside(self, n: Value, width: Value, ms: Sequence[Value]) -> None:
        """The outputs of weight rows n..n+width-1."""
        e, abreast = self.e, self.abreast
        whole = e.b.sdiv(width, e.number(abreast))
        with e.loop(whole) as i:
            first = e.b.add(n, e.times(i, abreast))
            self._form([e.at(first, k) for k in range(abreast)], ms)
        if abreast > 1:
            with e.loop(e.b.srem(width, e.number(abreast))) as i:
                self._form([e.b.add(n, e.b.add(e.times(whole, abreast), i))], ms)

    def _form(self, ns: Sequence[Value], ms: Sequence[Value]) -> None:
        outputs = _Outputs(self.operands, ns, ms)
        self.sum(outputs)
        outputs.put()

    @abstractmethod
    def sum(self, outputs: _Outputs) -> None:
        """Adds all values of the rows of `outputs`, from the first on."""


class _Plain(_Product):
    """Weights that are floats: whole steps, then what is left, 16 values at a time."""

    abreast = 2

    def sum(self, outputs: _Outputs) -> None:
        e, columns = self.e, self.operands.columns
        kind = ELEMENTS[self.name]
        rows = [self.operands.row(n) for n in outputs.ns]
        whole = e.b.sdiv(columns, e.number(STEP))
        with e.loop(whole) as step:
            k = e.times(step, STEP)
            for row in rows:
                for line in range(AHEAD, AHEAD + STEP * size(kind), 64):
                    e.prefetch(e.at(row, e.at(e.times(k, size(kind)), line)), 3)
            load = lambda row, v: self._floats(load8(e, kind, row, e.at(k, 8 * v)))
            outputs.add(k, [[load(row, v) for v in range(STEP // 8)] for row in rows])
        done = e.times(whole, STEP)
        with e.tiles(e.b.sub(columns, done), 8 * SUMS) as (start, width):
            k = e.b.add(start, done)
            lanes = ir.Constant(ir.VectorType(I64, 8), list(range(8)))
            valid = [e.b.icmp_signed("<", lanes, e.splat(e.at(width, -8 * v), 8)) for v in range(SUMS)]
            load = lambda row, v: self._floats(load_valid(e, kind, row, e.at(k, 8 * v), valid[v]))
            outputs.add(k, [[load(row, v) for v in range(SUMS)] for row in rows], valid)

    def _floats(self, values: Value) -> Value:
        if self.name == "F32":
            return values
        return self.e.halves(values) if self.name == "F16" else self.e.bfloats(values)


class _Coded(_Product):
    """Weights in blocks of codes, decoded to float32 on the way."""

    def __init__(self, operands: Operands, name: str):
        super().__init__(operands, name)
        self.stored = Stored(operands, CODES[name])

    def sum(self, outputs: _Outputs) -> None:
        e, stored = self.e, self.stored
        (n,) = outputs.ns
        with e.loop(stored.chunks) as step:
            decoded = stored.chunk(n, step, e.number(AHEAD))
            codes = [code for part in decoded.parts for code in part.codes]
            vectors = [v for block, code in enumerate(by_block(e, codes)) for v in self._values(decoded, block, code)]
            outputs.add(e.times(step, CHUNK), [vectors])
        if stored.pairs is None:
            return
        with e.loop(stored.pairs) as step:
            decoded = stored.pair(n, step)
            first, second = (e.cast(code, I32x8) for code in decoded.parts[0].codes)
            blocks = [e.cast(half, I8x32) for half in e.halves_of(first, second)]
            number = e.b.add(e.times(stored.chunks, 8), e.times(step, 2))
            outputs.add(e.times(number, BLOCK), [self._values(decoded, 0, blocks[0])])
            with e.b.if_then(e.b.icmp_signed("<", number, stored.last)):
                outputs.add(e.times(e.at(number, 1), BLOCK), [self._values(decoded, 1, blocks[1])])

    def _values(self, decoded: Decoded, block: int, code: Value) -> list[Value]:
        """A block's 32 codes as four F32x8, rounded as `quant.decode` rounds."""
        e = self.e
        lane = LANES.index(block)
        spread = lambda vector: e.shuffle(vector, vector, [lane] * 8)
        values = []
        for quarter in range(BLOCK // 8):
            part = decoded.parts[quarter * len(decoded.parts) // 4]
            eight = e.shuffle(code, code, range(8 * quarter, 8 * quarter + 8))
            ints = e.widen(eight, I32, signed=part.width == SIGNED)
            if part.centre:
                ints = e.b.sub(ints, e.fill(I32x8, part.centre))
            value = e.b.fmul(e.floats(ints), spread(part.scale))
            values.append(value if decoded.low is None else e.b.fadd(value, spread(decoded.low)))
        return values


def load8(e: Emit, kind: ir.Type, row: Value, k: Value) -> Value:
    """Values k..k+7 of a row."""
    return e.load(ir.VectorType(kind, 8), row, e.times(k, size(kind)))


def load_valid(e: Emit, kind: ir.Type, row: Value, k: Value, valid: Value) -> Value:
    """Values k..k+7 of a row where they are valid, else 0; the others are not looked at."""
    places = [e.b.select(e.b.extract_element(valid, I32(i)), e.at(k, i), e.number(0)) for i in range(8)]
    values = e.gather(kind, [e.at(row, e.times(place, size(kind))) for place in places])
    return e.b.select(valid, values, ir.Constant(values.type, None))


def size(kind: ir.Type) -> int:
    """Bytes of a value."""
    return 4 if kind == F32 else 2
