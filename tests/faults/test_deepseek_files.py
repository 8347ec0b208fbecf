"""deepseek2 files that contradict themselves or leave something out: refused at load, by name, with both numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import turbospark
from tests.tiny.deepseek2 import V2, V3, YARN, metadata, tensors, weights, write_hf
from tests.tiny.gguf_file import write_gguf
from tests.tiny.memory import Memory
from turbospark.config import deepseek2
from turbospark.config.keys import Keys
from turbospark.config.model import Attention, GatedDelta, Layer, ModelConfig
from turbospark.errors import TurbosparkError
from turbospark.kernels.reference import ReferenceKernels
from turbospark.models.registry import model_class

NAMES = {"v2": V2, "v3": V3}


def refused(load: Any, *says: str) -> TurbosparkError:
    with pytest.raises(TurbosparkError) as caught:
        load()
    for part in says:
        assert part in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("config", "change", "tensor", "numbers"),
    [
        (V2, {"num_attention_heads": 5, "num_key_value_heads": 5}, "self_attn.q_proj", ("[80, 32]", "[100, 32]")),
        (V2, {"qk_nope_head_dim": 16}, "self_attn.q_proj", ("[80, 32]", "[96, 32]")),
        (V2, {"v_head_dim": 16}, "self_attn.kv_b_proj", ("[128, 24]", "[112, 24]")),
        (V2, {"kv_lora_rank": 32}, "self_attn.kv_a_proj_with_mqa", ("[32, 32]", "[40, 32]")),
        (V3, {"q_lora_rank": 24}, "self_attn.q_a_proj", ("[28, 32]", "[24, 32]")),
        (V2, {"intermediate_size": 64}, "layers.0.mlp.gate_proj", ("[56, 32]", "[64, 32]")),
        (V2, {"n_routed_experts": 16}, "layers.1.mlp.gate", ("[8, 32]", "[16, 32]")),
        (V2, {"moe_intermediate_size": 32}, "mlp.experts.0.gate_proj", ("[24, 32]", "[32, 32]")),
        (V2, {"n_shared_experts": 3}, "mlp.shared_experts.gate_proj", ("[48, 32]", "[72, 32]")),
        (V2, {"vocab_size": 100}, "embed_tokens", ("[96, 32]", "[100, 32]")),
    ],
)
def test_weights_that_contradict_the_configuration(config, change, tensor, numbers, tmp_path):
    folder = write_hf(tmp_path / "hf", {**config, **change}, weights(config))
    assert refused(lambda: turbospark.load(folder), tensor, *numbers).code == "shape_mismatch"


@pytest.mark.parametrize("kv_b", ["joint", "split", "both", "flat"])
def test_kv_b_that_contradicts_the_heads(kv_b, tmp_path):
    named = tensors(V2, weights(V2), kv_b)
    wide = {"attn_kv_b": "joint", "attn_k_b": "split"}
    for part in [part for part in wide if f"blk.1.{part}.weight" in named]:
        name = f"blk.1.{part}.weight"
        cut = np.ascontiguousarray(named[name][..., :-4])
        path = write_gguf(tmp_path / part, metadata(V2), {**named, name: cut})
        refused(lambda path=path: turbospark.load(path), name, str(list(cut.shape)), str(list(named[name].shape)))


@pytest.mark.parametrize(
    ("name", "gone", "says"),
    [
        ("v2", "blk.0.ffn_gate.weight", "blk.0.ffn_gate.weight"),
        ("v2", "blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"),
        ("v2", "blk.1.ffn_up_shexp.weight", "blk.1.ffn_up_shexp.weight"),
        ("v2", "blk.2.ffn_down_exps.weight", "blk.2.ffn_down_exps.weight"),
        ("v2", "blk.2.attn_kv_a_norm.weight", "blk.2.attn_kv_a_norm.weight"),
        ("v2", "blk.1.attn_v_b.weight", "blk.1.attn_v_b.weight"),
        ("v2", "blk.1.attn_q.weight", "blk.1.attn_q.weight"),
        ("v3", "blk.1.attn_q_b.weight", "blk.1.attn_q_b.weight"),
        ("v3", "blk.2.exp_probs_b.bias", "blk.2.exp_probs_b.bias"),
        ("v3", "output_norm.weight", "output_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named_before_the_first_token(name, gone, says, tmp_path):
    config = NAMES[name]
    named = tensors(config, weights(config))
    del named[gone]
    path = write_gguf(tmp_path / "tiny.gguf", metadata(config), named)
    assert refused(lambda: turbospark.load(path), says).code == "missing_tensor"


@pytest.mark.parametrize(
    "gone",
    [
        "model.layers.0.self_attn.kv_b_proj.weight",
        "model.layers.1.mlp.experts.5.up_proj.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "lm_head.weight",
    ],
)
def test_a_missing_tensor_of_a_folder_is_named_before_the_first_token(gone, tmp_path):
    made = weights(V3)
    del made[gone]
    folder = write_hf(tmp_path / "hf", V3, made)
    assert refused(lambda: turbospark.load(folder), gone).code == "missing_tensor"


def test_the_first_gap_of_many_is_named_first(tmp_path):
    named = {name: values for name, values in tensors(V2, weights(V2)).items() if "ffn" not in name}
    path = write_gguf(tmp_path / "tiny.gguf", metadata(V2), named)
    message = refused(lambda: turbospark.load(path)).message
    assert message.index("blk.0.ffn_norm") < message.index("blk.0.ffn_gate")


@pytest.mark.parametrize(
    "extra", ["blk.1.post_attention_norm.weight", "blk.1.ffn_gate_inp_shexp.weight", "blk.1.attn_gate.weight"]
)
def test_tensors_of_other_families_have_no_place(extra, tmp_path):
    named = {**tensors(V2, weights(V2)), extra: np.ones(32, np.float32)}
    path = write_gguf(tmp_path / "tiny.gguf", metadata(V2), named)
    assert refused(lambda: turbospark.load(path), extra).code == "unused_tensor"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 0}, ("num_attention_heads", "0")),
        ({"num_key_value_heads": 2}, ("num_key_value_heads", "2", "4")),
        ({"qk_rope_head_dim": 7}, ("qk_rope_head_dim", "7", "even")),
        ({"qk_rope_head_dim": 0}, ("qk_rope_head_dim", "0")),
        ({"kv_lora_rank": 0}, ("kv_lora_rank", "0")),
        ({"kv_lora_rank": None}, ("kv_lora_rank", "missing")),
        ({"q_lora_rank": 0}, ("q_lora_rank", "0")),
        ({"v_head_dim": 1 << 40}, ("v_head_dim", str(1 << 40))),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "0")),
        ({"first_k_dense_replace": 3}, ("first_k_dense_replace", "3")),
        ({"first_k_dense_replace": None}, ("first_k_dense_replace", "missing")),
        ({"intermediate_size": None}, ("intermediate_size", "missing")),
        ({"moe_layer_freq": 2}, ("moe_layer_freq", "2", "1")),
        ({"attention_bias": True}, ("attention_bias", "True")),
        ({"hidden_act": "gelu"}, ("hidden_act", "'gelu'", "'silu'")),
        ({"final_logit_softcapping": 30.0}, ("final_logit_softcapping", "30.0")),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, ("mlp_layer_types", "3 layers")),
        ({"rope_theta": 1.0}, ("rope_theta", "1.0")),
        ({"rope_scaling": {**YARN, "type": "dynamic"}}, ("type", "'dynamic'", "'yarn'")),
        ({"rope_scaling": {**YARN, "factor": 0.5}}, ("factor", "0.5")),
        ({"rope_scaling": {**YARN, "beta_fast": 0}}, ("beta_fast", "0")),
        ({"rope_scaling": [40.0]}, ("rope_scaling", "[40.0]")),
    ],
)
def test_a_config_json_that_cannot_be_is_refused_by_name(change, says):
    refused(lambda: deepseek2.from_hf(Keys({**V2, **change}, "config.json")), *says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attention.head_count": 0}, ("attention.head_count", "0")),
        ({"attention.head_count_kv": 2}, ("attention.head_count_kv", "2", "4")),
        ({"attention.kv_lora_rank": None}, ("attention.kv_lora_rank", "missing")),
        ({"attention.key_length": 40}, ("attention.key_length", "40", "32")),
        ({"attention.value_length": 20}, ("attention.value_length", "20", "24")),
        ({"attention.key_length_mla": 8}, ("attention.key_length_mla", "8")),
        ({"attention.value_length_mla": None}, ("attention.value_length_mla", "missing")),
        ({"rope.dimension_count": 7}, ("rope.dimension_count", "7", "even")),
        ({"block_count": 0}, ("block_count", "0")),
        ({"nextn_predict_layers": 3}, ("nextn_predict_layers", "3")),
        ({"leading_dense_block_count": 3}, ("leading_dense_block_count", "3")),
        ({"feed_forward_length": None}, ("feed_forward_length", "missing")),
        ({"expert_count": 0}, ("expert_count", "0")),
        ({"expert_used_count": 9}, ("expert_used_count", "9", "8")),
        ({"expert_weights_scale": 0.0}, ("expert_weights_scale", "0.0")),
        ({"attn_logit_softcapping": 50.0}, ("attn_logit_softcapping", "50.0")),
        ({"attention.sliding_window": 128}, ("attention.sliding_window", "128")),
        ({"embedding_scale": 12.0}, ("embedding_scale", "12.0")),
    ],
)
def test_a_gguf_that_cannot_be_is_refused_by_name(change, says):
    declared = metadata(V2) | {f"deepseek2.{name}": value for name, value in change.items()}
    refused(lambda: deepseek2.from_gguf(Keys(declared, "tiny.gguf", "deepseek2.")), *says)


def test_without_a_dense_lead_no_dense_names_are_needed(tmp_path):
    config = {**V2, "first_k_dense_replace": 0}
    declared = {key: value for key, value in metadata(config).items() if "feed_forward_length" not in key}
    declared["deepseek2.expert_feed_forward_length"] = 24
    path = write_gguf(tmp_path / "tiny.gguf", declared, tensors(config, weights(config)))
    assert turbospark.load(path, "reference").logits([1, 2]).shape == (2, 96)


def test_old_and_new_keys_declare_the_same_model():
    old, new = (deepseek2.from_gguf(Keys(metadata(V3, old), "", "deepseek2.")) for old in (True, False))
    assert old == new


def config_of_v2() -> ModelConfig:
    return deepseek2.from_hf(Keys(V2, "config.json"))


def with_mixer(mixer: Any) -> ModelConfig:
    config = config_of_v2()
    return replace(config, layers=(*config.layers[:2], Layer(mixer, config.layers[2].ffn)))


def with_gate() -> ModelConfig:
    config = config_of_v2()
    gated = Layer(config.layers[2].mixer, replace(config.layers[2].ffn, shared_gate=True))
    return replace(config, layers=(*config.layers[:2], gated))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (replace(config_of_v2(), norm_offset=True), ("norm_offset",)),
        (replace(config_of_v2(), embedding_scale=8.0), ("embedding_scale",)),
        (replace(config_of_v2(), output_softcap=30.0), ("output_softcap",)),
        (with_gate(), ("shared_gate",)),
        (with_mixer(Attention(4, 4, 20, None, 1.0)), ("layer 2", "Attention", "all 3 must be MLA")),
        (with_mixer(GatedDelta(2, 4, 8, 8, 4, tiled=False, log_decay=True)), ("layer 2", "GatedDelta")),
    ],
)
def test_what_other_families_add_to_a_trunk_is_refused(config, says):
    build = lambda: model_class("deepseek2")(config, Memory(weights(V2)), "hf", ReferenceKernels(), 64)
    assert refused(build, *says).code == "unsupported_feature"
