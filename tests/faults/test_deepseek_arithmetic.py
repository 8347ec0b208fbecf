"""DeepSeek's scales, rotation and latent attention, by hand: score scale, YaRN's two factors, pairs, expansion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import turbospark
from tests.parity.harness import feed, new_session, some_ids
from tests.tiny.deepseek2 import V2, YARN, Weights, metadata, weights, write_deepseek2_gguf, write_hf
from turbospark.config import deepseek2
from turbospark.config.keys import Keys
from turbospark.config.model import MLA, Rope
from turbospark.errors import TurbosparkError
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows
from turbospark.layers.mla import split_kv_b
from turbospark.models.base import Model
from turbospark.quant.formats import decode, encode

IDS = some_ids(51, 96)
MSCALE = 0.1 * 0.707 * math.log(40) + 1


def mixer_of(config: Mapping[str, Any]) -> MLA:
    return deepseek2.from_hf(Keys(config, "config.json")).layers[0].mixer


def gguf_mixer(**changes: Any) -> MLA:
    """The mixer of the tiny V2 as a GGUF; None takes a key out."""
    declared = metadata(V2) | {f"deepseek2.{name.replace('__', '.')}": value for name, value in changes.items()}
    return deepseek2.from_gguf(Keys(declared, "tiny.gguf", "deepseek2.")).layers[0].mixer


def frequencies() -> np.ndarray:
    """YaRN's, by the paper: pairs below `low` keep their pace, above `high` go `factor` times slower."""
    dim, theta, trained = 8, 10000.0, 16
    pair = lambda turns: dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
    low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), dim - 1)
    slow = [min(max((i - low) / max(high - low, 0.001), 0), 1) for i in range(dim // 2)]
    return np.array([theta ** (-2 * i / dim) * (1 - s + s / 40) for i, s in enumerate(slow)])


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """x [..., dim] with each pair (2i, 2i + 1) turned as a complex number."""
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * position * frequencies())
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def expanded(made: Weights, scale: float) -> np.ndarray:
    """The first layer's heads [T, heads * value] as the paper has them: keys and values formed for every token."""
    w = {name: values.astype(np.float64) for name, values in made.items()}
    attention = "model.layers.0.self_attn."
    rms = lambda x, name: x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * w[name]
    a = rms(w["model.embed_tokens.weight"][IDS], "model.layers.0.input_layernorm.weight")
    q = (a @ w[attention + "q_proj.weight"].T).reshape(len(IDS), 4, 20)
    row = a @ w[attention + "kv_a_proj_with_mqa.weight"].T
    latent = rms(row[:, :24], attention + "kv_a_layernorm.weight")
    both = (latent @ w[attention + "kv_b_proj.weight"].T).reshape(len(IDS), 4, 32)
    out = np.empty((len(IDS), 4, 20))
    for t in range(len(IDS)):
        for head in range(4):
            query = np.concatenate([q[t, head, :12], turned(q[t, head, 12:], t)])
            keys = [np.concatenate([both[s, head, :12], turned(row[s, 24:], s)]) for s in range(t + 1)]
            scores = np.array([query @ key for key in keys]) * scale
            weight = np.exp(scores - scores.max())
            out[t, head] = weight / weight.sum() @ both[: t + 1, head, 12:]
    return out.reshape(len(IDS), -1)


def first_mix(model: Model) -> np.ndarray:
    seen = {}
    model.trace.sink = lambda name, value: seen.setdefault(name, value)
    feed(model, new_session(model, 1), [(0, IDS)])
    model.trace.sink = None
    return seen["blk.0.attn_mix"]


@pytest.fixture(scope="module")
def made() -> Weights:
    return weights(V2)


@pytest.fixture(scope="module")
def mix(made, tmp_path_factory) -> np.ndarray:
    folder = write_hf(tmp_path_factory.mktemp("v2"), V2, made)
    return first_mix(turbospark.load(folder, "reference", 64).engine.model)


def test_absorbed_attention_is_the_expanded_one_at_every_position(made, mix):
    np.testing.assert_allclose(mix, expanded(made, MSCALE**2 / math.sqrt(20)), atol=1e-5)


@pytest.mark.parametrize("wrong", [1.0, MSCALE], ids=["missing", "not squared"])
def test_the_score_scale_shows_from_position_one_on(made, mix, wrong):
    away = np.abs(mix - expanded(made, wrong / math.sqrt(20))).max(-1)
    assert away[0] < 1e-5
    assert away[1] > 1e-3
    assert away[50] > 1e-3


def test_v2_lite_scores_are_scaled_by_the_published_number():
    lite = V2 | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    mixer = mixer_of(lite | {"rope_scaling": YARN | {"original_max_position_embeddings": 4096}})
    assert mixer.scale == pytest.approx(0.11472138679292612, rel=1e-12)
    assert mixer.rope.scaling.attention_factor == 1.0


@pytest.mark.parametrize("nothing", [None, {}, {"type": "default"}, {"rope_type": "default", "rope_theta": 500}])
def test_no_rope_scaling_means_no_yarn(nothing):
    mixer = mixer_of(V2 | {"rope_scaling": nothing})
    assert mixer.rope.scaling is None
    assert mixer.scale == 1 / math.sqrt(20)
    assert mixer.rope.theta == (nothing or {}).get("rope_theta", 10000)


@pytest.mark.parametrize(
    ("changes", "magnitude", "squared"),
    [
        ({}, 1.0, MSCALE**2),
        ({"mscale": 1.0}, (0.1 * math.log(40) + 1) / MSCALE, MSCALE**2),
        ({"attention_factor": 1.3}, 1.3, MSCALE**2),
        ({"mscale": None, "mscale_all_dim": None}, 0.1 * math.log(40) + 1, 1.0),
        ({"mscale": None, "mscale_all_dim": None, "attention_factor": 0.9}, 0.9, 1.0),
    ],
)
def test_the_two_factors_of_yarn_are_independent(changes, magnitude, squared):
    mixer = mixer_of(V2 | {"rope_scaling": YARN | changes})
    assert mixer.rope.scaling.attention_factor == pytest.approx(magnitude, rel=1e-12)
    assert mixer.scale == pytest.approx(squared / math.sqrt(20), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "magnitude", "squared"),
    [
        ({}, 1.0, MSCALE**2),
        ({"rope__scaling__attn_factor": 1.3}, 1.3, MSCALE**2),
        ({"rope__scaling__yarn_log_multiplier": None}, 1.0, 1.0),
        ({"rope__scaling__type": "none"}, None, 1.0),
    ],
)
def test_a_gguf_turns_without_magnitude_unless_it_says_one(changes, magnitude, squared):
    mixer = gguf_mixer(**changes)
    assert (mixer.rope.scaling and mixer.rope.scaling.attention_factor) == magnitude
    assert mixer.scale == pytest.approx(squared / math.sqrt(20), rel=1e-6)


