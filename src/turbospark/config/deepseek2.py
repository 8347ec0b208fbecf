"""The deepseek2 family's declarations: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, Moonlight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turbospark.config import rope, scaling
from turbospark.config.keys import Keys
from turbospark.config.model import MLA, Dense, Layer, ModelConfig, MoE, Rope
from turbospark.errors import TurbosparkError

# of the norms inside the low-rank projections: the published models use it whatever their rms_norm_eps is
NORM_EPS = 1e-6
GGUF_NEUTRAL = {
    "attention.sliding_window": 0,
    "attention.temperature_scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
}
HF_NEUTRAL = {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "sliding_window": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "scale_emb": 1.0,
    "use_qk_norm": False,
    "attn_output_gate": False,
    "attention_k_eq_v": False,
}
GATING = {1: "softmax", 2: "sigmoid"}
METHODS = {"greedy": None, "group_limited_greedy": "max", "noaux_tc": "top2"}  # how groups are ranked
V2_ROUTING = {
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
V3_ROUTING = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def from_gguf(keys: Keys) -> ModelConfig:
    """Keys `deepseek2.*`. `expert_bias` is the loader's: whether the file holds biases for the choice of experts."""
    keys.refuse(GGUF_NEUTRAL)
    blocks, mtp = keys.layers("block_count", minimum=1), keys.layers("nextn_predict_layers", 0)
    if mtp >= blocks:
        raise keys.wrong("nextn_predict_layers", mtp, f"below block_count, which is {blocks}")
    lead = keys.int("leading_dense_block_count")
    _check_lead(keys, "leading_dense_block_count", lead, blocks - mtp)
    dense = Dense(keys.int("feed_forward_length", minimum=1)) if lead else None
    return ModelConfig(
        "deepseek2",
        keys.int("embedding_length", minimum=1),
        keys.int("vocab_size", minimum=1),
        keys.int("context_length", minimum=1),
        keys.float("attention.layer_norm_rms_epsilon", minimum=0),
        _layers(_gguf_mixer(keys), [dense] * lead + [_gguf_experts(keys)] * (blocks - mtp - lead)),
        keys.bool("tied", False),
        mtp_layers=mtp,
    )


def from_hf(keys: Keys) -> ModelConfig:
    """A config.json of model_type deepseek_v2, deepseek_v3, kimi_k2 or glm4_moe_lite."""
    keys.refuse(HF_NEUTRAL)
    layers = keys.layers("num_hidden_layers", minimum=1)
    lead = _hf_lead(keys, layers)
    dense = Dense(keys.int("intermediate_size", minimum=1)) if lead else None
    return ModelConfig(
        "deepseek2",
        keys.int("hidden_size", minimum=1),
        keys.int("vocab_size", minimum=1),
        keys.int("max_position_embeddings", minimum=1),
        keys.float("rms_norm_eps", minimum=0),
        _layers(_hf_mixer(keys), [dense] * lead + [_hf_experts(keys)] * (layers - lead)),
        keys.bool("tie_word_embeddings", False),
        mtp_layers=keys.layers("num_nextn_predict_layers", 0),
    )


def _gguf_mixer(keys: Keys) -> MLA:
    """Files with `key_length_mla` describe the compressed row by `key_length`, older ones a head."""
    heads = keys.int("attention.head_count", minimum=1)
    _check_kv_heads(keys, "attention.head_count_kv", heads)
    latent = keys.int("attention.kv_lora_rank", minimum=1)
    rope_dim = _rope_dim(keys, "rope.dimension_count")
    mla = "_mla" if keys.has("attention.key_length_mla") else ""
    if mla:
        _check_equal(keys, "attention.key_length", latent + rope_dim, "kv_lora_rank + rope.dimension_count")
        _check_equal(keys, "attention.value_length", latent, "kv_lora_rank")
    key_dim = keys.int("attention.key_length" + mla, minimum=1)
    if key_dim <= rope_dim:
        raise keys.wrong("attention.key_length" + mla, key_dim, f"above rope.dimension_count, which is {rope_dim}")
    turn = rope.from_gguf(keys, rope_dim, interleaved=True)
    if turn.scaling is not None:  # there is no mscale in a GGUF: the magnitude is 1 unless said outright
        said = _positive(keys, "rope.scaling.attn_factor", 1.0)
        turn = replace(turn, scaling=replace(turn.scaling, attention_factor=said))
    # the key holds a tenth of mscale_all_dim
    scale = _score_scale(key_dim, turn, 10 * keys.float("rope.scaling.yarn_log_multiplier", 0.0))
    q_rank = keys.int("attention.q_lora_rank", None, minimum=1)
    value_dim = keys.int("attention.value_length" + mla, minimum=1)
    return MLA(heads, q_rank, latent, key_dim - rope_dim, value_dim, turn, scale, NORM_EPS)


def _hf_mixer(keys: Keys) -> MLA:
    heads = keys.int("num_attention_heads", minimum=1)
    _check_kv_heads(keys, "num_key_value_heads", heads)
    nope_dim, rope_dim = keys.int("qk_nope_head_dim", minimum=1), _rope_dim(keys, "qk_rope_head_dim")
    declared = keys.get("rope_scaling") or keys.get("rope_parameters")
    theta, context = rope.theta_of(keys, "rope_theta", rope.THETA), keys.int("max_position_embeddings")
    turn = rope.from_hf(keys, declared, rope_dim, context, theta)
    turn = replace(turn, interleaved=keys.bool("rope_interleave", True))
    stretch = Keys(declared or {}, keys.where + ": rope_scaling")
    stretch.refuse({"llama_4_scaling_beta": 0.0})
    scale = _score_scale(nope_dim + rope_dim, turn, stretch.float("mscale_all_dim", 0.0))
    q_rank, latent = keys.int("q_lora_rank", None, minimum=1), keys.int("kv_lora_rank", minimum=1)
    return MLA(heads, q_rank, latent, nope_dim, keys.int("v_head_dim", minimum=1), turn, scale, NORM_EPS)


