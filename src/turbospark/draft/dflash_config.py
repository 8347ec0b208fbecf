"""What a DFlash drafter's files declare (arXiv 2602.06036 and the published checkpoints)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turbospark.config.keys import Keys
from turbospark.config.model import Rope
from turbospark.errors import TurbosparkError

ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")


@dataclass(frozen=True)
class DFlashLayer:
    """window: keys nearer than this are visible, None all. causal: a block's row does not see the rows after it."""

    window: int | None
    causal: bool


@dataclass(frozen=True)
class Selector:
    rank: int
    top_k: int


@dataclass(frozen=True)
class DFlashConfig:
    """block: rows, the anchor and block - 1 proposals. taps: zero-based trunk layers. conv_taps 0: version 1.

    trunk: the fingerprint of the model it was trained for, where the files record it. draft_vocab: ids it can propose,
    where the files say so; None otherwise.
    """

    hidden: int
    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Rope
    layers: tuple[DFlashLayer, ...]
    block: int
    mask_id: int
    taps: tuple[int, ...]
    target_layers: int | None = None
    conv_taps: int = 0
    conv_group: int = 1
    selector: Selector | None = None
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    trunk: str | None = None
    draft_vocab: int | None = None


def from_hf(declared: Mapping[str, Any], where: str) -> DFlashConfig:
    """A published config.json: architecture DFlashDraftModel or DFlash2DraftModel."""
    keys = Keys(declared, where)
    inner = keys.get("dflash_config") or {}
    if not isinstance(inner, Mapping):
        raise keys.wrong("dflash_config", inner, "an object")
    both = Keys(_merged(declared, inner, where), where)
    second = _architecture(keys) == ARCHITECTURES[1]
    count = keys.int("num_hidden_layers", minimum=1)
    taps = both.get("target_layer_ids")
    if not isinstance(taps, list) or not taps or any(isinstance(t, bool) or not isinstance(t, int) for t in taps):
        raise both.wrong("target_layer_ids", taps, "a list of layer numbers; they are never guessed")
    heads, head_dim = keys.int("num_attention_heads", minimum=1), keys.int("head_dim", minimum=2)
    return DFlashConfig(
        keys.int("hidden_size", minimum=1),
        keys.int("vocab_size", minimum=1),
        keys.int("intermediate_size", minimum=1),
        heads,
        keys.int("num_key_value_heads", heads, minimum=1),
        head_dim,
        keys.float("rms_norm_eps"),
        Rope(_theta(keys), head_dim, False),
        _layers(keys, both, count),
        both.int("block_size", minimum=2),
        both.int("mask_token_id"),
        tuple(taps),
        keys.int("num_target_layers", None),
        both.int("conv_kernel_size", minimum=1) if second else 0,
        both.int("conv_group_size", minimum=1) if second else 1,
        Selector(both.int("selector_rank", minimum=1), both.int("selector_top_k", minimum=1)) if second else None,
        both.float("input_embedding_scale", 1.0),
        both.float("output_multiplier", 1.0, minimum=0),
        both.float("final_logit_softcapping", None) or None,
        keys.str("trunk_fingerprint", None),
        keys.int("draft_vocab_size", None, minimum=1),
    )


def _architecture(keys: Keys) -> str:
    declared = keys.get("architectures")
    known = [name for name in ARCHITECTURES if isinstance(declared, list) and name in declared]
    if len(known) != 1:
        raise keys.wrong("architectures", declared, "a list with one of " + ", ".join(ARCHITECTURES))
    return known[0]


def _merged(declared: Mapping[str, Any], inner: Mapping[str, Any], where: str) -> dict[str, Any]:
    """dflash_config over the top level; the same name with two values is refused."""
    for name, value in inner.items():
        if declared.get(name) is not None and declared[name] != value:
            raise TurbosparkError(
                "bad_config",
                f"{where}: {name} is {declared[name]!r}, and {value!r} inside dflash_config; they must agree",
            )
    return {**declared, **inner}


def _theta(keys: Keys) -> float:
    inner = keys.get("rope_parameters") or {}
    outer, nested = keys.float("rope_theta", None), Keys(inner, keys.where).float("rope_theta", None)
    if outer is not None and nested is not None and outer != nested:
        raise TurbosparkError(
            "bad_config", f"{keys.where}: rope_theta is {outer}, and {nested} inside rope_parameters; they must agree"
        )
    if keys.has("rope_scaling") or inner.get("rope_type", "default") != "default":
        raise TurbosparkError("unsupported_rope", f"{keys.where}: a drafter's rope scaling is not implemented")
    return nested if outer is None else outer or 10000.0


def _layers(keys: Keys, both: Keys, count: int) -> tuple[DFlashLayer, ...]:
    """A window counts only where use_sliding_window says so; without is_causal or causal, sliding layers are causal."""
    kinds = keys.get("layer_types") or ["full_attention"] * count
    if len(kinds) != count:
        raise TurbosparkError(
            "bad_config", f"{keys.where}: layer_types names {len(kinds)} layers, num_hidden_layers says {count}"
        )
    causal = keys.bool("is_causal", None)
    causal = both.bool("causal", None) if causal is None else causal
    windowed = keys.bool("use_sliding_window", False) or both.bool("use_swa", False)
    size = both.int("swa_window_size", None) or keys.int("sliding_window", None)
    layers = []
    for kind in kinds:
        if kind not in ("sliding_attention", "full_attention"):
            raise keys.wrong("layer_types", kind, "sliding_attention or full_attention")
        sliding = kind == "sliding_attention"
        if sliding and windowed and size is None:
            raise keys.wrong("sliding_window", size, "a whole number, since a layer slides")
        layers.append(DFlashLayer(size if sliding and windowed else None, sliding if causal is None else causal))
    return tuple(layers)
