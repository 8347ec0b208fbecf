"""What gemma3 files declare, and what is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turbospark.config import gemma3
from turbospark.config.keys import Keys
from turbospark.config.model import ModelConfig, RopeScaling
from turbospark.config.registry import read_config
from turbospark.errors import TurbosparkError

HF = {
    "model_type": "gemma3_text",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 32,
}
GGUF = {
    "vocab_size": 100,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 7,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 32,
    "context_length": 512,
    "rope.freq_base": 1e6,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def hf(**changes: Any) -> ModelConfig:
    return gemma3.from_hf(Keys({**HF, **changes}, "folder/config.json"))


def gguf(changes: dict[str, Any] | None = None) -> ModelConfig:
    values = {**GGUF, **(changes or {})}
    return gemma3.from_gguf(Keys({f"gemma3.{key}": value for key, value in values.items()}, "file.gguf", "gemma3."))


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.mixer.window for layer in config.layers]


def thetas(config: ModelConfig) -> list[float]:
    return [layer.mixer.rope.theta for layer in config.layers]


def message(call: Any, *args: Any, **changes: Any) -> str:
    with pytest.raises(TurbosparkError) as caught:
        call(*args, **changes)
    return caught.value.message


@pytest.mark.parametrize("config", [hf, gguf])
def test_every_sixth_layer_sees_everything_and_turns_slowly(config: Any) -> None:
    assert windows(config()) == [32] * 5 + [None, 32]
    assert thetas(config()) == [1e4] * 5 + [1e6, 1e4]


def test_older_and_newer_keys_say_the_same() -> None:
    kinds = [SLIDING, SLIDING, FULL] * 2 + [SLIDING]
    stretched = {"rope_type": "linear", "factor": 8.0}
    newer = hf(
        layer_types=kinds,
        rope_parameters={
            SLIDING: {"rope_type": "default", "rope_theta": 50.0},
            FULL: {**stretched, "rope_theta": 900.0},
        },
    )
    older = hf(sliding_window_pattern=3, rope_local_base_freq=50.0, rope_theta=900.0, rope_scaling=stretched)
    assert older == newer
    assert [layer.mixer.rope.scaling for layer in newer.layers[1:3]] == [None, RopeScaling("linear", 8.0)]


def test_scaling_in_a_gguf_is_for_the_layers_that_see_far() -> None:
    config = gguf({"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    assert [layer.mixer.rope.scaling for layer in config.layers[4:6]] == [None, RopeScaling("linear", 8.0)]


def test_the_published_4b_declares_little_and_means_much() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    metadata = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    checkpoint = SimpleNamespace(
        kind="hf", path=SimpleNamespace(name="gemma"), metadata=metadata, tensors={}, generation_config=None
    )
    config = read_config(checkpoint)
    attention = config.layers[5].mixer
    assert (config.vocab, config.context, config.eps, config.tied) == (262208, 131072, 1e-6, True)
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.scale) == (8, 4, 256, 256**-0.5)
    assert windows(config)[:6] == [1024] * 5 + [None]
    assert config.embedding_scale == 2560**0.5


def test_only_the_size_of_62_layers_scales_scores_by_another_width() -> None:
    """llama.cpp knows it by its layers; transformers by query_pre_attn_scalar, 168 = 5376 / 32."""
    layers = {"attention.key_length": 8, "attention.value_length": 8}
    assert gguf({**layers, "block_count": 62}).layers[0].mixer.scale == 16**-0.5
    assert gguf({**layers, "block_count": 48}).layers[0].mixer.scale == 8**-0.5
    assert hf(query_pre_attn_scalar=168).layers[0].mixer.scale == 168**-0.5


def test_caps_are_as_declared() -> None:
    declared = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    for config in (hf(**declared), gguf(declared)):
        assert (config.layers[3].mixer.softcap, config.output_softcap) == (50.0, 30.0)
    for config in (hf(), hf(**dict.fromkeys(declared)), gguf(), gguf(dict.fromkeys(declared, 0.0))):
        assert (config.layers[3].mixer.softcap, config.output_softcap) == (None, None)


def test_norms_are_offsets_in_a_folder_only() -> None:
    assert (hf().norm_offset, gguf().norm_offset) == (True, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_bidirectional_attention": True}, ["use_bidirectional_attention", "True"]),
        ({"hidden_activation": "gelu"}, ["hidden_activation", "gelu"]),
        ({"layer_types": [SLIDING] * 6}, ["layer_types", "7"]),
        ({"layer_types": [SLIDING] * 6 + ["chunked_attention"]}, ["layer_types", FULL]),
        ({"sliding_window": None}, ["sliding_window", "missing"]),
        ({"sliding_window": 0}, ["sliding_window", "0"]),
        ({"sliding_window_pattern": 0}, ["sliding_window_pattern", "0"]),
        ({"query_pre_attn_scalar": 0}, ["query_pre_attn_scalar", "0"]),
        ({"final_logit_softcapping": -1.0}, ["final_logit_softcapping", "-1.0"]),
        ({"rope_local_base_freq": 0.5}, ["rope_local_base_freq", "0.5"]),
        ({"rope_parameters": {FULL: {"rope_type": "dynamic", "factor": 2.0}}}, ["rope_type", "dynamic"]),
        ({"rope_parameters": {SLIDING: "default"}}, ["default"]),
        ({"rope_parameters": "default"}, ["rope_parameters", "default"]),
        ({"rope_parameters": {"rope_type": "default"}}, ["rope_parameters", SLIDING, FULL]),
        ({"head_dim": 15}, ["15"]),
        ({"num_key_value_heads": 3}, ["4 attention heads", "3 key/value heads"]),
    ],
)
def test_a_folder_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    said = message(hf, **changes)
    assert all(word in said for word in ["config.json", *words]), said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_count": 8}, ["gemma3.expert_count", "8"]),
        ({"attention.sliding_window_pattern": [True] * 6}, ["gemma3.attention.sliding_window_pattern", "7"]),
        ({"attention.sliding_window_pattern": "LLLLLG"}, ["gemma3.attention.sliding_window_pattern", "LLLLLG"]),
        ({"rope.freq_base_swa": 0.0}, ["gemma3.rope.freq_base_swa", "0.0"]),
        ({"final_logit_softcapping": -1.0}, ["gemma3.final_logit_softcapping", "-1.0"]),
        ({"rope.scaling.type": "longrope"}, ["gemma3.rope.scaling.type", "longrope"]),
    ],
)
def test_a_gguf_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    said = message(gguf, changes)
    assert all(word in said for word in ["file.gguf", *words]), said
