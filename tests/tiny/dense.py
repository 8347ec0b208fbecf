"""Tiny llama and gemma3 models as GGUF files, with llama.cpp's names, from their transformers twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import hf
from tests.tiny.gguf_file import write_gguf

TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA = {"post_attention_layernorm": "ffn_norm"}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_arrays(model: Any) -> dict[str, np.ndarray]:
    """llama: q and k rows so that rotated pairs lie side by side. gemma3: norms raised by one."""
    config, found = model.config, {}
    gemma = config.model_type == "gemma3_text"
    for name, value in hf.arrays(model).items():
        stem, _, end = name.rpartition(".")
        if stem in TOP:
            gguf_name = TOP[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            gguf_name = f"blk.{layer}.{(LAYER | (GEMMA if gemma else LLAMA))[part]}"
            heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
            if part in heads and not gemma:
                value = side_by_side(value, heads[part])
        found[f"{gguf_name}.{end}"] = 1 + value if gemma and stem.endswith("norm") else value
    return found


def side_by_side(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (or biases) of heads in two halves -> element i of the second half after element i of the first."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_metadata(config: Any) -> dict[str, Any]:
    """Rope scaling and what else varies is the caller's."""
    gemma = config.model_type == "gemma3_text"
    arch = "gemma3" if gemma else "llama"
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if gemma:
        keys["rope.freq_base"] = config.rope_parameters["full_attention"]["rope_theta"]
        keys["rope.freq_base_swa"] = config.rope_parameters["sliding_attention"]["rope_theta"]
        keys["attention.sliding_window"] = config.sliding_window
    else:
        keys["rope.freq_base"] = config.rope_parameters["rope_theta"]
        keys["rope.dimension_count"] = config.head_dim
        keys["vocab_size"] = config.vocab_size
    return {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}


def write_dense_gguf(
    path: Path, model: Any, metadata: dict[str, Any] | None = None, tensors: dict[str, np.ndarray] | None = None
) -> Path:
    """`metadata` and `tensors` are added to the model's own."""
    return write_gguf(
        path, {**gguf_metadata(model.config), **(metadata or {})}, {**gguf_arrays(model), **(tensors or {})}
    )
