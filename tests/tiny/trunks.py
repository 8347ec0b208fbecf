"""A tiny trunk of each family that drafters are tested on, loaded from a file; few tokens, so that guesses hit."""

from __future__ import annotations

from pathlib import Path

from tests.tiny import deepseek2, mtp, qwen3_5
from tests.tiny.gguf_file import write_gguf
from tests.tiny.memory import llama_arrays, llama_config
from tests.tiny.safetensors_file import write_hf_folder

VOCAB, CONTEXT = 11, 1280
FAMILIES = ("llama", "hybrid", "deepseek2")


def write_trunk(folder: Path, family: str, vocab: int = VOCAB, head: bool = True) -> Path:
    """A model of the family; with `head`, an MTP head where the family has one."""
    path = folder / family
    if family == "llama":
        return write_llama(path.with_suffix(".gguf"), vocab)
    if family == "hybrid":
        model = qwen3_5.hf_model(False, vocab_size=vocab, max_position_embeddings=CONTEXT)
        arrays = qwen3_5.hf_arrays(model) | (mtp.qwen_mtp(model.config) if head else {})
        return write_hf_folder(path, {**model.config.to_dict(), "mtp_num_hidden_layers": int(head)}, arrays)
    config = {**deepseek2.V3, "vocab_size": vocab, "max_position_embeddings": CONTEXT}
    arrays = deepseek2.weights(config) | (mtp.deepseek_mtp(config) if head else {})
    return write_hf_folder(path, {**config, "num_nextn_predict_layers": int(head)}, arrays)


def write_llama(path: Path, vocab: int = VOCAB, seed: int = 0) -> Path:
    config = llama_config(CONTEXT)
    keys = {
        "block_count": len(config.layers),
        "context_length": CONTEXT,
        "embedding_length": config.hidden,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": config.eps,
        "rope.freq_base": 10000.0,
        "vocab_size": vocab,
    }
    arrays = llama_arrays(config, seed)
    arrays["token_embd.weight"] = arrays["token_embd.weight"][:vocab]
    metadata = {"general.architecture": "llama", **{f"llama.{key}": value for key, value in keys.items()}}
    return write_gguf(path, metadata, arrays)
