"""The names of a multi-token-prediction head's tensors: canonical is the GGUF's `blk.N.nextn.*`, N = trunk layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turbospark.config.model import ModelConfig
from turbospark.models.names import HF_PREFIXES
from turbospark.models.names import locator as trunk_locator
from turbospark.models.registry import model_class

QWEN_PREFIXES = ("mtp.", "model.mtp.")
QWEN = {  # qwen3_5: a folder of its own
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm",
}
DEEPSEEK = {  # deepseek2: one more layer behind the trunk's
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_norm": "shared_head.norm",
    "nextn.shared_head_head": "shared_head.head",
}
_PART = re.compile(r"blk\.\d+\.(.+?)(\.weight|\.bias|)")


def locator(kind: str, family: Mapping[str, str]) -> Callable[[str], Iterable[str]]:
    """canonical name -> the names that a file of this kind ("gguf" or "hf") may use, most likely first."""
    if kind == "gguf":
        return trunk_locator(kind, family)
    behind = trunk_locator(kind, {**family, **DEEPSEEK})

    def hf(name: str) -> Iterable[str]:
        names = list(behind(name))
        part = _PART.fullmatch(name)
        if part is None:
            return names
        inner = QWEN.get(part[1])
        layer = names[-1].split(".", 2)[2]  # the last of HF_PREFIXES is none: layers.N.REST
        own = f"layers.0.{layer}" if inner is None else inner + part[2]
        return [prefix + own for prefix in QWEN_PREFIXES] + names

    return hf


def present(checkpoint: Any, config: ModelConfig) -> bool:
    """Whether a file holds a head for this trunk."""
    fuse = f"blk.{len(config.layers)}.nextn.eh_proj.weight"
    names = locator(checkpoint.kind, model_class(config.family).names)(fuse)
    return any(name in checkpoint.tensors for name in names)


def belongs(name: str, layers: int) -> bool:
    """Whether a tensor is the head's, in a file that may hold the trunk as well."""
    behind = [f"blk.{layers}."] + [f"{prefix}layers.{layers}." for prefix in HF_PREFIXES]
    return name.startswith((*QWEN_PREFIXES, *behind))
