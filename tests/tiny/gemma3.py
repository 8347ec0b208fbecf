"""A tiny gemma3 in transformers: layers sliding, sliding, full, sliding."""

from __future__ import annotations

from typing import Any

from transformers import Gemma3TextConfig

from tests.tiny import hf

VOCAB, CONTEXT, WINDOW = 96, 160, 16
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "head_dim": 16,
    "query_pre_attn_scalar": 9,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
LOCAL, GLOBAL = 100.0, 5000.0
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": GLOBAL},
}


def tiny_gemma3(seed: int = 0, **fields: Any) -> Any:
    ropes = {kind: dict(rope) for kind, rope in ROPES.items()}
    config = Gemma3TextConfig(**{**SHAPE, "rope_parameters": ropes, **fields})
    # the embedding is scaled up by sqrt(hidden), and would drown the layers at a scale of 1
    return hf.random_model(config, seed, norm=0.0, embedding=0.3)
