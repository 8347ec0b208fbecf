"""Gated DeltaNet: against the reference, the same bits in any grouping, and commits of any part of a block."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from turbospark.cache.recurrent import RecurrentCache
from turbospark.config.model import GatedDelta
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.parts import Delta, Norm
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows

CPU, REFERENCE = CpuKernels(), ReferenceKernels()
LENGTH, BLOCK = 40, 16
SMALL = GatedDelta(key_heads=2, value_heads=6, key_dim=8, value_dim=12, conv=4, tiled=False, log_decay=False)
SHAPES = {
    "odd widths": SMALL,
    "tiled": replace(SMALL, tiled=True),
    "whole vectors": replace(SMALL, key_dim=32, value_dim=40),
    "a head each": replace(SMALL, key_heads=3, value_heads=3, key_dim=5, value_dim=3),
    "two taps": replace(SMALL, conv=2),
}


class Case:
    def __init__(self, config: GatedDelta, seed: int = 0):
        rng = np.random.default_rng(seed)
        normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)
        c, heads = config, config.value_heads
        self.config, width = config, heads * c.value_dim
        key_head = np.arange(heads) % c.key_heads if c.tiled else np.arange(heads) // (heads // c.key_heads)
        norm = Norm(1 + 0.3 * normal(c.value_dim), 1e-6)
        decay = -np.exp(normal(heads))
        self.part = Delta(c, normal(c.channels, c.conv), decay, normal(heads), norm, key_head, lambda *_: None)
        self.inputs = [normal(LENGTH, n) for n in (c.channels, width, heads, heads)]

    def cache(self, kernels, slots: int = 1) -> RecurrentCache:
        return RecurrentCache(kernels, slots, self.config, BLOCK)

    def feed(self, kernels, cache, start: int, stop: int, certain: int | None = None, slot: int = 0) -> np.ndarray:
        certain = stop - start if certain is None else certain
        rows = Rows.of([(slot, start, [0] * (stop - start), certain)])
        cache.append(rows)
        return kernels.gated_delta(*(part[start:stop] for part in self.inputs), rows, cache, self.part)

    def pieces(self, kernels, *cuts: int) -> tuple[np.ndarray, RecurrentCache]:
        cache = self.cache(kernels)
        return np.concatenate([self.feed(kernels, cache, a, b) for a, b in pairwise([0, *cuts, LENGTH])]), cache


def state(cache: RecurrentCache, slot: int = 0) -> np.ndarray:
    return np.concatenate([np.ravel(cache.state[slot]), np.ravel(cache.window[slot])])


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_rows_and_state_are_those_of_the_reference(config):
    case = Case(config)
    (ours, our_cache), (theirs, their_cache) = case.pieces(CPU, 7), case.pieces(REFERENCE, 7)
    np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(state(our_cache), state(their_cache), atol=2e-5, rtol=2e-5)


def test_every_weight_has_a_say():
    case = Case(SMALL)
    whole, _ = case.pieces(CPU)
    for name in ("conv", "a_neg", "dt_bias", "key_head"):
        value = getattr(case.part, name)
        other = Case(SMALL)
        other.part = replace(case.part, **{name: np.roll(value, 1, axis=0)})
        assert np.abs(other.pieces(CPU)[0] - whole).max() > 1e-3, name


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_a_row_has_the_same_bits_in_any_grouping(config):
    case = Case(config)
    whole, cache = case.pieces(CPU)
    for cuts in (range(1, LENGTH), (1, 2, 3), (5, 6, 20, 39)):
        rows, other = case.pieces(CPU, *cuts)
        np.testing.assert_array_equal(rows, whole)
        np.testing.assert_array_equal(state(other), state(cache))


@pytest.mark.parametrize("config", [SMALL, SHAPES["two taps"]])
def test_any_part_of_a_block_can_be_committed(config):
    case = Case(config)
    whole, _ = case.pieces(CPU)
    for size in (1, 2, 3, 5, BLOCK + 1):
        for certain in {0, 1, min(2, size)}:
            if size - certain > BLOCK:
                continue
            for kept in range(size - certain + 1):
                cache, stepped = case.cache(CPU), case.cache(CPU)
                case.feed(CPU, cache, 0, 10)
                block = case.feed(CPU, cache, 10, 10 + size, certain)
                np.testing.assert_array_equal(block, whole[10 : 10 + size])
                cache.commit(0, kept)
                end = 10 + certain + kept
                case.feed(CPU, stepped, 0, end)
                np.testing.assert_array_equal(state(cache), state(stepped), err_msg=f"{size} {certain} {kept}")
                np.testing.assert_array_equal(case.feed(CPU, cache, end, LENGTH), whole[end:])


def test_sequences_side_by_side_keep_to_their_slots():
    case, other = Case(SMALL), Case(SMALL, 1)
    other.part = case.part
    cache = case.cache(CPU, 2)
    case.feed(CPU, cache, 0, 5, slot=1)
    rows = Rows.of([(0, 0, [0] * 9, 9), (1, 5, [0] * 8, 3)])
    cache.append(rows)
    inputs = [np.concatenate([b[:9], a[5:13]]) for a, b in zip(case.inputs, other.inputs, strict=True)]
    out = CPU.gated_delta(*inputs, rows, cache, case.part)
    np.testing.assert_array_equal(out[:9], other.pieces(CPU)[0][:9])
    np.testing.assert_array_equal(out[9:], case.pieces(CPU)[0][5:13])
    cache.commit(1, 2)
    np.testing.assert_array_equal(case.feed(CPU, cache, 10, LENGTH, slot=1), case.pieces(CPU)[0][10:])


def test_the_number_of_threads_changes_no_bit():
    case, before = Case(SHAPES["whole vectors"]), threads.count()
    whole, cache = case.pieces(CPU)
    try:
        threads.set_count(3 if before < 3 else 1)
        rows, other = case.pieces(CPU, 1, 2, 30)
    finally:
        threads.set_count(before)
    np.testing.assert_array_equal(rows, whole)
    np.testing.assert_array_equal(state(other), state(cache))
