"""A drafter's candidates: the kernel against the head's own products, and against the reference."""

import numpy as np
import pytest

from turbospark import quant
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.parts import Scoring
from turbospark.kernels.reference import ReferenceKernels

HIDDEN, OUTPUTS, COUNT, RANK = 96, 700, 5, 8


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True, params=[1, 2])
def count_of_threads(request):
    before = threads.count()
    threads.set_count(request.param)
    yield
    threads.set_count(before)


def head(kernels, format="Q8_0"):
    return kernels.weight(quant.encode(random(OUTPUTS, HIDDEN), format))


def scoring(kernels, near=40, format="Q8_0", ids=None):
    """A head of which every third output counts, and a copy of those in four bits."""
    ids = np.arange(0, OUTPUTS, 3) if ids is None else ids
    values = random(OUTPUTS, HIDDEN)[ids]
    projection = kernels.weight(quant.encode(random(RANK, HIDDEN, seed=1), "F32"))
    return Scoring(kernels.weight(quant.encode(values, "Q4_0")), ids, projection, near, head(kernels, format))


def wanted(scores: np.ndarray, ids: np.ndarray, count: int = COUNT) -> np.ndarray:
    return ids[np.argsort(-scores[:, ids], axis=-1, kind="stable")[:, :count]]


@pytest.mark.parametrize("rows", [1, 2, 3, 6])
@pytest.mark.parametrize("exact", [False, True])
def test_candidates_are_the_heads_best_with_its_very_scores(rows, exact):
    kernels, x = CpuKernels(exact), random(rows, HIDDEN, seed=2)
    parts = scoring(kernels)
    ids, scores, weights = kernels.candidates(x, parts, COUNT)
    own = kernels.linear(x, parts.head)
    np.testing.assert_array_equal(ids, wanted(own, parts.ids))
    np.testing.assert_array_equal(scores, np.take_along_axis(own, ids, -1))
    np.testing.assert_array_equal(weights, kernels.linear(x, parts.projection))


def test_rows_by_themselves_and_together_find_the_same():
    kernels, x = CpuKernels(), random(5, HIDDEN, seed=2)
    parts = scoring(kernels)
    together = kernels.candidates(x, parts, COUNT)
    alone = zip(*(kernels.candidates(row[None], parts, COUNT) for row in x), strict=True)
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_array_equal(ours, np.concatenate(theirs))


def test_what_the_copy_puts_too_far_behind_is_not_found():
    kernels, x = CpuKernels(), random(6, HIDDEN, seed=2)
    narrow, own = scoring(kernels, COUNT), kernels.linear(x, head(kernels))
    copied = wanted(kernels.linear(x, narrow.coarse), np.arange(len(narrow.ids)))
    ids = kernels.candidates(x, narrow, COUNT)[0]
    np.testing.assert_array_equal(np.sort(ids), np.sort(narrow.ids[copied]))
    assert (ids != wanted(own, narrow.ids)).any()


@pytest.mark.parametrize("format", ["Q8_0", "F64"])
def test_both_backends_find_the_same(format):
    """No kernel multiplies F64."""
    x, found = random(3, HIDDEN, seed=2), []
    for kernels in (CpuKernels(exact=True), ReferenceKernels()):
        found.append(kernels.candidates(x, scoring(kernels, format=format), COUNT))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernels", [CpuKernels(), ReferenceKernels()], ids=lambda kernels: kernels.name)
def test_of_equal_scores_the_lowest_output_comes_first(kernels):
    same = lambda outputs, format: kernels.weight(quant.encode(np.ones((outputs, 32)), format))
    parts = Scoring(same(90, "Q4_0"), np.arange(0, 180, 2), same(RANK, "F32"), 20, same(180, "Q8_0"))
    assert kernels.candidates(np.ones((2, 32), np.float32), parts, 3)[0].tolist() == [[0, 2, 4]] * 2


def test_a_row_that_is_not_finite_shows_it():
    for kernels in (CpuKernels(), CpuKernels(exact=True), ReferenceKernels()):
        x = random(3, HIDDEN, seed=2)
        x[1, 7] = np.inf
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(kernels.candidates(x, scoring(kernels), COUNT)[1]).all(-1)
        assert finite.tolist() == [True, False, True]
