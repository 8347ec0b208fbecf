"""The declarations of a GGUF whose architecture is `dflash`, or of a drafter inside its target's GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbospark.config.keys import Keys
from turbospark.config.model import Rope
from turbospark.draft.dflash_config import DFlashConfig, DFlashLayer, Selector
from turbospark.errors import TurbosparkError

PREFIX = "dflash."
MASK = "tokenizer.ggml.mask_token_id"
TOKENS = "tokenizer.ggml.tokens"


def from_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, Any], where: str) -> DFlashConfig:
    """Keys `dflash.*`; `shapes`: the file's tensors by name, for what is said by them alone.

    `target_layers` counts layer inputs, which is the layer's number plus one. Without `attention.causal` a row of the
    block sees those after it, unlike in a config.json. Every layer slides where there is no pattern.
    """
    keys = Keys({k: metadata[k] for k in metadata if k.startswith(PREFIX)}, where, PREFIX)
    hidden, count = keys.int("embedding_length", minimum=1), keys.int("block_count", minimum=1)
    heads = keys.int("attention.head_count", minimum=1)
    head_dim = keys.int("attention.key_length", hidden // heads, minimum=2)
    if keys.int("attention.value_length", head_dim) != head_dim:
        raise keys.wrong("attention.value_length", keys.get("attention.value_length"), f"{head_dim}, as key_length")
    if keys.int("rope.dimension_count", head_dim) != head_dim:
        raise keys.wrong("rope.dimension_count", keys.get("rope.dimension_count"), f"{head_dim}, the whole head")
    keys.refuse({"rope.scaling.type": "none"})
    second = keys.has("selector_rank") or keys.has("conv_kernel_size")
    return DFlashConfig(
        hidden,
        _vocab(keys, metadata, shapes),
        keys.int("feed_forward_length", minimum=1),
        heads,
        keys.int("attention.head_count_kv", heads, minimum=1),
        head_dim,
        keys.float("attention.layer_norm_rms_epsilon"),
        Rope(keys.float("rope.freq_base", 10000.0), head_dim, False),
        _layers(keys, count),
        keys.int("block_size", minimum=2),
        _mask(keys, metadata),
        _taps(keys),
        keys.int("target_layer_count", None),
        keys.int("conv_kernel_size", minimum=1) if second else 0,
        keys.int("conv_group_size", minimum=1) if second else 1,
        Selector(keys.int("selector_rank", minimum=1), keys.int("selector_top_k", minimum=1)) if second else None,
        keys.float("embedding_scale", 1.0),
        keys.float("logit_scale", 1.0, minimum=0),
        keys.float("final_logit_softcapping", 0.0) or None,
        keys.str("trunk_fingerprint", None),
        keys.int("draft_vocab_size", None, minimum=1),
    )


def _taps(keys: Keys) -> tuple[int, ...]:
    stored = keys.get("target_layers")
    if not isinstance(stored, list) or not stored or any(type(t) is not int or t < 1 for t in stored):
        raise keys.wrong("target_layers", stored, "a list of layer numbers plus one; they are never guessed")
    return tuple(t - 1 for t in stored)


def _layers(keys: Keys, count: int) -> tuple[DFlashLayer, ...]:
    window = keys.int("attention.sliding_window", 0) or None
    causal = keys.bool("attention.causal", False)
    name = "attention.sliding_window_pattern"
    slides = list(keys.get(name)) if keys.has(name) else [True] * count
    if len(slides) != count or not all(isinstance(s, bool | int) for s in slides):
        raise keys.wrong(name, slides, f"a list of {count}, one for each layer")
    if window is None and keys.has(name) and any(slides):
        raise keys.wrong("attention.sliding_window", window, "a whole number, since a layer slides")
    return tuple(DFlashLayer(window if slide else None, causal) for slide in slides)


def _mask(keys: Keys, metadata: Mapping[str, Any]) -> int:
    """In a file of its own the tokenizer says it; a file shared with the target may hold a key for each."""
    if keys.has("mask_token_id"):
        return keys.int("mask_token_id")
    if MASK not in metadata:
        raise TurbosparkError("missing_key", f"{keys.where}: {MASK} is missing")
    return Keys({MASK: metadata[MASK]}, keys.where).int(MASK)


def _vocab(keys: Keys, metadata: Mapping[str, Any], shapes: Mapping[str, Any]) -> int:
    if keys.has("vocab_size"):
        return keys.int("vocab_size", minimum=1)
    for name in ("selector_predecessor.weight", "selector_predecessor"):
        for prefix in ("", PREFIX):
            if prefix + name in shapes:
                return shapes[prefix + name].shape[0]
    if TOKENS in metadata:
        return len(metadata[TOKENS])
    raise TurbosparkError("missing_key", f"{keys.where}: dflash.vocab_size is missing, and no {TOKENS} tells it")
