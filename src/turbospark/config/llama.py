"""The llama family's declarations."""

from __future__ import annotations

from turbospark.config import scaling
from turbospark.config.geometry import Geometry, gguf_geometry, hf_geometry
from turbospark.config.keys import Keys
from turbospark.config.model import Attention, Dense, Layer, ModelConfig, Rope


def from_gguf(keys: Keys) -> ModelConfig:
    """Keys `llama.*`. These files hold q and k rows permuted so that rotation pairs are consecutive."""
    keys.refuse({"expert_count": 0})
    geometry = gguf_geometry(keys)
    rope = Rope(
        keys.float("rope.freq_base", 10000.0),
        keys.int("rope.dimension_count", geometry.head_dim, minimum=2),
        True,
        scaling.from_gguf(keys),
    )
    return _config(geometry, rope, bias=False)


def from_hf(keys: Keys) -> ModelConfig:
    """A config.json of model_type llama or mistral."""
    keys.refuse({"mlp_bias": False, "hidden_act": "silu"})
    geometry = hf_geometry(keys)
    parameters = keys.get("rope_parameters") or {}
    theta = Keys({"rope_theta": keys.get("rope_theta", 10000.0), **parameters}, keys.where).float("rope_theta")
    rope = Rope(
        theta,
        geometry.head_dim,
        False,
        scaling.from_hf(keys.get("rope_scaling") or parameters or None, keys.where, geometry.context),
    )
    return _config(geometry, rope, bias=keys.bool("attention_bias", False))


def _config(g: Geometry, rope: Rope, bias: bool) -> ModelConfig:
    layers = tuple(
        Layer(Attention(heads, kv, g.head_dim, rope, g.head_dim**-0.5, g.window, bias=bias), Dense(width))
        for heads, kv, width in zip(g.heads, g.kv_heads, g.widths, strict=True)
    )
    return ModelConfig("llama", g.hidden, g.vocab, g.context, g.eps, layers, g.tied)
