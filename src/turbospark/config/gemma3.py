"""The gemma3 family's declarations: Gemma 3, text only, whether alone or inside a multimodal checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turbospark.config import rope
from turbospark.config.geometry import Geometry, gguf_geometry, hf_geometry
from turbospark.config.keys import Keys
from turbospark.config.model import Attention, Dense, Layer, ModelConfig, Rope

KINDS = ("sliding_attention", "full_attention")
THETA = {"sliding_attention": 10000.0, "full_attention": 1000000.0}
OLDER_THETA = {"sliding_attention": "rope_local_base_freq", "full_attention": "rope_theta"}
PERIOD = 6  # every sixth layer sees everything, where a file does not say
LAYERS_27B = 62  # of the one size whose scores are not scaled by the head's width; a GGUF has no key for it
GGUF_NEUTRAL = {"expert_count": 0, "rope.scaling.yarn_log_multiplier": 0.0}
HF_NEUTRAL = {"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": False}
# what transformers takes where a config.json is silent; those of the published multimodal models are, on most of it
DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def from_gguf(keys: Keys) -> ModelConfig:
    """Keys `gemma3.*`; norms hold 1 + w. Without attention.sliding_window every layer sees everything.

    `attention.bias` and `attention.output_bias` are the loader's: whether the file holds such tensors.
    """
    keys.refuse(GGUF_NEUTRAL)
    g = gguf_geometry(keys)
    count = len(g.heads)
    full = rope.from_gguf(keys, g.head_dim, interleaved=False)
    # the scaling is for the layers that see far
    local = replace(full, theta=rope.theta_of(keys, "rope.freq_base_swa", THETA["sliding_attention"]), scaling=None)
    width = g.hidden // g.heads[0] if count == LAYERS_27B else g.head_dim
    attention = Attention(
        g.heads[0],
        g.kv_heads[0],
        g.head_dim,
        full,
        keys.float("attention.scale", width**-0.5),
        softcap=_softcap(keys, "attn_logit_softcapping"),
        qk_norm=True,
        bias=keys.bool("attention.bias", False),
        output_bias=keys.bool("attention.output_bias", False),
    )
    sliding = _gguf_sliding(keys, count) if g.window else [False] * count
    return _config(g, attention, local, sliding, _softcap(keys, "final_logit_softcapping"), norm_offset=False)


def from_hf(keys: Keys) -> ModelConfig:
    """A config.json of model_type gemma3_text, or the text_config of a gemma3; norms are stored as offsets.

    transformers accepts attn_logit_softcapping and then does not apply it; here it caps as in Gemma 2.
    """
    keys = Keys({**DEFAULTS, **keys.values}, keys.where)
    keys.refuse(HF_NEUTRAL)
    g = hf_geometry(keys)
    ropes = {kind: _hf_rope(keys, kind, g) for kind in KINDS}
    bias = keys.bool("attention_bias", False)
    scalar = keys.float("query_pre_attn_scalar")
    if scalar <= 0:
        raise keys.wrong("query_pre_attn_scalar", scalar, "a number above 0")
    attention = Attention(
        g.heads[0],
        g.kv_heads[0],
        g.head_dim,
        ropes["full_attention"],
        scalar**-0.5,
        softcap=_softcap(keys, "attn_logit_softcapping"),
        qk_norm=True,
        bias=bias,
        output_bias=bias,
    )
    if keys.has("layer_types"):
        sliding = [kind == "sliding_attention" for kind in keys.each_of("layer_types", len(g.heads), KINDS)]
    else:
        sliding = _periodic(keys.int("sliding_window_pattern", PERIOD, minimum=1), len(g.heads))
    if any(sliding):
        keys.int("sliding_window", minimum=1)
    cap = _softcap(keys, "final_logit_softcapping")
    return _config(g, attention, ropes["sliding_attention"], sliding, cap, norm_offset=True)


def _config(
    g: Geometry, full: Attention, local: Rope, sliding: Sequence[bool], softcap: float | None, norm_offset: bool
) -> ModelConfig:
    layers = []
    for slides, heads, kv_heads, width in zip(sliding, g.heads, g.kv_heads, g.widths, strict=True):
        attention = replace(full, heads=heads, kv_heads=kv_heads)
        if slides:
            attention = replace(attention, rope=local, window=g.window)
        layers.append(Layer(attention, Dense(width, "gelu_tanh")))
    # transformers rounds this scale to the embedding's type, which is float32 here
    return ModelConfig(
        "gemma3",
        g.hidden,
        g.vocab,
        g.context,
        g.eps,
        tuple(layers),
        g.tied,
        norm_offset=norm_offset,
        embedding_scale=g.hidden**0.5,
        output_softcap=softcap,
    )


def _hf_rope(keys: Keys, kind: str, g: Geometry) -> Rope:
    """transformers 5 has an object for each kind of layer; older files have two thetas, and scale the full layers."""
    theta = rope.theta_of(keys, OLDER_THETA[kind], THETA[kind])
    ropes = keys.section("rope_parameters")
    if ropes.values.keys() - set(KINDS):
        raise keys.wrong("rope_parameters", ropes.values, f"an object for each of {' and '.join(KINDS)}")
    declared = ropes.get(kind)
    if kind == "full_attention" and keys.has("rope_scaling"):
        declared = {**(declared or {}), **keys.section("rope_scaling").values}
    return rope.from_hf(keys, declared, g.head_dim, g.context, theta)


def _gguf_sliding(keys: Keys, count: int) -> list[bool]:
    """The pattern key is a period, 0 for sliding layers throughout, or a flag for every layer."""
    name = "attention.sliding_window_pattern"
    pattern = keys.get(name, PERIOD)
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        period = keys.int(name, PERIOD)
        return _periodic(period, count) if period else [True] * count
    return [bool(flag) for flag in keys.per_layer(name, count)]


def _periodic(period: int, count: int) -> list[bool]:
    return [(i + 1) % period != 0 for i in range(count)]


def _softcap(keys: Keys, name: str) -> float | None:
    """A number above 0, or None."""
    cap = keys.float(name, None)
    if cap is not None and cap < 0:
        raise keys.wrong(name, cap, "a number above 0")
    return cap or None
