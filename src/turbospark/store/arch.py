"""`arch` of a manifest: every number that a model's forward depends on, under flat names.

An install that was written here is read from its source's own declarations, which lie beside it whole; `arch` says the
same to other readers, and `verify` holds the two together.
"""

from __future__ import annotations

from typing import Any

from turbospark.config.install import FULL, LATENT, LINEAR, SLIDING
from turbospark.config.model import MLA, Attention, Dense, GatedDelta, ModelConfig, MoE


def arch_keys(config: ModelConfig) -> dict[str, Any]:
    """Flat camelCase keys. What differs between layers of a kind is a list over all layers."""
    mixers, ffns = [layer.mixer for layer in config.layers], [layer.ffn for layer in config.layers]
    moe = next((ffn for ffn in ffns if isinstance(ffn, MoE)), None)
    dense = [ffn.width for ffn in ffns if isinstance(ffn, Dense)]
    found: dict[str, Any] = {
        "family": _family(config, moe),
        "hiddenSize": config.hidden,
        "numLayers": len(config.layers),
        "vocabSize": config.vocab,
        "contextLength": config.context,
        "rmsNormEps": config.eps,
        "tieWordEmbeddings": config.tied,
        "normOffset": config.norm_offset,
        "embeddingScale": config.embedding_scale,
        "embeddingScaledBySqrtHidden": config.embedding_scale != 1.0,
        "finalLogitSoftcap": config.output_softcap or 0.0,
        "numMTPLayers": config.mtp_layers,
        "fp8ScaleBlock": list(config.scale_block),
        "ffnSandwichNorms": config.family == "gemma3",
        "routerScaled": False,
        "hiddenActivation": _one({ffn.activation for ffn in ffns}),
        "fullAttentionLayerMask": [_kind(mixer) for mixer in mixers],
        "ffnIntermediate": moe.shared_width if moe else _one(dense),
        "numDenseLeadingLayers": len(dense) if moe else 0,
        "denseLeadIntermediateSize": _one(dense) if moe and dense else 0,
        **_mixture(moe),
    }
    for kind in (Attention, MLA, GatedDelta):
        same = [mixer for mixer in mixers if isinstance(mixer, kind)]
        found |= _DESCRIBE[kind](same) if same else {}
    return found


def _family(config: ModelConfig, moe: MoE | None) -> str:
    return {"qwen3_5": "qwen36" if moe else "qwen35"}.get(config.family, config.family)


def _kind(mixer: Any) -> int:
    if isinstance(mixer, Attention):
        return FULL if mixer.window is None else SLIDING
    return LATENT if isinstance(mixer, MLA) else LINEAR


def _mixture(moe: MoE | None) -> dict[str, Any]:
    if moe is None:
        return {"numExperts": 0, "topKExperts": 0, "moeIntermediateSize": 0}
    return {
        "numExperts": moe.experts,
        "topKExperts": moe.used,
        "moeIntermediateSize": moe.width,
        "routerScoringFunc": moe.scoring,
        "routerRenormalised": moe.renormalise,
        "routerBias": moe.bias,
        "routedScalingFactor": moe.scale,
        "numExpertGroups": moe.groups,
        "topKExpertGroups": moe.groups_used,
        "expertGroupRank": moe.group_rank,
        "sharedExpertGated": moe.shared_gate,
    }


def _attention(layers: list[Attention]) -> dict[str, Any]:
    """`full` ones see everything, the others a window; where there is one kind it speaks for both."""
    full = [layer for layer in layers if layer.window is None] or layers
    near = [layer for layer in layers if layer.window is not None] or full
    return {
        "numHeads": _one([layer.heads for layer in layers]),
        "numKVHeads": _one([layer.kv_heads for layer in near]),
        "numFullKVHeads": _one([layer.kv_heads for layer in full]),
        "headDim": near[0].head_dim,
        "fullHeadDim": full[0].head_dim,
        "slidingWindow": near[0].window or 0,
        "attentionScale": layers[0].scale,
        "attentionSoftcap": layers[0].softcap or 0.0,
        "attnOutputGate": layers[0].gated,
        "attentionQKNorm": layers[0].qk_norm,
        "attentionBias": layers[0].bias,
        "attentionOutputBias": layers[0].output_bias,
        "ropeInterleaved": near[0].rope.interleaved if near[0].rope else False,
        "ropeTheta": near[0].rope.theta if near[0].rope else 0.0,
        "partialRotaryFactor": full[0].rope.dim / full[0].head_dim if full[0].rope else 0.0,
        "fullRopeTheta": full[0].rope.theta if full[0].rope else 0.0,
        **_scaling(full[0].rope),
    }


def _latent(layers: list[MLA]) -> dict[str, Any]:
    mixer = layers[0]
    return {
        "numHeads": mixer.heads,
        "numKVHeads": 1,
        "headDim": mixer.nope_dim + mixer.rope.dim,
        "mlaKvLoraRank": mixer.latent,
        "mlaQLoraRank": mixer.q_rank or 0,
        "mlaNopeHeadDim": mixer.nope_dim,
        "mlaRopeHeadDim": mixer.rope.dim,
        "mlaVHeadDim": mixer.value_dim,
        "mlaNormEps": mixer.norm_eps,
        "attentionScale": mixer.scale,
        "attnOutputGate": False,
        "ropeInterleaved": mixer.rope.interleaved,
        "ropeTheta": mixer.rope.theta,
        **_scaling(mixer.rope),
    }


def _delta(layers: list[GatedDelta]) -> dict[str, Any]:
    mixer = layers[0]
    return {
        "linearNumKHeads": mixer.key_heads,
        "linearNumVHeads": mixer.value_heads,
        "linearKeyHeadDim": mixer.key_dim,
        "linearValueHeadDim": mixer.value_dim,
        "linearConvKernelSize": mixer.conv,
        "linearValueHeadsTiled": mixer.tiled,
        "linearLogDecay": mixer.log_decay,
        "linearOutputGateSigmoid": False,
    }


def _scaling(rope: Any) -> dict[str, Any]:
    scaling = rope.scaling if rope else None
    if scaling is None:
        return {"ropeScalingKind": "none", "ropeScalingFactor": 0.0}
    return {
        "ropeScalingKind": scaling.kind,
        "ropeScalingFactor": scaling.factor,
        "ropeScalingOriginalContext": scaling.original_context,
        "ropeScalingBetaFast": scaling.beta_fast,
        "ropeScalingBetaSlow": scaling.beta_slow,
        "ropeScalingLowFreqFactor": scaling.low_freq_factor,
        "ropeScalingHighFreqFactor": scaling.high_freq_factor,
        "ropeScalingAttentionFactor": scaling.attention_factor,
    }


_DESCRIBE: dict[type, Any] = {Attention: _attention, MLA: _latent, GatedDelta: _delta}


def _one(values: Any) -> Any:
    """The value that all share, or the list of them."""
    values = list(values)
    return values[0] if len(set(values)) == 1 else values
