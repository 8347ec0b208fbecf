"""Llama and its relatives: SmolLM2, Mistral, Llama 2 and 3."""

from __future__ import annotations

from typing import Any

from turbospark.config.model import Layer
from turbospark.kernels.rows import Rows
from turbospark.layers.attention import Attention
from turbospark.layers.feed_forward import feed_forward
from turbospark.layers.weights import Weights
from turbospark.models.base import Model


class LlamaLayer:
    def __init__(self, model: Model, layer: Layer, w: Weights):
        config, norm = model.config, lambda name: w.norm(name, model.config.hidden, model.config)
        self.attention = Attention(config, layer.mixer, w, model.rotations[layer.mixer.rope], norm("attn_norm"))
        self.ffn = feed_forward(layer.ffn, config, w, norm("ffn_norm"))
        self.branches = (self.attention.branch, self.ffn.branch)

    def __call__(self, x: Any, rows: Rows, cache: Any) -> Any:
        return self.ffn(self.attention(x, rows, cache))


class Llama(Model):
    def layer(self, config: Layer, w: Weights) -> LlamaLayer:
        return LlamaLayer(self, config, w)
