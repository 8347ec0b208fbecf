"""The `arch` of an install that keeps no declarations of its source: flat keys, and constants of each family.

Such installs hold weights under Hugging Face's conventions (value heads beside their key head, decays as logarithms, q
and k in halves), but norms as plain factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbospark.config.keys import Keys
from turbospark.config.model import MLA, Attention, Dense, GatedDelta, Layer, ModelConfig, MoE, Rope, RopeScaling
from turbospark.errors import TurbosparkError

SLIDING, FULL, LINEAR, LATENT = 0, 1, 2, 5  # kinds of layers in fullAttentionLayerMask; 3 and 4 are compressed ones
KINDS = {
    "llama": (SLIDING, FULL),
    "qwen35": (FULL, LINEAR),
    "qwen36": (FULL, LINEAR),
    "deepseek2": (LATENT,),
}
# what an absent key means: the first family of the format was Gemma, which these are the values of
ABSENT = {
    "family": "gemma4",
    "attentionScale": 1.0,
    "attnOutputGate": False,
    "embeddingScaledBySqrtHidden": True,
    "ffnSandwichNorms": True,
    "hiddenActivation": "gelu_pytorch_tanh",
    "routerScaled": True,
    "sharedExpertGated": False,
}
NEUTRAL = {
    "attentionKEqV": False,
    "embeddingScaledBySqrtHidden": False,
    "ffnSandwichNorms": False,
    "hiddenActivation": "silu",
    "linearOutputGateSigmoid": False,
    "routerScaled": False,
    "routerScoringFunc": "softmax",
    "swigluLimit": 0,
}
# never written: the epsilon of the norms, and the context where a file's tokenizer and rotation do not tell it
EPS = {"llama": 1e-5, "qwen35": 1e-6, "qwen36": 1e-6, "deepseek2": 1e-6}
CONTEXT = {"llama": 8192, "qwen35": 262144, "qwen36": 262144, "deepseek2": 163840}
LARGEST_CONTEXT = 1 << 24  # tokenizers without a limit say 10^30


def from_arch(arch: Mapping[str, Any], where: str, tokenizer: Mapping[str, Any]) -> ModelConfig:
    """`tokenizer` is tokenizer_config.json, of which model_max_length is taken where nothing else tells the context."""
    keys = Keys({**ABSENT, **arch}, where)
    family = keys.str("family")
    if family not in KINDS:
        raise TurbosparkError(
            "unsupported_family", f"{where}: family {family!r} is not known; known: {', '.join(sorted(KINDS))}"
        )
    keys.refuse(NEUTRAL)
    layers = keys.layers("numLayers", minimum=1)
    mask = keys.each_of("fullAttentionLayerMask", layers, KINDS[family])
    ffns = _feed_forwards(keys, family, layers)
    mixers = {kind: _mixer(keys, family, kind) for kind in set(mask)}
    return ModelConfig(
        "qwen3_5" if family.startswith("qwen") else family,
        keys.int("hiddenSize", minimum=1),
        keys.int("vocabSize", minimum=1),
        _context(keys, family, tokenizer),
        EPS[family],
        tuple(Layer(mixers[kind], ffn) for kind, ffn in zip(mask, ffns, strict=True)),
        keys.bool("tieWordEmbeddings", False),
        output_softcap=keys.float("finalLogitSoftcap", 0.0) or None,
    )


def _mixer(keys: Keys, family: str, kind: int) -> Attention | GatedDelta | MLA:
    if kind == LATENT:
        return _latent(keys)
    if kind == LINEAR:
        key_heads, heads = keys.int("linearNumKHeads", minimum=1), keys.int("linearNumVHeads", minimum=1)
        if heads % key_heads:
            raise keys.wrong("linearNumVHeads", heads, f"a multiple of linearNumKHeads, which is {key_heads}")
        return GatedDelta(
            key_heads,
            heads,
            keys.int("linearKeyHeadDim", minimum=1),
            keys.int("linearValueHeadDim", minimum=1),
            keys.int("linearConvKernelSize", minimum=1),
            tiled=False,
            log_decay=True,
        )
    full = kind == FULL
    keys.refuse({"ropeScalingFactor": 0} if keys.get("ropeScalingFactor") != 1 else {})
    head_dim = keys.int("fullHeadDim" if full and keys.has("fullHeadDim") else "headDim", minimum=2)
    kv_heads = keys.int("numFullKVHeads" if full and keys.has("numFullKVHeads") else "numKVHeads", minimum=1)
    theta = keys.float("fullRopeTheta" if full and keys.has("fullRopeTheta") else "ropeTheta")
    heads = keys.int("numHeads", minimum=1)
    if heads % kv_heads:
        raise keys.wrong("numHeads", heads, f"a multiple of the key heads, which are {kv_heads}")
    dim = int(head_dim * keys.float("partialRotaryFactor", minimum=0))
    if dim % 2 or not 2 <= dim <= head_dim or theta <= 1:
        message = f"{keys.where}: {dim} of a head's {head_dim} elements are to be rotated, by a base of {theta:g}"
        raise TurbosparkError("bad_config", message, "elements are rotated in pairs, by a base above 1")
    qwen = family.startswith("qwen")
    keys.refuse({"attnOutputGate": qwen})
    window = None if full else keys.int("slidingWindow", minimum=1)
    scale = keys.float("attentionScale")
    return Attention(heads, kv_heads, head_dim, Rope(theta, dim, False), scale, window, qk_norm=qwen, gated=qwen)


def _latent(keys: Keys) -> MLA:
    """Pairs are consecutive elements, whatever ropeNeoxSubdim says; the scale on scores is in attentionScale."""
    keys.refuse({"mlaQLoraRank": 0})
    factor = keys.float("ropeScalingFactor", 0.0, minimum=0)
    scaling = None
    if factor > 1:
        original = keys.int("ropeScalingOriginalContext", minimum=1)
        fast, slow = (keys.float(f"ropeScalingBeta{name}") for name in ("Fast", "Slow"))
        scaling = RopeScaling("yarn", factor, original, beta_fast=fast, beta_slow=slow)
    dim, theta = keys.int("mlaRopeHeadDim", minimum=2), keys.float("ropeTheta")
    if dim % 2 or theta <= 1:
        raise keys.wrong("mlaRopeHeadDim", dim, "an even number, and ropeTheta above 1")
    return MLA(
        keys.int("numHeads", minimum=1),
        None,
        keys.int("mlaKvLoraRank", minimum=1),
        keys.int("mlaNopeHeadDim", minimum=1),
        keys.int("mlaVHeadDim", minimum=1),
        Rope(theta, dim, True, scaling),
        keys.float("attentionScale"),
        EPS["deepseek2"],
    )


def _feed_forwards(keys: Keys, family: str, layers: int) -> list[Dense | MoE]:
    """ffnIntermediate is the width of a dense layer, and in a mixture that of the shared expert."""
    width, lead = keys.int("ffnIntermediate", minimum=1), keys.layers("numDenseLeadingLayers", 0)
    if not keys.int("numExperts", 0):
        return [Dense(width)] * layers
    if family not in ("qwen36", "deepseek2") or lead >= layers:
        raise keys.wrong("numExperts", keys.get("numExperts"), f"0 in family {family}, or numDenseLeadingLayers fewer")
    qwen = family == "qwen36"
    keys.refuse({"sharedExpertGated": qwen})
    moe = MoE(
        keys.int("numExperts", minimum=1),
        keys.int("topKExperts", minimum=1),
        keys.int("moeIntermediateSize", minimum=1),
        renormalise=qwen,
        scale=keys.float("routedScalingFactor", 1.0),
        shared_width=width,
        shared_gate=qwen,
    )
    if moe.used > moe.experts:
        raise keys.wrong("topKExperts", moe.used, f"at most numExperts, which is {moe.experts}")
    dense = [Dense(keys.int("denseLeadIntermediateSize", minimum=1))] * lead if lead else []
    return [*dense, *[moe] * (layers - lead)]


def _context(keys: Keys, family: str, tokenizer: Mapping[str, Any]) -> int:
    factor = keys.float("ropeScalingFactor", 0.0, minimum=0)
    if factor > 1:
        return int(factor * keys.int("ropeScalingOriginalContext", minimum=1))
    told = tokenizer.get("model_max_length")
    return int(told) if isinstance(told, int | float) and 1 < told <= LARGEST_CONTEXT else CONTEXT[family]
