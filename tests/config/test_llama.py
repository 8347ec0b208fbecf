"""What llama and mistral files declare, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from turbospark.config import llama
from turbospark.config.keys import Keys
from turbospark.config.model import ModelConfig, RopeScaling
from turbospark.errors import TurbosparkError

HF = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
GGUF = {
    "vocab_size": 100,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def hf(**changes: Any) -> ModelConfig:
    return llama.from_hf(Keys({**HF, **changes}, "folder/config.json"))


def gguf(changes: dict[str, Any] | None = None) -> ModelConfig:
    values = {**GGUF, **(changes or {})}
    return llama.from_gguf(Keys({f"llama.{key}": value for key, value in values.items()}, "file.gguf", "llama."))


def scaling(config: ModelConfig) -> RopeScaling | None:
    return config.layers[0].mixer.rope.scaling


def message(call: Any, *args: Any, **changes: Any) -> str:
    with pytest.raises(TurbosparkError) as caught:
        call(*args, **changes)
    return caught.value.message


def test_older_and_newer_rope_keys_say_the_same() -> None:
    stretched = {"rope_type": "linear", "factor": 4.0}
    newer = hf(rope_parameters={**stretched, "rope_theta": 500.0})
    assert hf(rope_theta=500.0, rope_scaling={"type": "linear", "factor": 4.0}) == newer
    assert hf(rope_theta=500.0, rope_parameters=stretched) == newer
    assert hf(rope_theta=500, rope_scaling=stretched) == newer
    assert newer.layers[0].mixer.rope.theta == 500.0


@pytest.mark.parametrize("nothing", [None, {}, {"rope_type": "default"}, {"type": "default"}, {"rope_theta": 500.0}])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_null_and_default_are_no_scaling(key: str, nothing: Any) -> None:
    assert scaling(hf(**{key: nothing})) is None


def test_the_trained_context_is_the_models_own_unless_said() -> None:
    assert scaling(hf(rope_scaling=YARN)).original_context == 512
    inside = {**YARN, "original_max_position_embeddings": 128}
    assert scaling(hf(rope_scaling=inside)).original_context == 128
    assert scaling(hf(rope_scaling=inside, original_max_position_embeddings=256)).original_context == 256


def test_a_silent_mistral_has_a_window_and_eight_key_heads() -> None:
    fields = {"model_type": "mistral", "num_attention_heads": 16}
    silent = hf(**fields).layers[0].mixer
    assert (silent.window, silent.kv_heads) == (4096, 8)
    said = hf(**fields, sliding_window=None, num_key_value_heads=None).layers[0].mixer
    assert (said.window, said.kv_heads) == (None, 16)


def test_a_silent_llama_takes_the_defaults_of_transformers() -> None:
    bare = {key: HF[key] for key in HF if key not in ("max_position_embeddings", "rms_norm_eps")}
    config = llama.from_hf(Keys(bare, "config.json"))
    assert (config.context, config.eps, config.tied) == (2048, 1e-6, False)
    assert config.layers[0].mixer.rope.theta == 10000.0


def test_a_gguf_turns_pairs_side_by_side_and_a_folder_halves() -> None:
    assert gguf().layers[0].mixer.rope.interleaved
    assert not hf().layers[0].mixer.rope.interleaved


def test_a_gguf_window_counts() -> None:
    assert gguf({"attention.sliding_window": 32}).layers[1].mixer.window == 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mlp_bias": True}, ["mlp_bias", "True"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"sliding_window": 64}, ["sliding_window", "64"]),
        ({"model_type": "mistral", "attention_bias": True}, ["attention_bias", "True"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        *(
            ({"rope_scaling": {"rope_type": kind, "factor": 2.0}}, ["rope_type", kind, "llama3"])
            for kind in ("dynamic", "longrope", "mrope", "proportional", "axial")
        ),
        ({"rope_scaling": {"type": "su"}}, ["type", "su"]),
        ({"rope_scaling": "linear"}, ["rope_scaling", "linear"]),
        ({"rope_scaling": {"type": "linear"}}, ["factor", "missing"]),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, ["factor", "0.5", "1"]),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, ["factor", "'4'"]),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, ["low_freq_factor", "4.0"]),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": None}}, ["high_freq_factor", "missing"]),
        ({"rope_scaling": {**YARN, "truncate": False}}, ["truncate", "False"]),
        ({"rope_scaling": {**YARN, "beta_fast": -1}}, ["beta_fast", "-1"]),
        ({"rope_scaling": {**YARN, "attention_factor": 0}}, ["attention_factor", "0"]),
        ({"rope_theta": 1.0}, ["rope_theta", "1.0"]),
        ({"head_dim": 15}, ["15"]),
        ({"num_key_value_heads": 3}, ["4 attention heads", "3 key/value heads"]),
        ({"num_attention_heads": 0}, ["num_attention_heads", "0"]),
        ({"num_hidden_layers": None}, ["num_hidden_layers", "missing"]),
    ],
)
def test_a_folder_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    said = message(hf, **changes)
    assert all(word in said for word in ["config.json", *words]), said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_count": 8}, ["llama.expert_count", "8"]),
        ({"rope.scaling.type": "longrope"}, ["llama.rope.scaling.type", "longrope", "yarn"]),
        ({"rope.scaling.type": "yarn"}, ["llama.rope.scaling.factor", "missing"]),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.yarn_ext_factor": 0.5}, ["0.5"]),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, ["yarn_log_multiplier", "0.1"]),
        ({"rope.dimension_count": 18}, ["llama.rope.dimension_count", "18", "16"]),
        ({"rope.dimension_count": 7}, ["llama.rope.dimension_count", "7"]),
        ({"rope.freq_base": 0.0}, ["llama.rope.freq_base", "0.0"]),
        ({"attention.key_length": 16, "attention.value_length": 8}, ["llama.attention.value_length", "8"]),
        ({"attention.head_count": 0}, ["0 attention heads"]),
        ({"attention.head_count": [4, 4, 4]}, ["llama.attention.head_count", "[4, 4, 4]", "2"]),
        ({"attention.head_count": ["4", "4"]}, ["llama.attention.head_count"]),
        ({"block_count": 0}, ["llama.block_count", "0"]),
        ({"context_length": "long"}, ["llama.context_length", "long"]),
    ],
)
def test_a_gguf_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    said = message(gguf, changes)
    assert all(word in said for word in ["file.gguf", *words]), said
