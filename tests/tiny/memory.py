"""Tiny models made in memory: random weights under GGUF's names, no file and no tokenizer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from turbospark.config.model import Attention, Dense, Layer, ModelConfig, Rope
from turbospark.kernels.reference import ReferenceKernels
from turbospark.models.base import Model
from turbospark.models.registry import model_class
from turbospark.quant.tensor import QTensor

HIDDEN, VOCAB = 32, 61


class Memory:
    """A source of weights from float32 arrays."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays
        self.tensors = {name: SimpleNamespace(shape=a.shape, format="F32") for name, a in arrays.items()}

    def open(self, name: str) -> QTensor:
        values = np.ascontiguousarray(self.arrays[name], np.float32)
        return QTensor(name, "F32", values.shape, values.view(np.uint8))


def llama_config(context: int = 128, window: int | None = None) -> ModelConfig:
    rope = Rope(10000.0, 8, True)
    attention = Attention(4, 2, 8, rope, 8**-0.5)
    layers = (Layer(replace(attention, window=window), Dense(48)), Layer(attention, Dense(48)))
    return ModelConfig("llama", HIDDEN, VOCAB, context, 1e-5, layers, tied=True)


def llama_arrays(config: ModelConfig, seed: int = 0, scale: float = 0.3) -> dict[str, np.ndarray]:
    """Random weights; at this scale answers wander over the whole vocabulary."""
    random = np.random.default_rng(seed)
    matrix = lambda *shape: (random.standard_normal(shape) * scale).astype(np.float32)
    arrays = {
        "token_embd.weight": matrix(config.vocab, config.hidden) * 3,
        "output_norm.weight": 1 + matrix(config.hidden),
    }
    for i, layer in enumerate(config.layers):
        a, width = layer.mixer, layer.ffn.width
        block = {
            "attn_norm": 1 + matrix(config.hidden),
            "attn_q": matrix(a.heads * a.head_dim, config.hidden),
            "attn_k": matrix(a.kv_heads * a.head_dim, config.hidden),
            "attn_v": matrix(a.kv_heads * a.head_dim, config.hidden),
            "attn_output": matrix(config.hidden, a.heads * a.head_dim),
            "ffn_norm": 1 + matrix(config.hidden),
            "ffn_gate": matrix(width, config.hidden),
            "ffn_up": matrix(width, config.hidden),
            "ffn_down": matrix(config.hidden, width),
        }
        arrays |= {f"blk.{i}.{name}.weight": values for name, values in block.items()}
    return arrays


def tiny_llama(context: int = 128, window: int | None = None, seed: int = 0) -> Model:
    config = llama_config(context, window)
    source = Memory(llama_arrays(config, seed))
    return model_class("llama")(config, source, "gguf", ReferenceKernels(), context)
