"""A tiny deepseek2: nope, rope, value and latent widths all differ, 8 experts in 4 groups behind one dense layer.

The config.json and the weights under HF's names are the source; the GGUF is made from them as llama.cpp's converter
would, in any of the three forms of kv_b and under the old or the new keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny.gguf_file import write_gguf
from tests.tiny.safetensors_file import write_hf_folder

Weights = dict[str, np.ndarray]
YARN = {
    "type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
V2 = {
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 640,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": YARN,
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GROUPED = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}
V3 = {
    **V2,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "q_lora_rank": 28,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_shared_experts": 1,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}


def weights(config: Mapping[str, Any], seed: int = 0, gain: float = 1.0) -> Weights:
    """float32 under HF's names, an expert a tensor. Each matrix keeps the size of what it multiplies, times gain."""
    random = np.random.default_rng(seed)
    c, hidden = config, config["hidden_size"]
    heads, latent, rope = c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    q_width = heads * (c["qk_nope_head_dim"] + rope)
    made: Weights = {}

    def matrix(name: str, out: int, width: int) -> None:
        made[name + ".weight"] = (random.standard_normal((out, width)) * gain * width**-0.5).astype(np.float32)

    def norm(name: str, width: int) -> None:
        made[name + ".weight"] = (1 + 0.2 * random.standard_normal(width)).astype(np.float32)

    def gated(name: str, width: int) -> None:
        matrix(name + ".gate_proj", width, hidden)
        matrix(name + ".up_proj", width, hidden)
        matrix(name + ".down_proj", hidden, width)

    matrix("model.embed_tokens", c["vocab_size"], hidden)
    made["model.embed_tokens.weight"] *= np.float32(hidden**0.5)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        norm(layer + "input_layernorm", hidden)
        norm(layer + "post_attention_layernorm", hidden)
        attention = layer + "self_attn."
        if c["q_lora_rank"] is None:
            matrix(attention + "q_proj", q_width, hidden)
        else:
            matrix(attention + "q_a_proj", c["q_lora_rank"], hidden)
            norm(attention + "q_a_layernorm", c["q_lora_rank"])
            matrix(attention + "q_b_proj", q_width, c["q_lora_rank"])
        matrix(attention + "kv_a_proj_with_mqa", latent + rope, hidden)
        norm(attention + "kv_a_layernorm", latent)
        matrix(attention + "kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), latent)
        matrix(attention + "o_proj", hidden, heads * c["v_head_dim"])
        if i < c["first_k_dense_replace"]:
            gated(layer + "mlp", c["intermediate_size"])
            continue
        matrix(layer + "mlp.gate", c["n_routed_experts"], hidden)
        if c["topk_method"] == "noaux_tc":
            bias = random.standard_normal(c["n_routed_experts"]) * 0.25
            made[layer + "mlp.gate.e_score_correction_bias"] = bias.astype(np.float32)
        for e in range(c["n_routed_experts"]):
            gated(f"{layer}mlp.experts.{e}", c["moe_intermediate_size"])
        if c["n_shared_experts"]:
            gated(layer + "mlp.shared_experts", c["n_shared_experts"] * c["moe_intermediate_size"])
    norm("model.norm", hidden)
    matrix("lm_head", c["vocab_size"], hidden)
    return made


def write_hf(folder: Path, config: Mapping[str, Any], made: Weights, shards: int = 1) -> Path:
    return write_hf_folder(folder, config, made, shards)


def write_deepseek2_gguf(
    path: Path, config: Mapping[str, Any], made: Weights, kv_b: str = "split", old_keys: bool = False, **more: Any
) -> Path:
    """kv_b: "joint", "split", "both", or "flat" for both with the first two axes joined. more: further metadata."""
    return write_gguf(path, {**metadata(config, old_keys), **more}, tensors(config, made, kv_b))


def metadata(config: Mapping[str, Any], old_keys: bool = False) -> dict[str, Any]:
    """The declarations of a GGUF; `old_keys` describe a head where the new ones describe the compressed row."""
    c, stretch = config, config.get("rope_scaling")
    key, value = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"]
    latent = c["kv_lora_rank"]
    declared: dict[str, Any] = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "vocab_size": c["vocab_size"],
        "leading_dense_block_count": c["first_k_dense_replace"],
        "attention.head_count": c["num_attention_heads"],
        "attention.kv_lora_rank": latent,
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "rope.dimension_count": c["qk_rope_head_dim"],
        "rope.freq_base": float(c["rope_theta"]),
        "expert_count": c["n_routed_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_shared_count": c["n_shared_experts"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_group_count": c["n_group"],
        "expert_group_used_count": c["topk_group"],
        "expert_weights_scale": float(c["routed_scaling_factor"]),
        "expert_weights_norm": c["norm_topk_prob"],
        "expert_gating_func": {"softmax": 1, "sigmoid": 2}[c["scoring_func"]],
    }
    if old_keys:
        declared |= {"attention.head_count_kv": c["num_attention_heads"]}
        declared |= {"attention.key_length": key, "attention.value_length": value}
    else:
        declared |= {"attention.head_count_kv": 1}
        declared |= {"attention.key_length": latent + c["qk_rope_head_dim"], "attention.value_length": latent}
        declared |= {"attention.key_length_mla": key, "attention.value_length_mla": value}
    if c["q_lora_rank"] is not None:
        declared["attention.q_lora_rank"] = c["q_lora_rank"]
    if stretch:
        declared |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(stretch["factor"]),
            "rope.scaling.original_context_length": stretch["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": 0.1 * stretch["mscale_all_dim"],
        }
    return {"general.architecture": "deepseek2"} | {f"deepseek2.{name}": value for name, value in declared.items()}


TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.{role}_proj": f"ffn_{role}" for role in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{role}_proj": f"ffn_{role}_shexp" for role in ("gate", "up", "down")},
}


