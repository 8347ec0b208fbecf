"""A drafter's candidates: the outputs of a head that score best, found by a smaller copy of it and scored exactly.

Every thread lists the best of its own share of the copy's outputs, and then finishes some of the rows.
"""

from __future__ import annotations

from turbospark.kernels.cpu import linear
from turbospark.kernels.cpu.activations import quantise, quantised_bytes
from turbospark.kernels.cpu.compile import callback, kernel
from turbospark.kernels.cpu.elementwise import copy_row
from turbospark.kernels.cpu.inputs import aligned, share
from turbospark.kernels.cpu.largest import insert, keep_largest
from turbospark.kernels.cpu.projection import STEP, projected
from turbospark.kernels.cpu.record import get, load, put
from turbospark.kernels.cpu.threads import wait

# records of what projects the rows, and of the copy, with their outputs; the head, 0 where the copy is exact, and
# whether it reads quantised rows; address of int64 [outputs], which output of the head each of the copy's is. Of a
# call: `near` are scored exactly, `count` of them are found; where ids, scores and weights go; memory
FIELDS = (
    *("projection", "coarse", "rank", "outputs", "head", "integer", "ids", "near", "count"),
    *("rows", "columns", "x", "weighed", "scored", "found", "scores", "weights", "lists", "own"),
)
PROJECTION, COARSE, RANK, OUTPUTS, HEAD, INTEGER, IDS, NEAR, COUNT = range(9)
ROWS, COLUMNS, X, WEIGHED, SCORED, FOUND, SCORES, WEIGHTS, LISTS, OWN = range(9, len(FIELDS))


@kernel
def list_bytes(count):
    """Of a list of `largest`: how many there are, their places, their values."""
    return aligned(8 + 12 * count)


@kernel
def own_bytes(columns, near):
    """Of a thread: a list, exact scores, and a row's quantised copy."""
    return list_bytes(near) + aligned(4 * near) + aligned(quantised_bytes(1, columns))


@kernel
def _listed(record, row, thread, threads):
    return get(record, LISTS) + (row * threads + thread) * list_bytes(get(record, NEAR))


@kernel
def _merged(record, row, threads, values, places):
    """The best of all threads' lists of a row, as the head's outputs; returns how many."""
    near, ids, held = get(record, NEAR), get(record, IDS), 0
    for thread in range(threads):
        found = _listed(record, row, thread, threads)
        for i in range(get(found, 0)):
            held = insert(load(found + 8 * (1 + near) + 4 * i), get(found, 1 + i), values, places, held, near)
    for i in range(held):
        put(places, i, get(ids, get(places, i)))
    return held


@kernel
def _finish(record, row, thread, threads):
    near, count, columns, head = get(record, NEAR), get(record, COUNT), get(record, COLUMNS), get(record, HEAD)
    places = get(record, OWN) + thread * own_bytes(columns, near)
    values, exact = places + 8 * near, places + list_bytes(near)
    held = _merged(record, row, threads, values, places)
    if head != 0:
        x, quants = get(record, X) + 4 * row * columns, exact + aligned(4 * near)
        if get(record, INTEGER) != 0:
            quantise(x, 1, columns, columns, quants, 0, 1)
        for i in range(held):
            output = get(places, i)
            linear.rows(head, x, quants, 1, exact + 4 * (i - output), 0, output, output + 1, 0)
        values = exact
    scores, found, listed = get(record, SCORES) + 4 * row * count, get(record, FOUND) + 8 * row * count, 0
    for i in range(held):
        listed = insert(load(values + 4 * i), get(places, i), scores, found, listed, count)
    rank = get(record, RANK)
    copy_row(get(record, WEIGHED) + 4 * row * rank, get(record, WEIGHTS) + 4 * row * rank, rank)


@callback
def candidates(record, team, thread, threads):
    projected(get(record, PROJECTION), team, thread, threads)
    wait(team, threads)
    projected(get(record, COARSE), team, thread, threads)
    rows, outputs, near = get(record, ROWS), get(record, OUTPUTS), get(record, NEAR)
    first, last = share(outputs, STEP, thread, threads)
    for row in range(rows):
        found, scored = _listed(record, row, thread, threads), get(record, SCORED) + 4 * row * outputs
        put(found, 0, keep_largest(scored, first, last, found + 8 * (1 + near), found + 8, near))
    wait(team, threads)
    first, last = share(rows, 1, thread, threads)
    for row in range(first, last):
        _finish(record, row, thread, threads)
