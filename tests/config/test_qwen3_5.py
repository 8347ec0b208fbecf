"""What qwen3_5 files declare, and what is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turbospark.config import qwen3_5
from turbospark.config.keys import Keys
from turbospark.config.model import Attention, Dense, GatedDelta, ModelConfig, MoE, Rope
from turbospark.config.registry import read_config
from turbospark.errors import TurbosparkError

LINEAR, FULL = "linear_attention", "full_attention"
HF = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 16,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "attn_output_gate": True,
    "tie_word_embeddings": False,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}
EXPERTS = {
    "model_type": "qwen3_5_moe_text",
    "intermediate_size": None,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
GGUF = {
    "vocab_size": 248320,
    "block_count": 65,
    "nextn_predict_layers": 1,
    "context_length": 262144,
    "embedding_length": 5120,
    "feed_forward_length": 17408,
    "attention.head_count": 24,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e7,
    "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0],
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "ssm.time_step_rank": 48,
    "ssm.inner_size": 6144,
    "full_attention_interval": 4,
}
GGUF_EXPERTS = {
    "feed_forward_length": None,
    "expert_count": 256,
    "expert_used_count": 8,
    "expert_feed_forward_length": 512,
    "expert_shared_feed_forward_length": 512,
}


def hf(changes: dict[str, Any] | None = None) -> ModelConfig:
    return qwen3_5.from_hf(Keys({**HF, **(changes or {})}, "folder/config.json"))


def hf_moe(changes: dict[str, Any] | None = None) -> ModelConfig:
    return hf({**EXPERTS, **(changes or {})})


def gguf(changes: dict[str, Any] | None = None, arch: str = "qwen35") -> ModelConfig:
    values = {f"{arch}.{key}": value for key, value in {**GGUF, **(changes or {})}.items()}
    return qwen3_5.from_gguf(Keys(values, "file.gguf", arch + "."))


def gguf_moe(changes: dict[str, Any] | None = None) -> ModelConfig:
    return gguf({**GGUF_EXPERTS, **(changes or {})}, "qwen35moe")


@pytest.mark.parametrize("config", [hf, gguf])
def test_the_published_27b_is_read_alike_from_both_kinds_of_file(config: Any) -> None:
    read = config()
    assert (len(read.layers), read.hidden, read.vocab, read.tied, read.mtp_layers) == (64, 5120, 248320, False, 1)
    kinds = [type(layer.mixer) for layer in read.layers]
    assert kinds == [GatedDelta, GatedDelta, GatedDelta, Attention] * 16
    turn = Rope(1e7, 64, False)
    assert read.layers[3].mixer == Attention(24, 4, 256, turn, 256**-0.5, qk_norm=True, gated=True)
    assert read.layers[0].ffn == Dense(17408)
    assert read.layers[0].mixer.channels == 10240


def test_what_a_folder_and_a_gguf_store_differently_is_a_property_of_the_config() -> None:
    folder, file = hf(), gguf()
    assert (folder.norm_offset, file.norm_offset) == (True, False)
    assert folder.layers[0].mixer == GatedDelta(16, 48, 128, 128, 4, tiled=False, log_decay=True)
    assert file.layers[0].mixer == GatedDelta(16, 48, 128, 128, 4, tiled=True, log_decay=False)


@pytest.mark.parametrize("config", [hf_moe, gguf_moe])
def test_routing_is_softmax_over_the_chosen_with_a_gated_shared_expert(config: Any) -> None:
    moe = MoE(256, 8, 512, renormalise=True, shared_width=512, shared_gate=True)
    assert {layer.ffn for layer in config().layers} == {moe}


def test_the_model_type_is_an_exact_name() -> None:
    for kind, ffn in {"qwen3_5": Dense, "qwen3_5_text": Dense, "qwen3_5_moe": MoE, "qwen3_5_moe_text": MoE}.items():
        declared = {**HF, **(EXPERTS if ffn is MoE else {}), "model_type": kind}
        assert isinstance(read_config(folder(declared)).layers[0].ffn, ffn)
    for kind in ("qwen3_5_omni", "qwen3_5_mo", "qwen3"):
        with pytest.raises(TurbosparkError, match=f"model_type '{kind}' is not known") as caught:
            read_config(folder({**HF, "model_type": kind}))
        assert caught.value.code == "unsupported_family"


def test_a_wrapped_config_is_the_texts_own() -> None:
    wrapped = {"model_type": "qwen3_5_moe", "text_config": {**HF, **EXPERTS}, "vision_config": {"hidden_size": 9}}
    assert read_config(folder(wrapped)) == read_config(folder({**HF, **EXPERTS}))
    del wrapped["text_config"]["model_type"]
    assert read_config(folder(wrapped)) == read_config(folder({**HF, **EXPERTS}))


def folder(metadata: dict[str, Any]) -> Any:
    path = SimpleNamespace(name="folder")
    return SimpleNamespace(kind="hf", path=path, metadata=metadata, tensors={}, generation_config=None)


def test_every_fourth_layer_attends_fully_where_no_list_says_so() -> None:
    full = [isinstance(layer.mixer, Attention) for layer in hf({"layer_types": None}).layers]
    assert full == [False, False, False, True] * 16
    interval = hf({"layer_types": None, "full_attention_interval": 2})
    assert [isinstance(layer.mixer, Attention) for layer in interval.layers] == [False, True] * 32


def test_a_gguf_may_list_its_recurrent_layers() -> None:
    listed = [True, False] * 32 + [False]
    read = gguf({"attention.recurrent_layers": listed})
    assert [isinstance(layer.mixer, GatedDelta) for layer in read.layers] == listed[:64]


def test_the_rotated_part_may_stand_outside_or_not_at_all() -> None:
    outside = hf({"rope_parameters": None, "rope_theta": 1e7, "partial_rotary_factor": 0.5})
    assert outside.layers[3].mixer.rope == Rope(1e7, 128, False)
    assert hf({"rope_parameters": {"rope_theta": 1e7}}).layers[3].mixer.rope == Rope(1e7, 64, False)


def message(config: Any, changes: dict[str, Any]) -> str:
    with pytest.raises(TurbosparkError) as caught:
        config(changes)
    assert caught.value.code in ("bad_config", "missing_key", "unsupported_feature")
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_output_gate": False}, ["attn_output_gate", "False"]),
        ({"attention_bias": True}, ["attention_bias", "True"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"sliding_window": 64}, ["sliding_window", "64"]),
        ({"head_dim": None}, ["head_dim", "missing"]),
        ({"intermediate_size": None}, ["intermediate_size", "missing"]),
        ({"linear_num_key_heads": None}, ["linear_num_key_heads", "missing"]),
        ({"linear_num_value_heads": 40}, ["linear_num_value_heads", "40", "16"]),
        ({"linear_conv_kernel_dim": 0}, ["linear_conv_kernel_dim", "0"]),
        ({"linear_key_head_dim": 128.0}, ["linear_key_head_dim", "128.0"]),
        ({"layer_types": [FULL] * 63}, ["layer_types", "64"]),
        ({"layer_types": ["sliding_attention"] * 64}, ["layer_types", LINEAR, FULL]),
        ({"layer_types": FULL}, ["layer_types", "64"]),
        ({"full_attention_interval": 0, "layer_types": None}, ["full_attention_interval", "0"]),
        ({"num_attention_heads": 22}, ["22", "4"]),
        ({"num_experts": 8}, ["num_experts", "8"]),
        ({"rope_parameters": {"partial_rotary_factor": 1.5}}, ["384", "256"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.001}}, ["0 of", "0.001"]),
        ({"rope_parameters": {"partial_rotary_factor": 3 / 256}}, ["3", "256"]),
        ({"rope_parameters": [1]}, ["rope_scaling", "[1]"]),
        ({"mtp_num_hidden_layers": -1}, ["mtp_num_hidden_layers", "-1"]),
    ],
)
def test_a_folder_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    assert all(word in message(hf, changes) for word in words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 257}, ["num_experts_per_tok", "257", "256"]),
        ({"num_experts": None}, ["num_experts", "missing"]),
        ({"shared_expert_intermediate_size": 0}, ["shared_expert_intermediate_size", "0"]),
        ({"norm_topk_prob": False}, ["norm_topk_prob", "False"]),
        ({"mlp_only_layers": [3]}, ["mlp_only_layers", "[3]"]),
        ({"decoder_sparse_step": 2}, ["decoder_sparse_step", "2"]),
    ],
)
def test_a_folder_with_experts_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    assert all(word in message(hf_moe, changes) for word in words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nextn_predict_layers": 65}, ["nextn_predict_layers", "65"]),
        ({"ssm.inner_size": 6145}, ["ssm.inner_size", "6145", "48"]),
        ({"ssm.time_step_rank": 40, "ssm.inner_size": 5120}, ["ssm.time_step_rank", "40", "16"]),
        ({"ssm.state_size": None}, ["ssm.state_size", "missing"]),
        ({"attention.recurrent_layers": [True] * 64}, ["attention.recurrent_layers", "65"]),
        ({"attention.recurrent_layers": ["a"] * 65}, ["attention.recurrent_layers"]),
        ({"rope.dimension_count": 63}, ["rope.dimension_count", "63"]),
        ({"rope.dimension_count": 512}, ["rope.dimension_count", "512", "256"]),
        ({"feed_forward_length": None}, ["feed_forward_length", "missing"]),
        ({"expert_count": 8}, ["expert_count", "8"]),
        ({"full_attention_interval": 0}, ["full_attention_interval", "0"]),
    ],
)
def test_a_gguf_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    assert all(word in message(gguf, changes) for word in words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_used_count": 257}, ["expert_used_count", "257", "256"]),
        ({"expert_feed_forward_length": None}, ["expert_feed_forward_length", "missing"]),
        ({"expert_weights_norm": False}, ["expert_weights_norm", "False"]),
        ({"expert_gating_func": 2}, ["expert_gating_func", "2"]),
        ({"expert_weights_scale": 2.5}, ["expert_weights_scale", "2.5"]),
    ],
)
def test_a_gguf_with_experts_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    assert all(word in message(gguf_moe, changes) for word in words)
