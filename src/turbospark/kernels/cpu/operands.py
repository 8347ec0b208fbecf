"""What a product of rows works on, as its kernel is given it: a weight's fields, and the arguments of a call."""

from __future__ import annotations

from turbospark.kernels.cpu.codes import BLOCK, CHUNK, Codes, Decoded, Row
from turbospark.kernels.cpu.vector import I64, Emit, Value

FIELDS = ("kernel", "data", "rows", "columns", "stride", "scales", "biases", "integer")  # of a weight, int64 each
ARGUMENTS = ("weight", "x", "xq", "rows", "y", "y_stride", "start", "stop", "add")  # of a kernel, int64 each


class Operands:
    """The values, read once; see `linear` for what they mean."""

    def __init__(self, e: Emit, weight, x, xq, rows, y, y_stride, start, stop, add):
        self.e = e
        self._field = {name: e.load(I64, weight, 8 * i) for i, name in enumerate(FIELDS)}
        self.columns, self.stride = self._field["columns"], self._field["stride"]
        self.scales, self.biases = self._field["scales"], self._field["biases"]
        self.x, self.xq, self.rows, self.start, self.stop = x, xq, rows, start, stop
        self.count = e.b.sub(stop, start)
        self._y, self._y_stride = y, y_stride
        self._adds = e.b.icmp_signed("!=", add, e.number(0))

    def row(self, n: Value) -> Value:
        """Where row n of the weight lies."""
        return self.e.at(self._field["data"], self.e.times(n, self.stride))

    def put(self, value: Value, m: Value, n: Value) -> None:
        """y[m, n] and those behind it = or += value, a float or a vector of them."""
        e = self.e
        at = e.at(self._y, e.times(e.b.add(e.b.mul(m, self._y_stride), n), 4))
        with e.b.if_else(self._adds) as (adds, writes):
            with adds:
                e.store(e.b.fadd(e.load(value.type, at), value), at)
            with writes:
                e.store(value, at)


class Stored:
    """The rows of a weight in a format of codes: `chunks` and then `pairs` of each row, decoded one at a time."""

    def __init__(self, operands: Operands, codes: Codes):
        e = operands.e
        self.e, self._operands, self._codes = e, operands, codes
        blocks = e.b.sdiv(operands.columns, e.number(BLOCK))
        self.chunks = e.b.sdiv(blocks, e.number(8))
        self.pairs = e.b.sdiv(e.at(e.b.srem(blocks, e.number(8)), 1), e.number(2)) if codes.pair else None
        self.last = e.b.sub(blocks, e.number(1))
        self._blocks_of_row = e.b.sdiv(operands.columns, e.number(codes.block))

    def chunk(self, n: Value, step: Value, ahead: Value | None = None) -> Decoded:
        """Chunk `step` of row n; asks for the bytes that lie `ahead` of it."""
        e, codes = self.e, self._codes
        count = CHUNK // codes.block
        row = self._row(n, e.times(step, count), count)
        if ahead is not None:
            for line in range(0, count * codes.nbytes, 64):
                e.prefetch(e.at(e.at(row.blocks[0], ahead), line), 3)
        return codes.chunk(e, row)

    def pair(self, n: Value, step: Value, ahead: Value | None = None) -> Decoded:
        """Pair `step` behind the chunks of row n. A second block beyond the end of the row is the first again."""
        e, codes = self.e, self._codes
        count = max(1, 2 * BLOCK // codes.block)
        first = e.b.add(e.times(self.chunks, CHUNK // codes.block), e.times(step, count))
        row = self._row(n, first, 1)
        if count == 2:
            row.blocks += self._row(n, e.least(e.at(first, 1), self.last), 1).blocks
        if ahead is not None:
            e.prefetch(e.at(row.blocks[0], ahead), 3)
        assert codes.pair is not None
        return codes.pair(e, row)

    def _row(self, n: Value, first: Value, count: int) -> Row:
        """`count` blocks of row n."""
        e, operands, nbytes = self.e, self._operands, self._codes.nbytes
        start = e.at(operands.row(n), e.times(first, nbytes))
        beside = e.times(e.b.add(e.b.mul(n, self._blocks_of_row), first), 2)
        blocks = [e.at(start, nbytes * i) for i in range(count)]
        return Row(blocks, e.at(operands.scales, beside), e.at(operands.biases, beside))
