"""Routed experts: rows that chose the same one read its weights together; each row adds up in its own routing order."""

from __future__ import annotations

from turbospark.kernels.cpu import linear
from turbospark.kernels.cpu.activations import quantise, quantised_bytes
from turbospark.kernels.cpu.compile import callback, kernel
from turbospark.kernels.cpu.elementwise import add_scaled_row, copy_row, gate_row, zero_row
from turbospark.kernels.cpu.inputs import aligned, share
from turbospark.kernels.cpu.projection import STEP
from turbospark.kernels.cpu.record import get, load, put
from turbospark.kernels.cpu.threads import wait

FIELDS = (
    *("experts", "used", "hidden", "width", "activation", "integer_in", "integer_out"),
    # int64 [experts, 3]: weights of gate, up and down; int64 [experts]: 1 for those to compute in this call
    *("table", "taken"),
    # x and out float32 [rows, hidden]; base likewise, or 0; ids int64 and weights float32 [rows, used]
    # last: 1 when with these all have been computed, and the rows are summed up
    *("rows", "x", "out", "base", "ids", "weights", "last"),
    # memory: int64 [experts + 1], where each expert's rows begin among all; int64 [rows * used], the place of each
    # choice among them; QUANTS_FIELDS an expert; then float32 [places, hidden or width] of all experts
    *("starts", "places", "quants", "inputs", "inner", "gates", "sums"),
)
EXPERTS, USED, HIDDEN, WIDTH, ACTIVATION, INTEGER_IN, INTEGER_OUT, TABLE, TAKEN = range(9)
ROWS, X, OUT, BASE, IDS, WEIGHTS, LAST, STARTS, PLACES, QUANTS, INPUTS, INNER, GATES, SUMS = range(9, 23)
OF_INPUTS, OF_INNER, QUANTS_FIELDS = range(3)  # addresses of quantised copies


@kernel
def arrange(record, memory, size):
    """Sorts the choices by expert and lays out memory; returns 0, or bytes to come again with when `size` is less."""
    experts, used, rows = get(record, EXPERTS), get(record, USED), get(record, ROWS)
    hidden, width, ids = get(record, HIDDEN), get(record, WIDTH), get(record, IDS)
    count = rows * used
    starts, places = memory, memory + 8 * (experts + 1)
    quants = places + 8 * count
    inputs = aligned(quants + 8 * QUANTS_FIELDS * experts)
    if inputs - memory > size:
        return inputs - memory
    _sort(ids, count, experts, starts, places)
    inner = inputs + aligned(4 * count * hidden)
    gates = inner + aligned(4 * count * width)
    sums = gates + 2 * aligned(4 * count * width)
    end = sums + aligned(4 * count * hidden)
    for e in range(experts):
        chose = get(starts, e + 1) - get(starts, e)
        put(quants + 8 * QUANTS_FIELDS * e, OF_INPUTS, end)
        end += aligned(quantised_bytes(chose, hidden))
        put(quants + 8 * QUANTS_FIELDS * e, OF_INNER, end)
        end += aligned(quantised_bytes(chose, width))
    if end - memory > size:
        return end - memory
    put(record, STARTS, starts)
    put(record, PLACES, places)
    put(record, QUANTS, quants)
    put(record, INPUTS, inputs)
    put(record, INNER, inner)
    put(record, GATES, gates)
    put(record, SUMS, sums)
    return 0


@kernel
def _sort(ids, count, experts, starts, places):
    """Where each expert's choices begin when they are sorted, and where each choice comes to lie."""
    for e in range(experts + 1):
        put(starts, e, 0)
    for i in range(count):
        e = get(ids, i)
        put(starts, e + 1, get(starts, e + 1) + 1)
    for e in range(experts):
        put(starts, e + 1, get(starts, e + 1) + get(starts, e))
    for i in range(count):  # starts move to the ends ...
        e = get(ids, i)
        put(places, i, get(starts, e))
        put(starts, e, get(starts, e) + 1)
    for e in range(experts, 0, -1):  # ... and back
        put(starts, e, get(starts, e - 1))
    put(starts, 0, 0)


@kernel
def _taken(record, e):
    """How many rows of an expert are to be computed in this call."""
    starts = get(record, STARTS)
    return get(get(record, TAKEN), e) * (get(starts, e + 1) - get(starts, e))


