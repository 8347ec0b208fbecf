"""A model that says the alphabet: after a letter the next one, after a line end "a", after "z" the end of the turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny.gguf_file import write_gguf
from tests.tiny.safetensors_file import write_hf_folder
from tests.tiny.tokenizers import CHAT, byte_tokenizer_metadata

VOCAB, WIDTH, HEAD = 261, 264, 8
END = 259  # <|im_end|>
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def successor(token: int) -> int:
    if token in (ord("\n"), END):
        return ord("a")
    return END if token == ord("z") else (token + 1) % VOCAB


def alphabet_parts(template: str | None = CHAT, context: int = 256, **metadata: Any) -> tuple[dict, dict]:
    """Metadata and tensors: a llama of one layer that adds nothing to the one-hot embedding of the last token."""
    keys = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": WIDTH,
        "llama.context_length": context,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": HEAD,
        "llama.attention.value_length": HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.feed_forward_length": 16,
    }
    zeros = lambda *shape: np.zeros(shape, np.float32)
    output = zeros(VOCAB, WIDTH)
    output[[successor(token) for token in range(VOCAB)], range(VOCAB)] = 1
    tensors = {
        "token_embd.weight": np.eye(VOCAB, WIDTH, dtype=np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": output,
        "blk.0.attn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.attn_q.weight": zeros(2 * HEAD, WIDTH),
        "blk.0.attn_k.weight": zeros(HEAD, WIDTH),
        "blk.0.attn_v.weight": zeros(HEAD, WIDTH),
        "blk.0.attn_output.weight": zeros(WIDTH, 2 * HEAD),
        "blk.0.ffn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.ffn_gate.weight": zeros(16, WIDTH),
        "blk.0.ffn_up.weight": zeros(16, WIDTH),
        "blk.0.ffn_down.weight": zeros(WIDTH, 16),
    }
    return {**keys, **byte_tokenizer_metadata(template), **metadata}, tensors


def write_alphabet(path: Path, template: str | None = CHAT, context: int = 256, **metadata: Any) -> Path:
    return write_gguf(path, *alphabet_parts(template, context, **metadata))


def write_ids_only(path: Path) -> Path:
    """The folder of a llama without a tokenizer."""
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 5,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "intermediate_size": 4,
        "tie_word_embeddings": True,
    }
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens": (5, 8),
        "model.norm": (8,),
        layer + "input_layernorm": (8,),
        layer + "post_attention_layernorm": (8,),
        **{f"{layer}self_attn.{name}_proj": (8, 8) for name in "qkvo"},
        **{f"{layer}mlp.{name}_proj": (4, 8) for name in ("gate", "up")},
        layer + "mlp.down_proj": (8, 4),
    }
    return write_hf_folder(
        path, config, {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    )
