"""Rope scaling as GGUF and HF files declare it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from turbospark.config.keys import Keys
from turbospark.config.model import RopeScaling
from turbospark.errors import TurbosparkError


def from_gguf(keys: Keys) -> RopeScaling | None:
    """`{arch}.rope.scaling.*`; "none" means none, a factor without a type is linear.

    YaRN's magnitude is yarn_attn_factor where a converter wrote transformers' attention_factor there, else the usual
    one times attn_factor, as in llama.cpp. There is no mscale in a GGUF: see deepseek2 for its own.
    """
    old = keys.has("rope.scale_linear") and not keys.has("rope.scaling.factor")
    name = "rope.scale_linear" if old else "rope.scaling.factor"
    kind = keys.one_of("rope.scaling.type", ("none", "linear", "yarn"), "linear" if keys.has(name) else "none")
    if kind == "none":
        return None
    factor = _factor(keys, name)
    if kind == "linear":
        return RopeScaling("linear", factor)
    keys.refuse({"rope.scaling.yarn_ext_factor": 1.0})
    usual = _positive(keys, "rope.scaling.attn_factor", 1.0) * magnitude(factor)
    return RopeScaling(
        "yarn",
        factor,
        original_context=keys.int("rope.scaling.original_context_length", keys.get("context_length"), minimum=1),
        beta_fast=_positive(keys, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=_positive(keys, "rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=_positive(keys, "rope.scaling.yarn_attn_factor", usual),
    )


def from_hf(declared: Mapping[str, Any] | None, where: str, context: int) -> RopeScaling | None:
    """`rope_scaling` (or `rope_parameters`) of a config.json; null and "default" mean none."""
    if declared is None:
        return None
    if not isinstance(declared, Mapping):
        raise TurbosparkError("bad_config", f"{where}: rope_scaling is {declared!r}; it must be an object or null")
    keys = Keys(declared, where + ": rope_scaling")
    kind = keys.one_of(
        "rope_type" if keys.has("rope_type") else "type", ("default", "linear", "llama3", "yarn"), "default"
    )
    if kind == "default":
        return None
    factor = _factor(keys, "factor")
    if kind == "linear":
        return RopeScaling("linear", factor)
    original = keys.int("original_max_position_embeddings", context, minimum=1)
    if kind == "llama3":
        low, high = keys.float("low_freq_factor"), keys.float("high_freq_factor")
        if low >= high:
            raise keys.wrong("low_freq_factor", low, f"below high_freq_factor, which is {high}")
        return RopeScaling("llama3", factor, original, low, high)
    keys.refuse({"truncate": True})
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=_positive(keys, "beta_fast", 32.0),
        beta_slow=_positive(keys, "beta_slow", 1.0),
        attention_factor=_attention_factor(keys, factor),
    )


def magnitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's 0.1 m ln(s) + 1, and 1 where nothing is stretched (arXiv 2309.00071)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _attention_factor(keys: Keys, factor: float) -> float:
    if keys.has("attention_factor"):
        return _positive(keys, "attention_factor")
    if keys.get("mscale") and keys.get("mscale_all_dim"):
        return magnitude(factor, _positive(keys, "mscale")) / magnitude(factor, _positive(keys, "mscale_all_dim"))
    return magnitude(factor)


def _positive(keys: Keys, name: str, *default: float) -> float:
    value = keys.float(name, *default)
    if value <= 0:
        raise keys.wrong(name, value, "a number above 0")
    return value


def _factor(keys: Keys, name: str) -> float:
    factor = keys.float(name)
    if factor < 1:
        raise keys.wrong(name, factor, "a number of at least 1")
    return factor
