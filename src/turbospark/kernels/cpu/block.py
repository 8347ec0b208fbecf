"""A drafter's block: all of its layers as one region, in place in the stream; and the keys of what it has read.

A sublayer stands between the two sides of a convolution, whose kernels are a constant and a product of its input:

    y[i, c] = sum over t of (base[side, t, c] + d[i, side, t, c // width]) * x[i - t, c], none from before the block
"""

from __future__ import annotations

from turbospark.kernels.cpu import attention, heads
from turbospark.kernels.cpu.attend import HEADS, OUTPUT, QKV, attended
from turbospark.kernels.cpu.compile import call_address, callback, kernel
from turbospark.kernels.cpu.elementwise import add_product_row, add_row, add_scaled_row, zero_row
from turbospark.kernels.cpu.inputs import share
from turbospark.kernels.cpu.norms import rms_row
from turbospark.kernels.cpu.projection import projected
from turbospark.kernels.cpu.record import get, load, put, real
from turbospark.kernels.cpu.threads import wait

# sublayers are described behind the fields; the norm behind them all; `inside`: int64 [rows], the place of each in its
# block. Memory, float32 [rows, columns] each: the stream, its norm, that through one side of a convolution, what the
# sublayer made of it, the stream's last norm; and [rows, outputs of the projection], the kernels
FIELDS = (
    *("sublayers", "norm", "eps", "rows", "columns", "inside"),
    *("stream", "normed", "mixed", "result", "out", "kernels"),
)
SUBLAYERS, LAST_NORM, LAST_EPS, ROWS, COLUMNS, INSIDE, STREAM, NORMED, MIXED, RESULT, OUT, KERNELS = range(len(FIELDS))
# the region and the record of the sublayer itself, whether it is attention, how near are the keys that it sees, 0 all,
# and whether none from after the row; its norm; its convolution: taps, 0 where there is none, channels that share a
# kernel, the address of base, the record of the projection
SUBLAYER_FIELDS = (
    *("region", "record", "attends", "window", "causal"),
    *("norm", "eps", "taps", "width", "base", "projection"),
)
REGION, RECORD, ATTENDS, WINDOW, CAUSAL, NORM, EPS, TAPS, WIDTH, BASE, PROJECTION = range(len(SUBLAYER_FIELDS))

# of `remember`: records of what projects the rows that are read, and of what makes all layers' keys and values of that;
# how many layers, whose heads' records follow
READING_FIELDS = ("fc", "keys", "layers")
FC, KEYS, LAYERS = range(len(READING_FIELDS))


@kernel
def see(sublayer, positions, start, stop, since, first, last):
    """The first and last position that each row of a block sees, to int64 [rows] at `first` and `last`.

    start, stop: the block's rows; since: the first position that its sequence has.
    """
    window, end = get(sublayer, WINDOW), get(positions, stop - 1)
    for row in range(start, stop):
        position = get(positions, row)
        low, high = since, position if get(sublayer, CAUSAL) != 0 else end
        if window > 0:
            low, high = max(low, position - window + 1), min(high, position + window - 1)
        put(first, row, low)
        put(last, row, high)


@kernel
def sublayer_at(record, i):
    return record + 8 * (len(FIELDS) + len(SUBLAYER_FIELDS) * i)


@kernel
def _convolve(record, sublayer, side, x, row, out):
    """Adds a row through one side to `out`; x: the rows it reads."""
    columns, taps, width = get(record, COLUMNS), get(sublayer, TAPS), get(sublayer, WIDTH)
    groups = columns // width
    for t in range(min(taps, get(get(record, INSIDE), row) + 1)):
        source = x + 4 * (row - t) * columns
        add_product_row(get(sublayer, BASE) + 4 * (side * taps + t) * columns, source, out, columns)
        factors = get(record, KERNELS) + 4 * ((2 * row + side) * taps + t) * groups
        for g in range(groups):
            at = 4 * g * width
            add_scaled_row(source + at, load(factors + 4 * g), out + at, width)


@kernel
def _sublayer(record, sublayer, team, thread, threads):
    columns, taps = get(record, COLUMNS), get(sublayer, TAPS)
    stream, normed = get(record, STREAM), get(record, NORMED)
    first, last = share(get(record, ROWS), 1, thread, threads)
    for row in range(first, last):
        at = 4 * row * columns
        rms_row(stream + at, get(sublayer, NORM), real(sublayer, EPS), normed + at, columns)
    wait(team, threads)
    if taps > 0:
        projected(get(sublayer, PROJECTION), team, thread, threads)
        wait(team, threads)
        for row in range(first, last):
            out = get(record, MIXED) + 4 * row * columns
            zero_row(out, columns)
            _convolve(record, sublayer, 0, normed, row, out)
        wait(team, threads)
    call_address(get(sublayer, REGION), (get(sublayer, RECORD), team, thread, threads))
    wait(team, threads)
    for row in range(first, last):
        out, result = stream + 4 * row * columns, get(record, RESULT)
        if taps > 0:
            _convolve(record, sublayer, 1, result, row, out)
        else:
            add_row(out, result + 4 * row * columns, out, columns)


@callback
def block(record, team, thread, threads):
    for i in range(get(record, SUBLAYERS)):
        _sublayer(record, sublayer_at(record, i), team, thread, threads)
    columns = get(record, COLUMNS)
    first, last = share(get(record, ROWS), 1, thread, threads)
    for row in range(first, last):
        at = 4 * row * columns
        rms_row(
            get(record, STREAM) + at, get(record, LAST_NORM), real(record, LAST_EPS), get(record, OUT) + at, columns
        )


@callback
def inner_attention(record, team, thread, threads):
    """Attention with its projections and nothing around it; the record is one of `attend.FIELDS`."""
    projected(get(record, QKV), team, thread, threads)
    wait(team, threads)
    attended(get(record, HEADS), team, thread, threads)
    wait(team, threads)
    projected(get(record, OUTPUT), team, thread, threads)


@callback
def remember(record, team, thread, threads):
    """Keys and values of rows that nothing is asked about."""
    projected(get(record, FC), team, thread, threads)
    wait(team, threads)
    projected(get(record, KEYS), team, thread, threads)
    wait(team, threads)
    for layer in range(get(record, LAYERS)):
        middle = get(record, len(READING_FIELDS) + layer)
        memory = get(middle, attention.OWN) + thread * get(middle, attention.OWN_SIZE)
        for item in range(thread, get(middle, attention.ROWS) * get(middle, attention.KV_HEADS), threads):
            heads.keep(middle, item, memory)
