"""Attention over caches: against float64 by hand, and the same bits in any company."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from turbospark.cache.kv import KVCache
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.cpu.levels import level
from turbospark.kernels.rows import Rows

EXACT, HALVES = CpuKernels(exact=True), CpuKernels()
LENGTH, CONTEXT = 150, 192


class Case:
    """One slot's queries, keys and values for LENGTH positions; a ring when there is a window."""

    def __init__(self, kernels, heads=4, kv=2, d=16, window=None, softcap=None, slack=64, seed=0):
        rng = np.random.default_rng(seed)
        self.kernels, self.window, self.softcap, self.scale = kernels, window, softcap, d**-0.5
        self.make = lambda: KVCache(kernels, 2, CONTEXT, kv, d, d, window, slack)
        normal = lambda n: rng.standard_normal((LENGTH, n, d)).astype(np.float32)
        self.q, self.k, self.v = normal(heads) * 3, normal(kv), normal(kv)

    def feed(self, cache, start, stop, slot=0):
        rows = Rows.of([(slot, start, [0] * (stop - start), stop - start)])
        cache.append(rows, self.k[start:stop], self.v[start:stop])
        return self.see(cache, rows, self.q[start:stop])

    def see(self, cache, rows, q, visible=None):
        options = {"scale": self.scale, "window": self.window, "softcap": self.softcap, "visible": visible}
        return self.kernels.attention(q, cache.k, cache.v, rows, **options)

    def pieces(self, *cuts):
        cache, bounds = self.make(), [0, *cuts, LENGTH]
        return np.concatenate([self.feed(cache, a, b) for a, b in pairwise(bounds)])

    def by_hand(self, k=None, first=None, last=None):
        """float64, with the keys and values as given or as float16 holds them."""
        round_ = (lambda x: x) if self.kernels.exact else (lambda x: x.astype(np.float16).astype(np.float64))
        k, v = round_(self.k), round_(self.v)
        group = self.q.shape[1] // k.shape[1]
        out = np.empty(self.q.shape)
        for p in range(LENGTH):
            low = 0 if self.window is None else max(0, p - self.window + 1)
            low, high = (low, p + 1) if first is None else (first[p], last[p] + 1)
            for h in range(self.q.shape[1]):
                scores = k[low:high, h // group].astype(np.float64) @ self.q[p, h] * self.scale
                if self.softcap:
                    scores = np.tanh(scores / self.softcap) * self.softcap
                weights = np.exp(scores - scores.max())
                out[p, h] = weights / weights.sum() @ v[low:high, h // group]
        return out


SHAPES = [
    {},
    {"heads": 3, "kv": 3, "d": 12},
    {"heads": 9, "kv": 3, "d": 64},
    {"heads": 5, "kv": 1, "d": 40},
    {"heads": 30, "kv": 1, "d": 8},
    {"window": 20},
    {"window": 64, "slack": 16},
    {"softcap": 2.0},
    {"heads": 2, "kv": 2, "d": 5, "window": 7, "softcap": 1.0},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernels", [EXACT, HALVES], ids=["float32", "float16"])
def test_attention_is_what_the_formula_says(kernels, shape):
    case = Case(kernels, **shape)
    cuts = range(16, LENGTH, 16) if "window" in shape else (50,)
    if level() == "generic" and not kernels.exact:
        kernels = EXACT
    assert np.abs(case.pieces(*cuts) - case.by_hand()).max() < 2e-5


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_window_one_off_is_seen(shift):
    case = Case(EXACT, window=20)
    want = case.by_hand()
    case.window += shift
    assert np.abs(case.pieces(*range(16, LENGTH, 16)) - want).max() > 1e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company(shape):
    case = Case(HALVES, **shape)
    whole = case.pieces(*range(16, LENGTH, 16))
    for cuts in (range(1, LENGTH), (1, 2, 5, 9, 25, *range(30, LENGTH, 7)), range(13, LENGTH, 13)):
        np.testing.assert_array_equal(case.pieces(*cuts), whole)


def test_a_row_has_the_same_bits_beside_other_slots():
    case, other = Case(HALVES, heads=6, kv=2), Case(HALVES, heads=6, kv=2, seed=1)
    whole, cache = case.pieces(40), case.make()
    case.feed(cache, 0, 100)
    other.feed(cache, 0, 70, slot=1)
    rows = Rows.of([(1, 70, [0] * 9, 9), (0, 100, [0] * 50, 50)])
    cache.append(rows, np.concatenate([other.k[70:79], case.k[100:]]), np.concatenate([other.v[70:79], case.v[100:]]))
    both = case.see(cache, rows, np.concatenate([other.q[70:79], case.q[100:]]))
    np.testing.assert_array_equal(both[9:], whole[100:])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_number_of_threads_changes_no_bit(count):
    case, before = Case(HALVES, heads=4, kv=1, d=32), threads.count()
    try:
        threads.set_count(count)
        one = case.pieces(*range(1, LENGTH))
    finally:
        threads.set_count(before)
    np.testing.assert_array_equal(one, case.pieces())


def test_rows_that_name_their_keys_see_those():
    case = Case(EXACT)
    cache = case.make()
    case.feed(cache, 0, LENGTH)
    first, last = np.arange(LENGTH) // 3, np.minimum(np.arange(LENGTH) + 9, LENGTH - 1)
    rows = Rows.of([(0, 0, [0] * LENGTH, LENGTH)])
    found = case.see(cache, rows, case.q, (first, last))
    assert np.abs(found - case.by_hand(first=first, last=last)).max() < 2e-5
    halves = [case.see(cache, rows.keep([r]), case.q[r.start : r.stop], (first[r], last[r])) for r in HALF_RANGES]
    np.testing.assert_array_equal(np.concatenate(halves), found)


HALF_RANGES = [range(0, 70), range(70, LENGTH)]


def test_numbers_beyond_float16_are_kept_as_its_largest():
    cache = KVCache(HALVES, 1, 64, 1, 4, 4, None, 64)
    rows = Rows.of([(0, 0, [0], 1)])
    big = np.array([[[1e6, -1e6, 65504.0, 1.0]]], np.float32)
    cache.append(rows, big, big)
    largest = 1e6 if level() == "generic" else 65504.0
    assert cache.k[0, 0, 0].tolist() == [largest, -largest, 65504.0, 1.0]
    assert np.isfinite(HALVES.attention(big, cache.k, cache.v, rows, scale=1.0, window=None, softcap=None)).all()
    assert not cache.k[0, 0, 1:].any(), "other positions were written"


def test_rejected_keys_never_show():
    """Rows written behind a row and given up leave no trace in it, nor in those that take their place."""
    case = Case(HALVES, heads=4, kv=2)
    whole, cache = case.pieces(), case.make()
    case.feed(cache, 0, 60)
    wrong = Rows.of([(0, 60, [0] * 16, 1)])
    cache.append(wrong, np.full((16, 2, 16), 9e4, np.float32), np.full((16, 2, 16), -9e4, np.float32))
    np.testing.assert_array_equal(case.feed(cache, 60, 61), whole[60:61])
    np.testing.assert_array_equal(case.feed(cache, 61, LENGTH), whole[61:])
