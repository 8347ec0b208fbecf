"""Gemma 3: norms on both sides of attention and feed-forward, most layers seeing a window only."""

from __future__ import annotations

from typing import Any, ClassVar

from turbospark.config.model import Layer
from turbospark.kernels.rows import Rows
from turbospark.layers.attention import Attention
from turbospark.layers.feed_forward import feed_forward
from turbospark.layers.weights import Weights
from turbospark.models.base import Model


class Gemma3Layer:
    def __init__(self, model: Model, layer: Layer, w: Weights):
        config = model.config
        self.kernels, self.eps = model.kernels, config.eps
        norm = lambda name: w.vector(name, config.hidden, offset=config.norm_offset)
        self.attn_norm, self.post_attention_norm = norm("attn_norm"), norm("post_attention_norm")
        self.attention = Attention(config, layer.mixer, w, model.rotations[layer.mixer.rope])
        self.ffn_norm, self.post_ffw_norm = norm("ffn_norm"), norm("post_ffw_norm")
        self.ffn = feed_forward(layer.ffn, config.hidden, w)

    def __call__(self, x: Any, rows: Rows, cache: Any) -> Any:
        norm = lambda x, weight: self.kernels.norm(x, weight, self.eps)
        x = x + norm(self.attention(norm(x, self.attn_norm), rows, cache), self.post_attention_norm)
        return x + norm(self.ffn(norm(x, self.ffn_norm)), self.post_ffw_norm)


class Gemma3(Model):
    names: ClassVar[dict[str, str]] = {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    # images are left out
    unused = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")

    def layer(self, config: Layer, w: Weights) -> Gemma3Layer:
        return Gemma3Layer(self, config, w)
