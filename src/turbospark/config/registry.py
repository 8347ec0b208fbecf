"""From a checkpoint's declarations to a ModelConfig: which family, then the family's own reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from turbospark.config import install
from turbospark.config.keys import Keys
from turbospark.config.model import ModelConfig
from turbospark.config.quantization import scale_block
from turbospark.errors import TurbosparkError

GGUF_FAMILIES = {
    "deepseek2": "deepseek2",
    "gemma3": "gemma3",
    "llama": "llama",
    "qwen35": "qwen3_5",
    "qwen35moe": "qwen3_5",
}
HF_FAMILIES = {
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "glm4_moe_lite": "deepseek2",
    "kimi_k2": "deepseek2",
    "llama": "llama",
    "mistral": "llama",
    "qwen3_5": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5",
}


def read_config(checkpoint: Any) -> ModelConfig:
    """The config of an opened checkpoint; an unknown architecture is refused by name."""
    where = str(checkpoint.path.name)
    config = READERS[checkpoint.kind](checkpoint, where)
    return replace(config, generation=dict(checkpoint.generation_config or {}))


def from_gguf(checkpoint: Any, where: str) -> ModelConfig:
    architecture = Keys(checkpoint.metadata, where).str("general.architecture")
    family = _known(GGUF_FAMILIES, architecture, "architecture", where)
    # what a GGUF says by its tensors rather than by a key
    implied: dict[str, Any] = {
        f"{architecture}.tied": "output.weight" not in checkpoint.tensors,
        f"{architecture}.attention.bias": "blk.0.attn_q.bias" in checkpoint.tensors,
        f"{architecture}.attention.output_bias": "blk.0.attn_output.bias" in checkpoint.tensors,
        f"{architecture}.expert_bias": any(".exp_probs_b." in name for name in checkpoint.tensors),
    }
    table = checkpoint.tensors.get("token_embd.weight")
    if table is not None:
        implied[f"{architecture}.vocab_size"] = table.shape[0]
    return _module(family).from_gguf(
        Keys({**implied, **_declared(checkpoint.metadata, architecture)}, where, architecture + ".")
    )


def from_hf(checkpoint: Any, where: str) -> ModelConfig:
    declared = checkpoint.metadata
    kind = Keys(declared, where + "/config.json").str("model_type")
    family = _known(HF_FAMILIES, kind, "model_type", where)
    # multimodal checkpoints wrap the trunk's config; how weights are stored and shared is the wrapper's to say
    text = declared.get("text_config")
    if isinstance(text, Mapping):
        whole = {key: declared[key] for key in ("tie_word_embeddings", "quantization_config") if key in declared}
        declared = {"model_type": kind, **text, **whole}
    keys = Keys(declared, where + "/config.json")
    return replace(_module(family).from_hf(keys), scale_block=scale_block(keys))


def from_install(checkpoint: Any, where: str) -> ModelConfig:
    """An install that says nothing but `arch`."""
    return install.from_arch(checkpoint.metadata, where + "/manifest.json: arch", checkpoint.tokenizer_config or {})


READERS = {"gguf": from_gguf, "hf": from_hf, "install": from_install}


def _declared(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    return {key: metadata[key] for key in metadata if key.startswith((architecture + ".", "general."))}


def _known(families: Mapping[str, str], name: str, what: str, where: str) -> str:
    if name not in families:
        raise TurbosparkError(
            "unsupported_family",
            f"{where}: {what} {name!r} is not known; known: {', '.join(sorted(families))}",
        )
    return families[name]


def _module(family: str) -> Any:
    return import_module(f"turbospark.config.{family}")
