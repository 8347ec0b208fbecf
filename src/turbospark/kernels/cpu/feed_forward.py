"""`feed_forward` and `gated_mlp`: both projections in, the activation, the one out, and the stream beside them."""

from __future__ import annotations

from turbospark.kernels.cpu import linear
from turbospark.kernels.cpu.compile import callback, kernel
from turbospark.kernels.cpu.elementwise import copy_row, gate_row
from turbospark.kernels.cpu.inputs import aligned, input_bytes, ready, share
from turbospark.kernels.cpu.projection import STEP, add_normed
from turbospark.kernels.cpu.record import CALL, MEMORY, OUT, ROWS, X, get, real
from turbospark.kernels.cpu.threads import wait

WIDE = 64  # columns of gate and up that are taken together when there are many rows, so that they stay near

FIELDS = (
    *CALL,
    *("hidden", "width", "activation", "norm", "eps", "after", "after_eps", "residual"),
    *("gate", "up", "down", "integer_in", "integer_out"),
)
HIDDEN, WIDTH, ACTIVATION, NORM, EPS, AFTER, AFTER_EPS, RESIDUAL = range(5, 13)
GATE, UP, DOWN, INTEGER_IN, INTEGER_OUT = range(13, 18)


@kernel
def feed_forward_bytes(rows, hidden, width, threads):
    """Bytes of memory the region needs."""
    inner = aligned(4 * rows * width)
    return input_bytes(rows, hidden, threads) + input_bytes(rows, width, threads) + 3 * inner + 4 * rows * hidden


@kernel
def inner_rows(record, source, quantised, inner, thread, threads):
    """A thread's share of act(gate) * up, float32 [rows, width] at `inner`; as much memory lies behind it, twice."""
    rows, width = get(record, ROWS), get(record, WIDTH)
    gates = inner + aligned(4 * rows * width)
    ups = gates + aligned(4 * rows * width)
    first, last = share(width, STEP, thread, threads)
    step = last - first if rows < 4 else WIDE
    for start in range(first, last, max(1, step)):
        stop = min(start + step, last)
        linear.rows(get(record, GATE), source, quantised, rows, gates, width, start, stop, 0)
        linear.rows(get(record, UP), source, quantised, rows, ups, width, start, stop, 0)
        for row in range(rows):
            at = 4 * (row * width + start)
            gate_row(get(record, ACTIVATION), gates + at, ups + at, inner + at, stop - start)


@callback
def feed_forward(record, team, thread, threads):
    """out = after(down(act(gate n) * up n)), n = norm(x), with x added where `residual` is 1."""
    rows, hidden, width = get(record, ROWS), get(record, HIDDEN), get(record, WIDTH)
    x, out, memory = get(record, X), get(record, OUT), get(record, MEMORY)
    norm, eps, integer = get(record, NORM), real(record, EPS), get(record, INTEGER_IN)
    source, quantised = ready(memory, x, rows, hidden, norm, eps, integer, team, thread, threads)
    memory += input_bytes(rows, hidden, threads)
    inner = memory + input_bytes(rows, width, threads)
    inner_rows(record, source, quantised, inner, thread, threads)
    wait(team, threads)
    source, quantised = ready(memory, inner, rows, width, 0, eps, get(record, INTEGER_OUT), team, thread, threads)
    first, last = share(hidden, STEP, thread, threads)
    after, residual, add = get(record, AFTER), get(record, RESIDUAL), 0
    sums = out
    if after != 0:
        sums = inner + 3 * aligned(4 * rows * width)
    elif residual != 0:
        add = 1
        for row in range(rows):
            at = 4 * (row * hidden + first)
            copy_row(x + at, out + at, last - first)
    linear.rows(get(record, DOWN), source, quantised, rows, sums, hidden, first, last, add)
    if after != 0:
        wait(team, threads)
        add_normed(x, sums, after, real(record, AFTER_EPS), rows, hidden, out, thread, threads)
