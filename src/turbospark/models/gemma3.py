"""Gemma 3: norms on both sides of attention and feed-forward, most layers seeing a window only."""

from __future__ import annotations

from typing import Any, ClassVar

from turbospark.config.model import Layer
from turbospark.kernels.rows import Rows
from turbospark.layers.attention import Attention
from turbospark.layers.feed_forward import FeedForward
from turbospark.layers.weights import Weights
from turbospark.models.base import Model


class Gemma3Layer:
    def __init__(self, model: Model, layer: Layer, w: Weights):
        config, norm = model.config, lambda name: w.norm(name, model.config.hidden, model.config)
        rotation = model.rotations[layer.mixer.rope]
        self.attention = Attention(config, layer.mixer, w, rotation, norm("attn_norm"), norm("post_attention_norm"))
        self.ffn = FeedForward(layer.ffn, config.hidden, w, norm("ffn_norm"), norm("post_ffw_norm"))
        self.branches = (self.attention.branch, self.ffn.branch)

    def __call__(self, x: Any, rows: Rows, cache: Any) -> Any:
        return self.ffn(self.attention(x, rows, cache))


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