def _gguf_experts(keys: Keys) -> MoE:
    """No key says how groups are ranked: V2, softmax, takes the best of each; V3, sigmoid, sums the best two."""
    width = keys.int("expert_feed_forward_length", minimum=1)
    bias = keys.bool("expert_bias", False)
    if bias and not keys.has("expert_gating_func"):
        raise TurbosparkError(
            "missing_key",
            f"{keys.where}: {keys.prefix}expert_gating_func is missing in a file with exp_probs_b tensors; "
            "a file without the key is V2's softmax, which has none",
            "convert the original again, or set the key: 1 is softmax, 2 is sigmoid",
        )
    scoring = GATING[keys.one_of("expert_gating_func", tuple(GATING), 1)]
    moe = MoE(
        keys.int("expert_count", minimum=1),
        keys.int("expert_used_count", minimum=1),
        width,
        scoring,
        keys.bool("expert_weights_norm", False),
        _positive(keys, "expert_weights_scale", 1.0),
        keys.int("expert_group_count", 1, minimum=1),
        keys.int("expert_group_used_count", 1, minimum=1),
        "max" if scoring == "softmax" else "top2",
        bias,
        keys.int("expert_shared_count", 0) * width,
    )
    names = ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
    _check_experts(keys, moe, *names)
    return moe


def _hf_experts(keys: Keys) -> MoE:
    """The routing table: scoring, method, renormalisation and scale are declared apart from each other."""
    defaults = V2_ROUTING if keys.get("model_type") == "deepseek_v2" else V3_ROUTING
    keys = Keys({**defaults, **{k: v for k, v in keys.values.items() if v is not None}}, keys.where)
    width = keys.int("moe_intermediate_size", minimum=1)
    method = keys.one_of("topk_method", tuple(METHODS))
    grouped = METHODS[method] is not None
    moe = MoE(
        keys.int("n_routed_experts", minimum=1),
        keys.int("num_experts_per_tok", minimum=1),
        width,
        keys.one_of("scoring_func", tuple(GATING.values())),
        keys.bool("norm_topk_prob"),
        _positive(keys, "routed_scaling_factor"),
        keys.int("n_group", minimum=1) if grouped else 1,
        keys.int("topk_group", minimum=1) if grouped else 1,
        METHODS[method] or "max",
        method == "noaux_tc",
        keys.int("n_shared_experts", 0) * width,
    )
    _check_experts(keys, moe, "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
    return moe


def _hf_lead(keys: Keys, layers: int) -> int:
    """The dense layers at the beginning; newer files of GLM list the kind of every layer instead."""
    kinds = keys.get("mlp_layer_types")
    if kinds is None:
        lead = keys.int("first_k_dense_replace")
        _check_lead(keys, "first_k_dense_replace", lead, layers)
        return lead
    lead = kinds.index("sparse") if isinstance(kinds, list) and "sparse" in kinds else 0
    if kinds != ["dense"] * lead + ["sparse"] * (layers - lead):
        raise keys.wrong("mlp_layer_types", kinds, f"'dense' at first and 'sparse' for the rest of {layers} layers")
    return lead


def _layers(mixer: MLA, ffns: Sequence[Dense | MoE | None]) -> tuple[Layer, ...]:
    return tuple(Layer(mixer, ffn) for ffn in ffns)


def _rope_dim(keys: Keys, name: str) -> int:
    dim = keys.int(name, minimum=2)
    if dim % 2:
        raise keys.wrong(name, dim, "an even number, as rotation turns pairs")
    return dim


def _score_scale(key_dim: int, turn: Rope, mscale_all_dim: float) -> float:
    """YaRN's factor on the scores, squared as q and k both bear it; independent of the one on cos and sin."""
    factor = 1.0 if turn.scaling is None else turn.scaling.factor
    return scaling.magnitude(factor, mscale_all_dim) ** 2 / key_dim**0.5


def _positive(keys: Keys, name: str, *default: float) -> float:
    value = keys.float(name, *default)
    if value <= 0:
        raise keys.wrong(name, value, "a number above 0")
    return value


def _check_kv_heads(keys: Keys, name: str, heads: int) -> None:
    if keys.int(name, heads) not in (1, heads):
        raise keys.wrong(name, keys.get(name), f"1 or the number of heads, which is {heads}: all share one latent row")


def _check_equal(keys: Keys, name: str, value: int, what: str) -> None:
    if keys.int(name, value) != value:
        raise keys.wrong(name, keys.get(name), f"{what}, which is {value}")


def _check_lead(keys: Keys, name: str, lead: int, layers: int) -> None:
    if lead >= layers:
        raise keys.wrong(name, lead, f"below the number of layers, which is {layers}")


def _check_experts(keys: Keys, moe: MoE, experts: str, used: str, groups: str, groups_used: str) -> None:
    """The four counts fit into each other; a choice larger than its groups hold would take from those left out."""
    if moe.experts % moe.groups:
        raise keys.wrong(groups, moe.groups, f"a divisor of {experts}, which is {moe.experts}")
    if moe.groups_used > moe.groups:
        raise keys.wrong(groups_used, moe.groups_used, f"at most {groups}, which is {moe.groups}")
    most = moe.experts // moe.groups * moe.groups_used
    if moe.used > most:
        raise keys.wrong(used, moe.used, f"at most {most}, the experts in {moe.groups_used} of {moe.groups} groups")
