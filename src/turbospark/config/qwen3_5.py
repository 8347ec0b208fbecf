"""The qwen3_5 family's declarations: trunks of Gated DeltaNet and full attention, dense or with experts."""

from __future__ import annotations

from collections.abc import Sequence

from turbospark.config import rope
from turbospark.config.geometry import Geometry, gguf_geometry, hf_geometry
from turbospark.config.keys import Keys
from turbospark.config.model import Attention, Dense, GatedDelta, Layer, ModelConfig, MoE, Rope

MIXERS = ("linear_attention", "full_attention")
MOE_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")
# softmax, renormalised over the chosen: no key of these architectures says otherwise
GGUF_MOE_NEUTRAL = {
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "expert_gating_func": 1,
    "expert_group_count": 1,
}
INTERVAL = 4  # every fourth layer is full attention where a file does not say
ROTATED = 0.25  # of a head, where a config.json does not say


def from_gguf(keys: Keys) -> ModelConfig:
    """Keys `qwen35.*` and `qwen35moe.*`.

    Norms hold 1 + w, ssm_a holds -exp(A_log), and value heads are tiled over the key heads: nothing in the file says
    so. block_count counts the MTP layers too. rope.dimension_sections share the pairs among an image's three
    positions, and a text's three are one.
    """
    geometry = gguf_geometry(keys)
    blocks, mtp = len(geometry.heads), keys.layers("nextn_predict_layers", 0)
    if mtp >= blocks:
        raise keys.wrong("nextn_predict_layers", mtp, f"below block_count, which is {blocks}")
    if keys.has("attention.recurrent_layers"):
        linear = [bool(flag) for flag in keys.per_layer("attention.recurrent_layers", blocks)]
    else:
        linear = _by_interval(keys, blocks)
    heads, width = keys.int("ssm.time_step_rank", minimum=1), keys.int("ssm.inner_size", minimum=1)
    if width % heads:
        raise keys.wrong("ssm.inner_size", width, f"a multiple of ssm.time_step_rank, which is {heads}")
    delta = GatedDelta(
        keys.int("ssm.group_count", minimum=1),
        heads,
        keys.int("ssm.state_size", minimum=1),
        width // heads,
        keys.int("ssm.conv_kernel", minimum=1),
        tiled=True,
        log_decay=False,
    )
    _check_heads(keys, "ssm.time_step_rank", delta)
    turn = rope.from_gguf(keys, geometry.head_dim, interleaved=False)
    moe = None
    if keys.prefix == "qwen35moe.":
        keys.refuse(GGUF_MOE_NEUTRAL)
        moe = MoE(
            keys.int("expert_count", minimum=1),
            keys.int("expert_used_count", minimum=1),
            keys.int("expert_feed_forward_length", minimum=1),
            renormalise=True,
            shared_width=keys.int("expert_shared_feed_forward_length", minimum=1),
            shared_gate=True,
        )
        _check_experts(keys, "expert_used_count", moe)
    else:
        keys.refuse({"expert_count": 0})
        keys.per_layer("feed_forward_length", blocks)  # required
    return _config(geometry, delta, turn, moe, linear[: blocks - mtp], mtp, norm_offset=False)


def from_hf(keys: Keys) -> ModelConfig:
    """A config.json, or its text_config, of model_type qwen3_5_text or qwen3_5_moe_text: norms are offsets."""
    keys.refuse({"hidden_act": "silu", "attention_bias": False, "attn_output_gate": True, "sliding_window": 0})
    keys.int("head_dim", minimum=1)  # required: hidden / heads, the usual rule, does not hold here
    geometry = hf_geometry(keys)
    layers = len(geometry.heads)
    if keys.has("layer_types"):
        linear = [kind == "linear_attention" for kind in keys.each_of("layer_types", layers, MIXERS)]
    else:
        linear = _by_interval(keys, layers)
    delta = GatedDelta(
        keys.int("linear_num_key_heads", minimum=1),
        keys.int("linear_num_value_heads", minimum=1),
        keys.int("linear_key_head_dim", minimum=1),
        keys.int("linear_value_head_dim", minimum=1),
        keys.int("linear_conv_kernel_dim", minimum=1),
        tiled=False,
        log_decay=True,
    )
    _check_heads(keys, "linear_num_value_heads", delta)
    moe = None
    if keys.str("model_type") in MOE_TYPES:
        keys.refuse({"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1})
        moe = MoE(
            keys.int("num_experts", minimum=1),
            keys.int("num_experts_per_tok", minimum=1),
            keys.int("moe_intermediate_size", minimum=1),
            renormalise=True,
            shared_width=keys.int("shared_expert_intermediate_size", minimum=1),
            shared_gate=True,
        )
        _check_experts(keys, "num_experts_per_tok", moe)
    else:
        keys.refuse({"num_experts": 0})
        keys.int("intermediate_size", minimum=1)  # required
    theta = rope.theta_of(keys, "rope_theta", rope.THETA)
    declared = keys.get("rope_scaling") or keys.get("rope_parameters")
    turn = rope.from_hf(keys, declared, geometry.head_dim, geometry.context, theta, ROTATED)
    return _config(geometry, delta, turn, moe, linear, keys.layers("mtp_num_hidden_layers", 0), norm_offset=True)


def _by_interval(keys: Keys, layers: int) -> list[bool]:
    interval = keys.int("full_attention_interval", INTERVAL, minimum=1)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _check_heads(keys: Keys, name: str, delta: GatedDelta) -> None:
    if delta.value_heads % delta.key_heads:
        raise keys.wrong(name, delta.value_heads, f"a multiple of the number of key heads, which is {delta.key_heads}")


def _check_experts(keys: Keys, name: str, moe: MoE) -> None:
    if moe.used > moe.experts:
        raise keys.wrong(name, moe.used, f"at most the number of experts, which is {moe.experts}")


def _config(
    g: Geometry,
    delta: GatedDelta,
    turn: Rope,
    moe: MoE | None,
    linear: Sequence[bool],
    mtp: int,
    norm_offset: bool,
) -> ModelConfig:
    attention = lambda i: Attention(
        g.heads[i], g.kv_heads[i], g.head_dim, turn, g.head_dim**-0.5, qk_norm=True, gated=True
    )
    layers = tuple(
        Layer(delta if is_linear else attention(i), moe or Dense(g.widths[i])) for i, is_linear in enumerate(linear)
    )
    return ModelConfig(
        "qwen3_5", g.hidden, g.vocab, g.context, g.eps, layers, g.tied, norm_offset=norm_offset, mtp_layers=mtp
    )
