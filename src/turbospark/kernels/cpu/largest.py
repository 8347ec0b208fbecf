"""The largest of many numbers: lists of so many values and their places, best first, of equal ones the lowest first."""

from __future__ import annotations

from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.record import get, load, put, store

STRETCH = 64  # elements that are looked at together


@kernel
def insert(value, place, values, places, held, count):
    """Puts a value where it belongs among the best `count`, of which `held` are there; returns how many are then.

    values: address of float32 [count]; places: of int64 [count].
    """
    if held == count and not _ahead(value, place, values, places, count - 1):
        return held
    held = min(held + 1, count)
    i = held - 1
    while i > 0 and _ahead(value, place, values, places, i - 1):
        store(values + 4 * i, load(values + 4 * (i - 1)))
        put(places, i, get(places, i - 1))
        i -= 1
    store(values + 4 * i, value)
    put(places, i, place)
    return held


@kernel
def _ahead(value, place, values, places, i):
    other = load(values + 4 * i)
    return value > other or (value == other and place < get(places, i))


@kernel
def keep_largest(x, first, last, values, places, count):
    """Lists the best of elements first..last-1 of the row at x; returns how many there are, `count` at most."""
    held = 0
    for start in range(first, last, STRETCH):
        stop = min(start + STRETCH, last)
        if held == count:  # most stretches have nothing larger
            least, larger = load(values + 4 * (count - 1)), False
            for k in range(start, stop):
                larger |= load(x + 4 * k) > least
            if not larger:
                continue
        for k in range(start, stop):
            held = insert(load(x + 4 * k), k, values, places, held, count)
    return held
