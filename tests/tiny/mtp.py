"""MTP heads with random weights: qwen3_5's `mtp.*` and DeepSeek-V3's layer behind the trunk, as HF and as GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.tiny import deepseek2
from tests.tiny.qwen3_5 import GGUF_LAYER

Arrays = dict[str, np.ndarray]
QWEN_GGUF = {
    "fc.weight": "nextn.eh_proj.weight",
    "norm.weight": "nextn.shared_head_norm.weight",
    "pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
}
DEEPSEEK_GGUF = {
    "eh_proj.weight": "nextn.eh_proj.weight",
    "enorm.weight": "nextn.enorm.weight",
    "hnorm.weight": "nextn.hnorm.weight",
    "shared_head.norm.weight": "nextn.shared_head_norm.weight",
}


def qwen_mtp(config: Any, seed: int = 5) -> Arrays:
    """The 15 tensors of a dense head for a transformers config; norms are offsets."""
    random = np.random.default_rng(seed)
    matrix = lambda out, n: (random.standard_normal((out, n)) * 1.5 * n**-0.5).astype(np.float32)
    norm = lambda n: (0.3 * random.standard_normal(n)).astype(np.float32)
    hidden, d = config.hidden_size, config.head_dim
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    made = {
        "fc.weight": matrix(hidden, 2 * hidden),
        "norm.weight": norm(hidden),
        "pre_fc_norm_embedding.weight": norm(hidden),
        "pre_fc_norm_hidden.weight": norm(hidden),
        "layers.0.input_layernorm.weight": norm(hidden),
        "layers.0.post_attention_layernorm.weight": norm(hidden),
        "layers.0.self_attn.q_proj.weight": matrix(2 * q, hidden),
        "layers.0.self_attn.k_proj.weight": matrix(kv, hidden),
        "layers.0.self_attn.v_proj.weight": matrix(kv, hidden),
        "layers.0.self_attn.o_proj.weight": matrix(hidden, q),
        "layers.0.self_attn.q_norm.weight": norm(d),
        "layers.0.self_attn.k_norm.weight": norm(d),
        "layers.0.mlp.gate_proj.weight": matrix(config.intermediate_size, hidden),
        "layers.0.mlp.up_proj.weight": matrix(config.intermediate_size, hidden),
        "layers.0.mlp.down_proj.weight": matrix(hidden, config.intermediate_size),
    }
    return {f"mtp.{name}": values for name, values in made.items()}


def qwen_mtp_gguf(arrays: Mapping[str, np.ndarray], layers: int) -> Arrays:
    """The same head as a GGUF holds it: the layer behind the trunk, every norm raised by one."""
    named = {}
    for name, values in arrays.items():
        part = name.removeprefix("mtp.")
        name = GGUF_LAYER[part.removeprefix("layers.0.")] if part.startswith("layers.") else QWEN_GGUF[part]
        named[f"blk.{layers}.{name}"] = 1 + values if values.ndim == 1 else values  # norms alone have one axis
    return named


def deepseek_mtp(config: Mapping[str, Any], seed: int = 5, shared: bool = False) -> Arrays:
    """`model.layers.N.*` of a deepseek2 config; shared: with the copies of embedding and head that V3 ships."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    one = {**config, "num_hidden_layers": 1, "first_k_dense_replace": 0}
    made = deepseek2.weights(one, seed)
    random = np.random.default_rng(seed + 1)
    block = {name.removeprefix("model.layers.0."): values for name, values in made.items() if ".layers." in name}
    block["eh_proj.weight"] = (random.standard_normal((hidden, 2 * hidden)) * (2 * hidden) ** -0.5).astype(np.float32)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        block[f"{name}.weight"] = (1 + 0.3 * random.standard_normal(hidden)).astype(np.float32)
    if shared:
        block["embed_tokens.weight"] = made["model.embed_tokens.weight"]
        block["shared_head.head.weight"] = made["lm_head.weight"]
    return {f"model.layers.{layers}.{name}": values for name, values in block.items()}
