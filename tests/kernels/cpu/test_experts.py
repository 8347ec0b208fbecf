"""Routing and routed experts: who is chosen, what each row adds up, and that no other expert is touched."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from turbospark import quant
from turbospark.config.model import MoE
from turbospark.experts.base import ExpertStore
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.parts import GatedMLP
from turbospark.kernels.reference import ReferenceKernels

CPU, REFERENCE = CpuKernels(), ReferenceKernels()
METHODS = {"greedy": (1, 1, "max"), "group limited": (4, 2, "max"), "noaux": (4, 2, "top2")}
TABLE = list(product(("softmax", "sigmoid"), (False, True), METHODS, (False, True)))
EXPERTS, HIDDEN, WIDTH, ROWS = 8, 96, 64, 13


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize("cell", TABLE, ids=lambda cell: " ".join(map(str, cell)))
def test_routes_are_those_of_the_reference(cell):
    scoring, renormalise, method, biased = cell
    moe = MoE(16, 5, 8, scoring, renormalise, 2.5, *METHODS[method], biased)
    logits, bias = random(50, 16) * 3, random(16, seed=1) - 1 if biased else None
    (ids, weights), (their_ids, their_weights) = (k.route(logits, moe, bias) for k in (CPU, REFERENCE))
    np.testing.assert_array_equal(ids, their_ids)
    np.testing.assert_allclose(weights, their_weights, rtol=2e-6)


def test_ties_go_to_the_lowest_id():
    moe = MoE(6, 3, 8)
    logits = np.array([[0, 2, 1, 2, 1, 1], [0, 0, 0, 0, 0, 0]], np.float32)
    assert CPU.route(logits, moe, None)[0].tolist() == [[1, 3, 2], [0, 1, 2]]


def test_a_row_is_routed_by_itself():
    moe = MoE(16, 5, 8, "sigmoid", True, 1.5, *METHODS["noaux"])
    logits = random(20, 16)
    ids, weights = CPU.route(logits, moe, None)
    for i in range(20):
        one, weight = CPU.route(logits[i : i + 1], moe, None)
        assert one.tolist() == [ids[i].tolist()]
        assert weight.tolist() == [weights[i].tolist()]


class Store(ExpertStore):
    """Counts who is asked for."""

    def __init__(self, kernels, format: str):
        make = lambda n, k, seed: kernels.weight(quant.encode(random(n, k, seed=seed, scale=k**-0.5), format))
        self.parts = [
            (make(WIDTH, HIDDEN, 3 * e), make(WIDTH, HIDDEN, 3 * e + 1), make(HIDDEN, WIDTH, 3 * e + 2))
            for e in range(EXPERTS)
        ]
        self.asked: list[int] = []

    def expert(self, index: int):
        self.asked.append(index)
        return self.parts[index]

    def __len__(self) -> int:
        return EXPERTS


def choices(rows: int = ROWS, used: int = 3, among: int = EXPERTS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    ids = np.stack([rng.permutation(among)[:used] for _ in range(rows)]).astype(np.int64)
    return ids, rng.random((rows, used), np.float32)


def by_hand(kernels, x, ids, weights, store, base) -> np.ndarray:
    """Row by row, expert by expert, in routing order."""
    out = np.zeros_like(x) if base is None else base.copy()
    for i in range(len(x)):
        for e, weight in zip(ids[i], weights[i], strict=True):
            y = kernels.gated_mlp(x[i : i + 1], None, GatedMLP(*store.parts[e], "silu", lambda *_: None))[0]
            out[i] = (np.float64(y) * np.float64(weight) + out[i]).astype(np.float32)
    return out


@pytest.mark.parametrize("format", ["F32", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("with_base", [True, False])
def test_each_row_adds_up_in_its_own_routing_order(format, with_base):
    store, x, (ids, weights) = Store(CPU, format), random(ROWS, HIDDEN), choices()
    base = random(ROWS, HIDDEN, seed=9) if with_base else None
    whole = CPU.experts(x, ids, weights, store, "silu", base)
    np.testing.assert_array_equal(whole, by_hand(CPU, x, ids, weights, store, base))
    for i in range(ROWS):
        part = slice(i, i + 1)
        one = CPU.experts(x[part], ids[part], weights[part], store, "silu", None if base is None else base[part])
        np.testing.assert_array_equal(one, whole[part])
    turned = CPU.experts(x, ids[:, ::-1].copy(), weights[:, ::-1].copy(), store, "silu", base)
    np.testing.assert_allclose(turned, whole, atol=1e-5)
    if with_base:
        np.testing.assert_allclose(whole - CPU.experts(x, ids, weights, store, "silu", None), base, atol=1e-5)


def test_only_the_chosen_experts_are_asked_for():
    store, x, (ids, weights) = Store(CPU, "Q8_0"), random(ROWS, HIDDEN), choices(among=4)
    CPU.experts(x, ids + 2, weights, store, "silu", None)
    store.asked.clear()
    CPU.experts(x, ids + 2, weights, store, "silu", None)
    assert set(store.asked) == set((ids + 2).ravel().tolist())


def test_experts_that_come_back_elsewhere_are_read_there():
    """A bounded store gives an expert's weights another place each time it is read again."""
    store, other, x, (ids, weights) = Store(CPU, "Q8_0"), Store(CPU, "Q8_0"), random(ROWS, HIDDEN), choices()
    before = CPU.experts(x, ids, weights, store, "silu", None)
    store.parts = other.parts[::-1]
    after = CPU.experts(x, ids, weights, store, "silu", None)
    np.testing.assert_array_equal(after, CPU.experts(x, EXPERTS - 1 - ids, weights, other, "silu", None))
    assert np.abs(after - before).max() > 0.1


def test_experts_without_a_kernel_give_the_rows_of_others_the_same_bits():
    store, x, (ids, weights) = Store(CPU, "Q8_0"), random(ROWS, HIDDEN), choices()
    native = CPU.experts(x, ids, weights, store, "silu", None)
    store.parts[2] = (CPU.weight(quant.encode(random(WIDTH, HIDDEN), "F64")), *store.parts[2][1:])
    found = CPU.experts(x, ids, weights, store, "silu", None)
    np.testing.assert_array_equal(found, by_hand(CPU, x, ids, weights, store, None))
    others = ~(ids == 2).any(1)
    assert 0 < others.sum() < ROWS
    np.testing.assert_array_equal(found[others], native[others])


def test_the_number_of_threads_changes_no_bit():
    store, x, (ids, weights), before = Store(CPU, "Q4_0"), random(ROWS, HIDDEN), choices(), threads.count()
    whole = CPU.experts(x, ids, weights, store, "silu", None)
    try:
        threads.set_count(3)
        np.testing.assert_array_equal(CPU.experts(x, ids, weights, store, "silu", None), whole)
    finally:
        threads.set_count(before)
