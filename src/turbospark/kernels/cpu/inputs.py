"""The rows that matrices read: normed, and quantised for those that want them so.

One row is made ready by every thread for itself, which is cheaper than to wait for another; more rows are shared out.
"""

from __future__ import annotations

from turbospark.kernels.cpu.activations import quantise, quantised_bytes
from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.norms import rms_row
from turbospark.kernels.cpu.threads import wait

LINE = 64  # bytes of a cache line


@kernel
def aligned(size):
    return (size + LINE - 1) // LINE * LINE


@kernel
def share(count, step, thread, threads):
    """The items first..last-1 of a thread, cut at multiples of a step."""
    steps = (count + step - 1) // step
    return min(count, steps * thread // threads * step), min(count, steps * (thread + 1) // threads * step)


@kernel
def input_bytes(rows, columns, threads):
    """Bytes that `ready` may use."""
    copy = aligned(4 * rows * columns) + aligned(quantised_bytes(rows, columns))
    return copy * (threads if rows == 1 else 1)


@kernel
def ready(memory, x, rows, columns, norm, eps, integer, team, thread, threads):
    """(the rows, normed unless `norm` is 0; their quantised copy, if `integer`), addresses. All threads call it.

    memory: `input_bytes` at a multiple of 64.
    """
    first, last = 0, rows
    if rows == 1:
        memory += thread * input_bytes(rows, columns, 1)
    else:
        first, last = share(rows, 1, thread, threads)
    quantised = memory + aligned(4 * rows * columns)
    source = x
    if norm != 0:
        source = memory
        for i in range(first, last):
            rms_row(x + 4 * i * columns, norm, eps, source + 4 * i * columns, columns)
    if integer != 0:
        quantise(source, rows, columns, columns, quantised, first, last)
    if rows > 1:
        wait(team, threads)
    return source, quantised
