"""A drafter's block as one region: the same as its operations, whatever stands beside it."""

import numpy as np
import pytest

from tests.tiny.dflash import dflash_arrays, dflash_config
from turbospark.cache.kv import KVCache
from turbospark.draft.dflash_config import from_hf
from turbospark.draft.dflash_head import DraftHead
from turbospark.draft.dflash_model import DFlashModel
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights
from turbospark.quant.tensor import QTensor

HIDDEN, VOCAB, SLOTS, CONTEXT = 32, 50, 3, 256


class Shape:
    hidden, vocab, layers = HIDDEN, VOCAB, (0, 0, 0)


class Arrays:
    def __init__(self, arrays):
        self.tensors = {name: self.open(values, name) for name, values in arrays.items()}

    def open(self, name, called=None):
        if called is None:
            return self.tensors[name]
        return QTensor(called, "F32", name.shape, np.ascontiguousarray(name, np.float32).view(np.uint8))


class Drafter:
    """A tiny drafter with some context in each slot."""

    def __init__(self, kernels, second=True, read=(70, 5, 20)):
        config = dflash_config(Shape, second)
        self.config = from_hf(config, "tiny")
        w = Weights(Arrays(dflash_arrays(config, 4)), lambda name: (name,), kernels, Trace(), (128, 128))
        table = np.random.default_rng(2).standard_normal((VOCAB, HIDDEN)).astype(np.float32)
        head = kernels.weight(QTensor("head", "F32", table.shape, table.view(np.uint8)))
        self.model = DFlashModel(self.config, w, lambda ids: table[ids], DraftHead(head, np.arange(VOCAB)), CONTEXT)
        c = self.config
        self.caches = [
            KVCache(kernels, SLOTS, CONTEXT, c.kv_heads, c.head_dim, c.head_dim, layer.window, 80) for layer in c.layers
        ]
        for slot, count in enumerate(read):
            taps = np.random.default_rng(slot).standard_normal((count, len(c.taps) * HIDDEN)).astype(np.float32)
            self.model.observe(taps, Rows.of([(slot, 0, [0] * count, count)]), self.caches)

    def block(self, *parts, since=0):
        """hidden rows of blocks, (slot, first position, rows) each; since: the oldest position that they may see."""
        rows = Rows.of((slot, first, [slot + 1] * count, 1) for slot, first, count in parts)
        return self.model.block(rows, self.caches, np.full(len(rows.spans), since))


@pytest.fixture
def one_or_two_threads():
    yield
    threads.set_count(threads.cores())


@pytest.mark.parametrize("second", [True, False], ids=["dflash2", "dflash"])
@pytest.mark.parametrize("count", [1, 2])
def test_it_is_what_its_operations_make(second, count, one_or_two_threads):
    threads.set_count(count)
    ours, theirs = Drafter(CpuKernels(exact=True), second), Drafter(ReferenceKernels(), second)
    assert ours.model._whole is not None
    parts = [(0, 70, 7), (2, 20, 1), (1, 5, 16)]
    got, expected = ours.block(*parts), theirs.block(*parts)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    for mine, other in zip(ours.caches, theirs.caches, strict=True):
        for which in ("k", "v"):
            np.testing.assert_allclose(getattr(mine, which), getattr(other, which), atol=2e-5)


def test_no_row_sees_what_lies_before_its_sequence():
    made = [
        Drafter(kernels).block((0, 70, 4), (2, 20, 3), since=18) for kernels in (CpuKernels(True), ReferenceKernels())
    ]
    np.testing.assert_allclose(*made, rtol=0, atol=2e-5 * np.abs(made[1]).max())
    assert np.abs(made[0] - Drafter(CpuKernels(True)).block((0, 70, 4), (2, 20, 3))).max() > 0.01


def test_a_block_is_the_same_alone_and_beside_others():
    alone, together = Drafter(CpuKernels()), Drafter(CpuKernels())
    parts = [(1, 5, 4), (0, 70, 9), (2, 20, 2)]
    whole = together.block(*parts)
    start = 0
    for part in parts:
        np.testing.assert_array_equal(whole[start : start + part[2]], alone.block(part))
        start += part[2]


def test_no_row_reads_the_block_before_it():
    first, second = Drafter(CpuKernels()), Drafter(CpuKernels())
    a = first.block((0, 70, 4), (1, 5, 4))
    b = second.block((2, 20, 4), (1, 5, 4))
    np.testing.assert_array_equal(a[4:], b[4:])
    assert not np.array_equal(a[:4], b[:4])


def test_a_block_does_not_depend_on_how_its_context_was_read():
    whole, pieces = Drafter(CpuKernels(), read=(70, 0, 0)[:1]), Drafter(CpuKernels(), read=())
    taps = np.random.default_rng(0).standard_normal((70, len(pieces.config.taps) * HIDDEN)).astype(np.float32)
    for start, stop in ((0, 1), (1, 64), (64, 70)):
        pieces.model.observe(taps[start:stop], Rows.of([(0, start, [0] * (stop - start), 1)]), pieces.caches)
    np.testing.assert_array_equal(whole.block((0, 70, 5)), pieces.block((0, 70, 5)))


@pytest.mark.parametrize("kernels", [CpuKernels(), ReferenceKernels()], ids=["cpu", "reference"])
class TestBest:
    def test_the_best_come_first_and_equal_ones_by_place(self, kernels):
        x = np.random.default_rng(0).integers(-40, 40, (5, 1000)).astype(np.float32)
        expected = np.argsort(-x, axis=-1, kind="stable")[:, :8]
        np.testing.assert_array_equal(kernels.best(x, 8), expected)

    def test_all_of_a_row_may_be_asked_for(self, kernels):
        x = np.array([[1, 3, 2], [0, -np.inf, 0]], np.float32)
        np.testing.assert_array_equal(kernels.best(x, 3), [[1, 2, 0], [0, 2, 1]])

    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
    def test_a_row_with_one_number_that_is_not_finite_is_told(self, kernels, wrong):
        x = np.random.default_rng(0).standard_normal((3, 130)).astype(np.float32)
        x[0, 0] = np.finfo(np.float32).max
        x[1, 129] = wrong
        np.testing.assert_array_equal(kernels.finite(x), [True, False, True])