def tensors(config: Mapping[str, Any], made: Weights, kv_b: str = "split") -> Weights:
    """The same weights under llama.cpp's names: experts stacked, kv_b in the form asked for."""
    named: Weights = {f"{TOP[stem]}.weight": made[f"{stem}.weight"] for stem in TOP}
    for i in range(config["num_hidden_layers"]):
        layer, block = f"model.layers.{i}.", f"blk.{i}."
        for part, name in LAYER.items():
            if f"{layer}{part}.weight" in made:
                named[f"{block}{name}.weight"] = made[f"{layer}{part}.weight"]
        named |= {
            block + name: values for name, values in _kv_b(config, made[layer + "self_attn.kv_b_proj.weight"], kv_b)
        }
        if f"{layer}mlp.gate.e_score_correction_bias" in made:
            named[block + "exp_probs_b.bias"] = made[f"{layer}mlp.gate.e_score_correction_bias"]
        for role in ("gate", "up", "down") if f"{layer}mlp.gate.weight" in made else ():
            each = [made[f"{layer}mlp.experts.{e}.{role}_proj.weight"] for e in range(config["n_routed_experts"])]
            named[f"{block}ffn_{role}_exps.weight"] = np.stack(each)
    return named


def _kv_b(config: Mapping[str, Any], joint: np.ndarray, form: str) -> list[tuple[str, np.ndarray]]:
    heads, nope, latent = config["num_attention_heads"], config["qk_nope_head_dim"], config["kv_lora_rank"]
    by_head = joint.reshape(heads, -1, latent)
    k_b = np.ascontiguousarray(by_head[:, :nope].swapaxes(1, 2))
    v_b = np.ascontiguousarray(by_head[:, nope:])
    if form == "flat":
        k_b, v_b = k_b.reshape(-1, nope), v_b.reshape(-1, latent)
    whole = [("attn_kv_b.weight", joint)] if form != "split" else []
    halves = [("attn_k_b.weight", k_b), ("attn_v_b.weight", v_b)] if form != "joint" else []
    return whole + halves
