"""Rotation and its scaling: pairs by hand, nothing declared, explicit factors, factors that cannot be."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import turbospark
from tests.parity.harness import some_ids
from tests.parity.llama_cpp import vocabulary
from tests.tiny.dense import write_dense_gguf
from tests.tiny.llama import TRAINED, VOCAB, tiny_llama
from turbospark.config.model import Rope, RopeScaling
from turbospark.errors import TurbosparkError
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rotation import table
from turbospark.kernels.rows import Rows


@pytest.mark.parametrize(
    ("interleaved", "wanted"),
    [
        # pairs (1, 2) turn by 1 a position and (3, 4) by 0.1
        (True, lambda c, s: [c[0] - 2 * s[0], 2 * c[0] + s[0], 3 * c[1] - 4 * s[1], 4 * c[1] + 3 * s[1]]),
        # pairs (1, 3) and (2, 4)
        (False, lambda c, s: [c[0] - 3 * s[0], 2 * c[1] - 4 * s[1], 3 * c[0] + s[0], 4 * c[1] + 2 * s[1]]),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 50])
def test_four_elements_turn_as_by_hand(position: int, interleaved: bool, wanted) -> None:
    rows = Rows.of([(0, position, [7], 1)])
    x = np.asarray([[[1, 2, 3, 4, 5, 6]]], np.float32)
    turned = ReferenceKernels().rope(x, rows, table(Rope(100.0, 4, interleaved), 64))
    angles = [position * 1.0, position * 0.1]
    by_hand = wanted([math.cos(a) for a in angles], [math.sin(a) for a in angles])
    np.testing.assert_allclose(turned[0, 0], [*by_hand, 5, 6], rtol=1e-5, atol=1e-5)


def test_a_long_contexts_table_costs_little_more_than_itself() -> None:
    rope, positions = Rope(1000.0, 32, False), 50_001
    tracemalloc.start()
    try:
        made = table(rope, positions)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * (made.cos.nbytes + made.sin.nbytes)
    angles = np.outer(np.arange(positions), 1000.0 ** -(np.arange(0, 32, 2) / 32))
    np.testing.assert_array_equal(made.cos, np.cos(angles).astype(np.float32))
    np.testing.assert_array_equal(made.sin, np.sin(angles).astype(np.float32))


@pytest.mark.parametrize("factor", [None, 0.8])
def test_yarn_scales_by_the_declared_factor_or_by_its_own(factor: float | None) -> None:
    magnitude = 0.1 * math.log(5.0) + 1 if factor is None else factor
    scaling = RopeScaling("yarn", 5.0, TRAINED, attention_factor=magnitude)
    made = table(Rope(100.0, 8, False, scaling), 51)
    np.testing.assert_allclose(np.hypot(made.cos, made.sin), magnitude, rtol=1e-6)
    assert made.cos[0, 0] == np.float32(magnitude)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_factors_that_frequencies_cannot_be_divided_by_are_refused(wrong: float, tmp_path: Path) -> None:
    factors = np.asarray([1, 2, 4, 8, 8, 8, 8, wrong], np.float32)
    model = tiny_llama()
    path = write_dense_gguf(tmp_path / "m.gguf", model, vocabulary(VOCAB), {"rope_freqs.weight": factors})
    with pytest.raises(TurbosparkError, match=r"rope_freqs\.weight") as caught:
        turbospark.load(path, backend="reference")
    assert caught.value.code == "bad_tensor"


def test_factors_of_another_number_of_pairs_are_refused_with_both(tmp_path: Path) -> None:
    path = write_dense_gguf(
        tmp_path / "m.gguf", tiny_llama(), vocabulary(VOCAB), {"rope_freqs.weight": np.ones(6, np.float32)}
    )
    with pytest.raises(TurbosparkError, match=r"\[6\].*\[8\]"):
        turbospark.load(path, backend="reference")


def test_factors_of_one_change_nothing(tmp_path: Path) -> None:
    model, ids = tiny_llama(), some_ids(20, VOCAB)
    ones = {"rope_freqs.weight": np.ones(8, np.float32)}
    with_ones = turbospark.load(write_dense_gguf(tmp_path / "a.gguf", model, vocabulary(VOCAB), ones))
    without = turbospark.load(write_dense_gguf(tmp_path / "b.gguf", model, vocabulary(VOCAB)))
    np.testing.assert_array_equal(with_ones.logits(ids), without.logits(ids))
