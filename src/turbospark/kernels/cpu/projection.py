"""`project` and `merge`: matrices that read the same rows, all their outputs shared out among the threads."""

from __future__ import annotations

from turbospark.kernels.cpu import linear
from turbospark.kernels.cpu.compile import callback, kernel
from turbospark.kernels.cpu.elementwise import add_row, copy_row
from turbospark.kernels.cpu.inputs import input_bytes, ready, share
from turbospark.kernels.cpu.norms import rms_row
from turbospark.kernels.cpu.record import CALL, MEMORY, OUT, ROWS, X, Y, get, real
from turbospark.kernels.cpu.threads import wait

STEP = 16  # outputs are shared out in whole steps

# a group: columns, whether any matrix reads quantised rows; norm (0: none) of the input of `project`, of the output of
# `merge`; and the matrices, MATRIX_FIELDS each, that follow the record
FIELDS = (*CALL, "columns", "integer", "norm", "eps", "count")
COLUMNS, INTEGER, NORM, EPS, COUNT = range(len(CALL), len(FIELDS))
MATRIX_FIELDS = ("weight", "bias", "outputs", "before")  # before: outputs of the matrices before this one
WEIGHT, BIAS, OUTPUTS, BEFORE = range(len(MATRIX_FIELDS))


@kernel
def products(record, source, quantised, out, add, thread, threads):
    """A thread's share of all outputs: those of matrix i lie at out + 4 * rows * before, [rows, outputs]."""
    rows, count = get(record, ROWS), get(record, COUNT)
    matrices = record + 8 * len(FIELDS)
    last = matrices + 8 * len(MATRIX_FIELDS) * (count - 1)
    first, end = share(get(last, BEFORE) + get(last, OUTPUTS), STEP, thread, threads)
    for i in range(count):
        matrix = matrices + 8 * len(MATRIX_FIELDS) * i
        before, outputs = get(matrix, BEFORE), get(matrix, OUTPUTS)
        start, stop = max(first - before, 0), min(end - before, outputs)
        if start < stop:
            y = out + 4 * rows * before
            linear.rows(get(matrix, WEIGHT), source, quantised, rows, y, outputs, start, stop, add)
            bias = get(matrix, BIAS)
            if bias != 0:
                for row in range(rows):
                    line = y + 4 * (row * outputs + start)
                    add_row(line, bias + 4 * start, line, stop - start)


@kernel
def projected(record, team, thread, threads):
    """out = norm(x) by every matrix."""
    rows, columns = get(record, ROWS), get(record, COLUMNS)
    norm, eps, integer = get(record, NORM), real(record, EPS), get(record, INTEGER)
    source, quantised = ready(
        get(record, MEMORY), get(record, X), rows, columns, norm, eps, integer, team, thread, threads
    )
    products(record, source, quantised, get(record, OUT), 0, thread, threads)


@kernel
def merged(record, team, thread, threads):
    """out = x + norm(y by the one matrix)."""
    rows, columns, memory = get(record, ROWS), get(record, COLUMNS), get(record, MEMORY)
    x, out, norm = get(record, X), get(record, OUT), get(record, NORM)
    source, quantised = ready(
        memory, get(record, Y), rows, columns, 0, real(record, EPS), get(record, INTEGER), team, thread, threads
    )
    outputs = get(record + 8 * len(FIELDS), OUTPUTS)
    first, last = share(outputs, STEP, thread, threads)
    if norm == 0:
        for row in range(rows):
            at = 4 * (row * outputs + first)
            copy_row(x + at, out + at, last - first)
        products(record, source, quantised, out, 1, thread, threads)
        return
    sums = memory + input_bytes(rows, columns, threads)
    products(record, source, quantised, sums, 0, thread, threads)
    wait(team, threads)
    add_normed(x, sums, norm, real(record, EPS), rows, outputs, out, thread, threads)


@callback
def project(record, team, thread, threads):
    projected(record, team, thread, threads)


@callback
def merge(record, team, thread, threads):
    merged(record, team, thread, threads)


@kernel
def add_normed(x, y, norm, eps, rows, columns, out, thread, threads):
    """out = x + norm(y), a thread's share of the rows; y is overwritten."""
    first, last = share(rows, 1, thread, threads)
    for row in range(first, last):
        at = 4 * row * columns
        rms_row(y + at, norm, eps, y + at, columns)
        add_row(x + at, y + at, out + at, columns)
