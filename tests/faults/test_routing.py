"""Who is chosen and how much each weighs: every cell of the routing table against a slow reading of it."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.tiny.deepseek2 import GROUPED, V2, V3, metadata
from tests.tiny.memory import Memory
from turbospark.config import deepseek2
from turbospark.config.keys import Keys
from turbospark.config.model import MoE
from turbospark.errors import TurbosparkError
from turbospark.experts.resident import Resident
from turbospark.kernels.parts import Norm
from turbospark.kernels.reference import ReferenceKernels
from turbospark.layers.feed_forward import Mixture
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights

METHODS = {"greedy": (1, 1, "max"), "group limited": (4, 2, "max"), "noaux": (4, 2, "top2")}
TABLE = list(product(("softmax", "sigmoid"), (False, True), (1.0, 2.5), METHODS, (False, True)))


def moe_of(scoring: str, renormalise: bool, scale: float, method: str, bias: bool) -> MoE:
    groups, used, rank = METHODS[method]
    return MoE(8, 3, 16, scoring, renormalise, scale, groups, used, rank, bias)


def slow_route(logits: list[float], moe: MoE, bias: list[float]) -> dict[int, float]:
    """Expert -> weight, in plain Python and in double precision."""
    if moe.scoring == "softmax":
        total = sum(math.exp(v - max(logits)) for v in logits)
        scores = [math.exp(v - max(logits)) / total for v in logits]
    else:
        scores = [1 / (1 + math.exp(-v)) for v in logits]
    choice = [score + (b if moe.bias else 0) for score, b in zip(scores, bias, strict=True)]
    size = moe.experts // moe.groups
    members = [range(g * size, (g + 1) * size) for g in range(moe.groups)]
    best = 1 if moe.group_rank == "max" else 2
    rank = [sum(sorted((choice[e] for e in group), reverse=True)[:best]) for group in members]
    kept = sorted(range(moe.groups), key=lambda g: -rank[g])[: moe.groups_used]
    allowed = [e for g in kept for e in members[g]]
    chosen = sorted(allowed, key=lambda e: -choice[e])[: moe.used]
    total = sum(scores[e] for e in chosen) if moe.renormalise else 1.0
    return {e: scores[e] / total * moe.scale for e in chosen}


@pytest.mark.parametrize("cell", TABLE, ids=lambda cell: " ".join(map(str, cell)))
def test_every_cell_of_the_table_routes_as_written(cell):
    moe, random = moe_of(*cell), np.random.default_rng(3)
    logits = random.standard_normal((40, 8)).astype(np.float32)
    bias = (random.standard_normal(8) - 1).astype(np.float32)  # most choices are negative
    ids, weights = ReferenceKernels().route(logits, moe, bias if moe.bias else None)
    for row, chosen, weight in zip(logits, ids, weights, strict=True):
        wanted = slow_route(row.tolist(), moe, bias.tolist())
        assert chosen.tolist() == list(wanted)
        np.testing.assert_allclose(weight, list(wanted.values()), rtol=1e-5)


def test_the_bias_selects_and_never_weighs():
    logits, bias = np.zeros((1, 8), np.float32), np.array([0, 0, 9, 0, 0, 7, 0, 8], np.float32)
    ids, weights = ReferenceKernels().route(logits, moe_of("sigmoid", False, 1.0, "greedy", True), bias)
    assert ids.tolist() == [[2, 7, 5]]
    assert weights.tolist() == [[0.5, 0.5, 0.5]]


def test_a_group_left_out_gives_no_expert_even_where_all_choices_are_negative():
    bias = np.array([-1, -9, -2, -2, -9, -9, -9, -9], np.float32)  # sums of two: -10, -4, -18, -18
    moe = MoE(8, 2, 16, "sigmoid", groups=4, groups_used=1, group_rank="top2", bias=True)
    ids, _ = ReferenceKernels().route(np.zeros((1, 8), np.float32), moe, bias)
    assert ids.tolist() == [[2, 3]]


@pytest.mark.parametrize("renormalise", [False, True])
def test_scores_that_are_all_zero_do_not_divide(renormalise):
    logits = np.full((1, 8), -500, np.float32)
    _, weights = ReferenceKernels().route(logits, moe_of("sigmoid", renormalise, 2.5, "noaux", False), None)
    assert weights.tolist() == [[0.0, 0.0, 0.0]]


def test_ties_go_to_the_lowest_expert():
    ids, _ = ReferenceKernels().route(np.zeros((1, 8), np.float32), moe_of("softmax", False, 1.0, "noaux", False), None)
    assert ids.tolist() == [[0, 1, 2]]


def test_a_config_json_declares_each_column_apart():
    for scoring, renormalise, scale, (method, kept) in product(
        ("softmax", "sigmoid"),
        (False, True),
        (1.0, 2.5),
        {"greedy": "greedy", "group_limited_greedy": "group limited", "noaux_tc": "noaux"}.items(),
    ):
        declared = {**V3, "scoring_func": scoring, "norm_topk_prob": renormalise, "routed_scaling_factor": scale}
        moe = hf_experts({**declared, "topk_method": method})
        wanted = moe_of(scoring, renormalise, scale, kept, method == "noaux_tc")
        for column in ("scoring", "renormalise", "scale", "groups", "groups_used", "group_rank", "bias"):
            assert getattr(moe, column) == getattr(wanted, column), column


def test_a_gguf_declares_each_column_apart():
    for gating, renormalise, scale, bias in product((1, 2), (False, True), (1.0, 2.5), (False, True)):
        moe = gguf_experts(
            expert_gating_func=gating, expert_weights_norm=renormalise, expert_weights_scale=scale, expert_bias=bias
        )
        wanted = (("softmax", "max"), ("sigmoid", "top2"))[gating - 1]
        assert (moe.scoring, moe.group_rank) == wanted
        assert (moe.renormalise, moe.scale, moe.bias) == (renormalise, scale, bias)
        assert (moe.groups, moe.groups_used) == (4, 2)


def test_what_a_file_leaves_out_is_v2():
    assert gguf_experts(expert_gating_func=None).scoring == "softmax"
    silent = {"scoring_func": None, "topk_method": None, "norm_topk_prob": None, "routed_scaling_factor": None}
    assert hf_experts({**V2, **silent}) == hf_experts(V2)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"topk_method": "magic"}, ("topk_method", "'magic'", "'noaux_tc'")),
        ({"scoring_func": "tanh"}, ("scoring_func", "'tanh'", "'sigmoid'")),
        ({"norm_topk_prob": "yes"}, ("norm_topk_prob", "'yes'")),
        ({"routed_scaling_factor": 0}, ("routed_scaling_factor", "0")),
        ({"n_group": None}, ("n_group", "missing")),
        ({"n_group": 3}, ("n_group", "3", "8")),
        ({"topk_group": 5}, ("topk_group", "5", "4")),
        ({"topk_group": 1}, ("num_experts_per_tok", "3", "2")),
        ({"num_experts_per_tok": 0}, ("num_experts_per_tok", "0")),
        ({"n_routed_experts": 0}, ("n_routed_experts", "0")),
        ({"n_group": 1, "topk_group": 1, "num_experts_per_tok": 9}, ("num_experts_per_tok", "9", "8")),
    ],
)
def test_a_routing_that_cannot_be_is_refused_by_name(changes, names):
    with pytest.raises(TurbosparkError) as caught:
        hf_experts({**V3, **changes})
    assert all(name in caught.value.message for name in names)


@pytest.mark.parametrize("gating", [0, 3, 7])
def test_an_unknown_gating_function_is_refused(gating):
    with pytest.raises(TurbosparkError, match=f"expert_gating_func is {gating}; it must be one of 1, 2"):
        gguf_experts(expert_gating_func=gating)


def test_a_bias_without_a_gating_function_is_not_guessed_at():
    with pytest.raises(TurbosparkError, match="expert_gating_func is missing"):
        gguf_experts(expert_gating_func=None, expert_bias=True)


def hf_experts(config: dict[str, Any]) -> MoE:
    return deepseek2.from_hf(Keys(config, "config.json")).layers[-1].ffn


def gguf_experts(**changes: Any) -> MoE:
    declared = metadata({**V2, **GROUPED}) | {f"deepseek2.{name}": value for name, value in changes.items()}
    return deepseek2.from_gguf(Keys(declared, "tiny.gguf", "deepseek2.")).layers[-1].ffn


@pytest.mark.parametrize(
    ("moe", "wanted"),
    [
        (MoE(4, 3, 1, "sigmoid"), 2001 + 0.5 * 111),
        (MoE(4, 3, 1, "sigmoid", renormalise=True, scale=3.0), 2001 + 111),
        (MoE(4, 4, 1, "softmax", scale=4.0), 2001 + 1111),
        (MoE(4, 2, 1, "sigmoid", groups=2, groups_used=1), 2001 + 0.5 * 11),
    ],
)
def test_experts_that_return_powers_of_ten_sum_to_a_readable_number(moe, wanted):
    """Expert e answers 10 ** e, the shared one 2000, the stream holds 1; all router logits are zero."""
    moe = MoE(**{**moe.__dict__, "shared_width": 1})
    silu = 1 / (1 + math.exp(-1))
    answers = lambda values: np.array(values, np.float32).reshape(-1, 1, 1) / silu
    arrays = {
        "ffn_gate_inp.weight": np.zeros((4, 1)),
        **{f"ffn_{role}_exps.weight": np.ones((4, 1, 1)) for role in ("gate", "up")},
        "ffn_down_exps.weight": answers([1, 10, 100, 1000]),
        **{f"ffn_{role}_shexp.weight": np.ones((1, 1)) for role in ("gate", "up")},
        "ffn_down_shexp.weight": answers([2000])[0],
    }
    w = Weights(Memory(arrays), lambda name: (name,), ReferenceKernels(), Trace(), (128, 128))
    out = Mixture(moe, 1, w, Norm(None, 0.0))(np.ones((1, 1), np.float32))
    w.check(lambda name: False)
    assert out.item() == pytest.approx(wanted, rel=1e-6)


def test_the_sum_runs_from_the_shared_expert_in_routing_order():
    """Float32 keeps 1e8 + 1 - 1e8 only in an order that loses the 1: which order it is can be read off."""
    experts = [1.0, -1e8]
    store = Resident([(Constant(1.0), Constant(1.0), Constant(value)) for value in experts])
    kernels, x = ReferenceKernels(), np.ones((1, 1), np.float32)
    run = lambda ids, base: kernels.experts(x, np.array([ids]), np.ones((1, 2), np.float32), store, "silu", base)
    assert run([0, 1], np.full((1, 1), 1e8, np.float32)).item() == 0.0
    assert run([1, 0], np.full((1, 1), 1e8, np.float32)).item() == pytest.approx(1.0)


class Constant:
    """A matrix whose product is one number."""

    def __init__(self, value: float):
        self.value = value

    def product(self, x: np.ndarray) -> np.ndarray:
        return np.full((len(x), 1), self.value, np.float32)
