"""Tiny qwen3_5 trunks, dense and MoE: random weights as transformers holds them, as an HF folder and as a GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

from tests.tiny.gguf_file import write_gguf
from tests.tiny.hf import arrays as hf_arrays
from tests.tiny.memory import Memory
from turbospark.config.keys import Keys
from turbospark.config.qwen3_5 import from_hf
from turbospark.kernels.reference import ReferenceKernels
from turbospark.models.base import Model
from turbospark.models.qwen3_5 import Qwen35

VOCAB, CONTEXT = 96, 160
SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}


def hf_config(moe: bool, **fields: Any) -> Any:
    if moe:
        return Qwen3_5MoeTextConfig(**{**SHARED, **EXPERTS, **fields})
    return Qwen3_5TextConfig(**{**SHARED, "intermediate_size": 64, **fields})


def hf_model(moe: bool, seed: int = 0, **fields: Any) -> Any:
    """The transformers model in float32, with weights at a scale where every tensor has a say in the logits."""
    model = AutoModelForCausalLM.from_config(hf_config(moe, **fields), attn_implementation="eager").float().eval()
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(_values(name, tuple(parameter.shape), random)))
    return model


def _values(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    normal = random.standard_normal(shape).astype(np.float32)
    if name.endswith("A_log"):
        return 1.5 * normal - 1  # decays from nearly none to nearly all a step
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.3 * normal
    if name.endswith("norm.weight") or name.endswith("layernorm.weight") or name.endswith("dt_bias"):
        return 0.3 * normal
    if name.endswith("conv1d.weight"):
        return 0.5 * normal
    if name.endswith("embed_tokens.weight"):
        return normal
    return normal * np.float32(1.5 / shape[-1] ** 0.5)


def tiny_qwen(moe: bool = False, **fields: Any) -> Model:
    """Our model of the same weights, straight from memory."""
    model = hf_model(moe, **fields)
    return in_memory(model.config, hf_arrays(model))


def in_memory(config: Any, arrays: dict[str, np.ndarray]) -> Model:
    """A model of a transformers config from arrays under HF's names."""
    ours = from_hf(Keys(config.to_dict(), "tiny"))
    return Qwen35(ours, Memory(arrays), "hf", ReferenceKernels(), ours.context)


GGUF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
OFFSET_NORMS = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")


def gguf_arrays(model: Any) -> dict[str, np.ndarray]:
    """The weights as a GGUF holds them: norms raised by one, decays taken out of the logarithm, value heads tiled."""
    arrays = {}
    for name, value in hf_arrays(model).items():
        if name in GGUF_TOP:
            arrays[GGUF_TOP[name]] = 1 + value if name.endswith(OFFSET_NORMS) else value
            continue
        _, _, layer, part = name.split(".", 3)
        if part == "mlp.experts.gate_up_proj":
            gate, up = np.split(value, 2, axis=1)
            arrays |= {f"blk.{layer}.ffn_gate_exps.weight": gate, f"blk.{layer}.ffn_up_exps.weight": up}
            continue
        if name.endswith(OFFSET_NORMS):
            value = 1 + value
        arrays[f"blk.{layer}.{GGUF_LAYER[part]}"] = _tiled(part, value, model.config)
    return arrays


def _tiled(part: str, value: np.ndarray, config: Any) -> np.ndarray:
    """HF has the value heads of a key head side by side; a GGUF the first ones of all key heads, then the next."""
    keys, heads, dim = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    order = np.arange(heads).reshape(keys, heads // keys).T.reshape(-1)
    elements = (order[:, None] * dim + np.arange(dim)).reshape(-1)
    before = 2 * keys * config.linear_key_head_dim
    channels = np.concatenate([np.arange(before), before + elements])
    if part.endswith("A_log"):
        return -np.exp(value[order])
    if part.endswith(("dt_bias", "in_proj_a.weight", "in_proj_b.weight")):
        return value[order]
    if part.endswith("in_proj_qkv.weight"):
        return value[channels]
    if part.endswith("conv1d.weight"):
        return value[channels, 0]
    if part.endswith("in_proj_z.weight"):
        return value[elements]
    return value[:, elements] if part.endswith("linear_attn.out_proj.weight") else value


def gguf_metadata(config: Any) -> dict[str, Any]:
    arch = "qwen35moe" if hasattr(config, "num_experts") else "qwen35"
    rope = config.rope_parameters
    turned = int(config.head_dim * rope["partial_rotary_factor"])
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": turned,
        "rope.dimension_sections": [turned // 2 - 2, 1, 1, 0],
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "full_attention_interval": 2,
    }
    if arch == "qwen35":
        keys["feed_forward_length"] = config.intermediate_size
    else:
        keys |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        }
    return {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}


def write_qwen_gguf(path: Path, model: Any, **metadata: Any) -> Path:
    return write_gguf(path, {**gguf_metadata(model.config), **metadata}, gguf_arrays(model))
