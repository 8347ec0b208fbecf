"""The llama family's declarations: Llama, SmolLM2, Mistral."""

from __future__ import annotations

from turbospark.config import rope
from turbospark.config.geometry import Geometry, gguf_geometry, hf_geometry
from turbospark.config.keys import Keys
from turbospark.config.model import Attention, Dense, Layer, ModelConfig, Rope

GGUF_NEUTRAL = {"expert_count": 0, "rope.scaling.yarn_log_multiplier": 0.0}
HF_NEUTRAL = {
    "llama": {"hidden_act": "silu", "mlp_bias": False, "sliding_window": 0},
    "mistral": {"hidden_act": "silu", "mlp_bias": False, "attention_bias": False},
}
# what transformers takes where a config.json is silent
DEFAULTS = {
    "llama": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "mistral": {
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
}


def from_gguf(keys: Keys) -> ModelConfig:
    """Keys `llama.*`. These files hold q and k rows permuted so that rotation pairs are consecutive.

    `attention.bias` and `attention.output_bias` are the loader's: whether the file holds such tensors.
    """
    keys.refuse(GGUF_NEUTRAL)
    geometry = gguf_geometry(keys)
    turn = rope.from_gguf(keys, geometry.head_dim, interleaved=True)
    return _config(geometry, turn, keys.bool("attention.bias", False), keys.bool("attention.output_bias", False))


def from_hf(keys: Keys) -> ModelConfig:
    """A config.json of model_type llama or mistral; only the latter knows a sliding window."""
    kind = keys.one_of("model_type", tuple(DEFAULTS))
    keys = Keys({**DEFAULTS[kind], **keys.values}, keys.where)
    keys.refuse(HF_NEUTRAL[kind])
    geometry = hf_geometry(keys)
    declared = keys.get("rope_scaling") or keys.get("rope_parameters")
    theta = rope.theta_of(keys, "rope_theta", rope.THETA)
    turn = rope.from_hf(keys, declared, geometry.head_dim, geometry.context, theta)
    bias = keys.bool("attention_bias", False)
    return _config(geometry, turn, bias, bias)


def _config(g: Geometry, turn: Rope, bias: bool, output_bias: bool) -> ModelConfig:
    scale = g.head_dim**-0.5
    layers = tuple(
        Layer(
            Attention(heads, kv, g.head_dim, turn, scale, g.window, bias=bias, output_bias=output_bias),
            Dense(width),
        )
        for heads, kv, width in zip(g.heads, g.kv_heads, g.widths, strict=True)
    )
    return ModelConfig("llama", g.hidden, g.vocab, g.context, g.eps, layers, g.tied)