@pytest.mark.parametrize("value", [0, -1.0, "much", float("nan")])
def test_an_attention_factor_that_is_no_magnitude_is_refused(value):
    with pytest.raises(TurbosparkError, match="attention_factor"):
        mixer_of(V2 | {"rope_scaling": YARN | {"attention_factor": value}})


def test_pairs_are_consecutive_by_hand():
    kernels, x = ReferenceKernels(), np.array([[[1, 2, 3, 4]]], np.float32)
    rows = Rows.of([(0, 3, [7], 1)])
    c0, s0, c1, s1 = math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)
    consecutive = kernels.rope(x, rows, kernels.rotary(Rope(10000.0, 4, True), 8))
    by_hand = [1 * c0 - 2 * s0, 2 * c0 + 1 * s0, 3 * c1 - 4 * s1, 4 * c1 + 3 * s1]
    np.testing.assert_allclose(consecutive[0, 0], by_hand, rtol=1e-6)
    halves = kernels.rope(x, rows, kernels.rotary(Rope(10000.0, 4, False), 8))
    by_hand = [1 * c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + 1 * s0, 4 * c1 + 2 * s1]
    np.testing.assert_allclose(halves[0, 0], by_hand, rtol=1e-6)


def test_pairs_are_consecutive_in_both_kinds_of_file_unless_said_otherwise():
    assert mixer_of(V2).rope.interleaved
    assert gguf_mixer().rope.interleaved
    assert not mixer_of(V2 | {"rope_interleave": False}).rope.interleaved


@pytest.mark.parametrize("kv_b", ["joint", "split", "both", "flat"])
def test_every_naming_of_kv_b_mixes_alike(made, mix, kv_b, tmp_path):
    path = write_deepseek2_gguf(tmp_path / "tiny.gguf", V2, made, kv_b)
    np.testing.assert_allclose(first_mix(turbospark.load(path, "reference", 64).engine.model), mix, atol=2e-6)


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "F8_E4M3"])
def test_kv_b_splits_in_every_kind_of_format(format):
    heads, nope, value, latent = 3, 50, 80, 160
    kv_b = encode(np.random.default_rng(0).standard_normal((heads * (nope + value), latent)).astype(np.float32), format)
    by_head = decode(kv_b).reshape(heads, nope + value, latent)
    k_up, v_up = split_kv_b(kv_b, heads, nope)
    np.testing.assert_array_equal(decode(k_up), by_head[:, :nope].swapaxes(1, 2))
    np.testing.assert_array_equal(decode(v_up), by_head[:, nope:])
