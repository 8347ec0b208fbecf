"""A tiny llama or mistral in transformers."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, MistralConfig

from tests.tiny import hf

VOCAB, CONTEXT, TRAINED = 96, 160, 32
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "head_dim": 16,
}
THETA = {"rope_theta": 1000.0}
ROPES = {
    "default": {"rope_type": "default", **THETA},
    "linear": {"rope_type": "linear", "factor": 4.0, **THETA},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
        **THETA,
    },
    "yarn": {"rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": TRAINED, **THETA},
    "yarn with betas": {
        "rope_type": "yarn",
        "factor": 5.0,
        "original_max_position_embeddings": TRAINED,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        **THETA,
    },
    "yarn with attention_factor": {
        "rope_type": "yarn",
        "factor": 5.0,
        "original_max_position_embeddings": TRAINED,
        "attention_factor": 0.8,
        **THETA,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 5.0,
        "original_max_position_embeddings": TRAINED,
        "mscale": 0.7,
        "mscale_all_dim": 1.4,
        **THETA,
    },
}


def tiny_llama(rope: str = "default", seed: int = 0, **fields: Any) -> Any:
    config = LlamaConfig(**{**SHAPE, "rope_parameters": dict(ROPES[rope]), **fields})
    return hf.random_model(config, seed, norm=1.0, embedding=1.0)


def tiny_mistral(window: int | None, seed: int = 0, **fields: Any) -> Any:
    config = MistralConfig(**{**SHAPE, "rope_parameters": dict(ROPES["default"]), "sliding_window": window, **fields})
    return hf.random_model(config, seed, norm=1.0, embedding=1.0)
