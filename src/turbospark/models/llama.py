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
        hidden = model.config.hidden
        self.norm, self.eps = model.kernels.norm, model.config.eps
        self.attn_norm = w.vector("attn_norm", hidden)
        self.attention = Attention(model.config, layer.mixer, w, model.rotations[layer.mixer.rope])
        self.ffn_norm = w.vector("ffn_norm", hidden)
        self.ffn = feed_forward(layer.ffn, hidden, w)

    def __call__(self, x: Any, rows: Rows, cache: Any) -> Any:
        x = x + self.attention(self.norm(x, self.attn_norm, self.eps), rows, cache)
        return x + self.ffn(self.norm(x, self.ffn_norm, self.eps))


class Llama(Model):
    def layer(self, config: Layer, w: Weights) -> LlamaLayer:
        return LlamaLayer(self, config, w)
