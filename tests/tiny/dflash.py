"""Tiny DFlash and DFlash2 drafters with random weights, as a published folder and as a GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny.gguf_file import write_gguf
from tests.tiny.safetensors_file import write_hf_folder
from turbospark.draft.dflash_names import GGUF_LAYER, GGUF_TOP

Arrays = dict[str, np.ndarray]
WINDOW = 16


def dflash_config(trunk: Any, second: bool = True, **fields: Any) -> dict[str, Any]:
    """The config.json of a drafter for a trunk (its ModelConfig); `fields` change it, dflash_config's own too."""
    inner = {
        "block_size": 8,
        "mask_token_id": 0,
        "target_layer_ids": [0, len(trunk.layers) - 1],
        "conv_kernel_size": 2,
        "conv_group_size": 4,
        "selector_rank": 5,
        "selector_top_k": 3,
    }
    if not second:
        inner = {k: v for k, v in inner.items() if not k.startswith(("conv", "selector"))}
    config = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": trunk.hidden,
        "vocab_size": trunk.vocab,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000.0,
        "layer_types": ["sliding_attention", "sliding_attention" if second else "full_attention"],
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        **({"is_causal": False} if second else {}),
        "dflash_config": inner,
    }
    for name, value in fields.items():
        (inner if name in inner else config)[name] = value
    return config


def dflash_arrays(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """float32 weights under the published names, at a scale where each has a say."""
    random = np.random.default_rng(seed)
    c, inner = config, config["dflash_config"]
    hidden, width, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv, taps = c["num_attention_heads"] * d, c["num_key_value_heads"] * d, len(inner["target_layer_ids"])
    matrix = lambda out, n: (random.standard_normal((out, n)) * 1.3 * n**-0.5).astype(np.float32)
    norm = lambda n: (1 + 0.3 * random.standard_normal(n)).astype(np.float32)
    made = {"fc.weight": matrix(hidden, taps * hidden), "hidden_norm.weight": norm(hidden), "norm.weight": norm(hidden)}
    for i in range(c["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": norm(hidden),
            "post_attention_layernorm.weight": norm(hidden),
            "self_attn.q_proj.weight": matrix(q, hidden),
            "self_attn.k_proj.weight": matrix(kv, hidden),
            "self_attn.v_proj.weight": matrix(kv, hidden),
            "self_attn.o_proj.weight": matrix(hidden, q),
            "self_attn.q_norm.weight": norm(d),
            "self_attn.k_norm.weight": norm(d),
            "mlp.gate_proj.weight": matrix(width, hidden),
            "mlp.up_proj.weight": matrix(width, hidden),
            "mlp.down_proj.weight": matrix(hidden, width),
        }
        if "conv_kernel_size" in inner:
            taps, groups = inner["conv_kernel_size"], hidden // inner["conv_group_size"]
            for part in ("attention_conv", "mlp_conv"):
                base = random.standard_normal((2, taps, hidden)) * 0.5
                layer[f"{part}.base_kernel"] = base.astype(np.float32)
                layer[f"{part}.kernel_projection.weight"] = matrix(2 * taps * groups, hidden)
        made |= {f"layers.{i}.{name}": values for name, values in layer.items()}
    if "selector_rank" in inner:
        rank = inner["selector_rank"]
        for role in ("predecessor", "successor"):
            values = random.standard_normal((c["vocab_size"], rank)).astype(np.float32)
            made[f"candidate_selector.{role}_codebook"] = values
        made["candidate_selector.hidden_projection.weight"] = matrix(rank, hidden)
    return made


def write_dflash(path: Path, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Path:
    return write_hf_folder(path, config, dflash_arrays(config) if arrays is None else arrays)


def gguf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Layer numbers plus one; sliding layers where there are both kinds; a tokenizer's mask id."""
    c, inner = config, config["dflash_config"]
    slides = [kind == "sliding_attention" for kind in c["layer_types"]]
    keys = {
        "embedding_length": c["hidden_size"],
        "vocab_size": c["vocab_size"],
        "block_count": c["num_hidden_layers"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "feed_forward_length": c["intermediate_size"],
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "rope.freq_base": c["rope_theta"],
        "attention.sliding_window": c["sliding_window"],
        "block_size": inner["block_size"],
        "target_layers": [t + 1 for t in inner["target_layer_ids"]],
    }
    if not all(slides):
        keys["attention.sliding_window_pattern"] = slides
    keys |= {name: inner[name] for name in inner if name.startswith(("conv_", "selector_"))}
    declared = {f"dflash.{name}": value for name, value in keys.items()}
    return {"general.architecture": "dflash", "tokenizer.ggml.mask_token_id": inner["mask_token_id"], **declared}


def gguf_arrays(arrays: Mapping[str, np.ndarray]) -> Arrays:
    named = {}
    for name, values in arrays.items():
        stem = name.removesuffix(".weight")
        if stem.startswith("layers."):
            _, layer, part = stem.split(".", 2)
            bare = "base_kernel" in part
            named[f"blk.{layer}.{GGUF_LAYER[part]}" + ("" if bare else ".weight")] = values
        else:
            named[GGUF_TOP.get(stem, stem) + ".weight"] = values
    return named


def write_dflash_gguf(
    path: Path,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
    format: str = "F32",
    **metadata: Any,
) -> Path:
    """`format` is that of every matrix; convolution kernels and norms stay F32."""
    tensors: dict[str, Any] = {}
    for name, values in gguf_arrays(dflash_arrays(config) if arrays is None else arrays).items():
        plain = values.ndim != 2 or "selector" in name
        tensors[name] = values if plain else (format, values)
    return write_gguf(path, {**gguf_metadata(config), **metadata}, tensors)