@kernel
def _quants(record, e, which):
    """Where the quantised copy of an expert's rows lies, OF_INPUTS or OF_INNER."""
    return get(get(record, QUANTS) + 8 * QUANTS_FIELDS * e, which)


@kernel
def _gather(record, thread, threads):
    """A thread's share of the choices: the rows of those taken copied to their places."""
    used, hidden, inputs = get(record, USED), get(record, HIDDEN), get(record, INPUTS)
    first, last = share(get(record, ROWS) * used, 1, thread, threads)
    for i in range(first, last):
        if get(get(record, TAKEN), get(get(record, IDS), i)) == 0:
            continue
        place = get(get(record, PLACES), i)
        copy_row(get(record, X) + 4 * (i // used) * hidden, inputs + 4 * place * hidden, hidden)


@kernel
def _quantise(record, at, columns, which, thread, threads):
    """A thread's share of the quantised copies of the rows at `at`, those of an expert together."""
    count, starts = get(record, ROWS) * get(record, USED), get(record, STARTS)
    first, last = share(count, 1, thread, threads)
    for e in range(get(record, EXPERTS)):
        start = get(starts, e)
        stop = start + _taken(record, e)
        low, high = max(first, start), min(last, stop)
        if low < high:
            x, quants = at + 4 * start * columns, _quants(record, e, which)
            quantise(x, stop - start, columns, columns, quants, low - start, high - start)


@kernel
def _inner(record, thread, threads):
    """act(gate) * up of every expert taken, a thread's share of the columns."""
    count, hidden, width = get(record, ROWS) * get(record, USED), get(record, HIDDEN), get(record, WIDTH)
    inputs, inner, starts = get(record, INPUTS), get(record, INNER), get(record, STARTS)
    gates = get(record, GATES)
    ups = gates + aligned(4 * count * width)
    first, last = share(width, STEP, thread, threads)
    for e in range(get(record, EXPERTS)):
        start, rows = get(starts, e), _taken(record, e)
        if rows == 0 or first >= last:
            continue
        x, weights = inputs + 4 * start * hidden, get(record, TABLE) + 24 * e
        quants = _quants(record, e, OF_INPUTS)
        at = 4 * start * width
        linear.rows(get(weights, 0), x, quants, rows, gates + at, width, first, last, 0)
        linear.rows(get(weights, 1), x, quants, rows, ups + at, width, first, last, 0)
        for i in range(rows):
            row = at + 4 * (i * width + first)
            gate_row(get(record, ACTIVATION), gates + row, ups + row, inner + row, last - first)


@kernel
def _outer(record, thread, threads):
    """down of every expert taken and, in the last call, the sums of all rows, a thread's share of the columns."""
    used, hidden, width, starts = get(record, USED), get(record, HIDDEN), get(record, WIDTH), get(record, STARTS)
    inner, sums = get(record, INNER), get(record, SUMS)
    first, last = share(hidden, STEP, thread, threads)
    if first >= last:
        return
    for e in range(get(record, EXPERTS)):
        start, rows = get(starts, e), _taken(record, e)
        if rows > 0:
            quants = _quants(record, e, OF_INNER)
            x, y = inner + 4 * start * width, sums + 4 * start * hidden
            linear.rows(get(get(record, TABLE) + 24 * e, 2), x, quants, rows, y, hidden, first, last, 0)
    if get(record, LAST) == 0:
        return
    for row in range(get(record, ROWS)):
        at = 4 * (row * hidden + first)
        out = get(record, OUT) + at
        if get(record, BASE) != 0:
            copy_row(get(record, BASE) + at, out, last - first)
        else:
            zero_row(out, last - first)
        for j in range(used):
            i = row * used + j
            line = sums + 4 * (get(get(record, PLACES), i) * hidden + first)
            add_scaled_row(line, load(get(record, WEIGHTS) + 4 * i), out, last - first)


@callback
def experts(record, team, thread, threads):
    """All of it, after `arrange`."""
    _gather(record, thread, threads)
    wait(team, threads)
    if get(record, INTEGER_IN) != 0:
        _quantise(record, get(record, INPUTS), get(record, HIDDEN), OF_INPUTS, thread, threads)
        wait(team, threads)
    _inner(record, thread, threads)
    wait(team, threads)
    if get(record, INTEGER_OUT) != 0:
        _quantise(record, get(record, INNER), get(record, WIDTH), OF_INNER, thread, threads)
        wait(team, threads)
    _outer(record, thread, threads)
