"""Qwen3.5, 3.6 and 3.8 trunks, dense and MoE: Gated DeltaNet layers with a full attention layer now and then."""

from __future__ import annotations

from typing import Any, ClassVar

from turbospark.config.model import GatedDelta as GatedDeltaConfig
from turbospark.config.model import Layer
from turbospark.kernels.rows import Rows
from turbospark.layers.attention import Attention
from turbospark.layers.feed_forward import feed_forward
from turbospark.layers.gated_delta import GatedDelta
from turbospark.layers.weights import Weights
from turbospark.models.base import Model


class Qwen35Layer:
    def __init__(self, model: Model, layer: Layer, w: Weights):
        config, mixer, norm = model.config, layer.mixer, lambda name: w.norm(name, model.config.hidden, model.config)
        self.mixer: Any
        if isinstance(mixer, GatedDeltaConfig):
            self.mixer = GatedDelta(config, mixer, w, norm("attn_norm"))
        else:
            self.mixer = Attention(config, mixer, w, model.rotations[mixer.rope], norm("attn_norm"))
        self.ffn = feed_forward(layer.ffn, config, w, norm("post_attention_norm"))

    def __call__(self, x: Any, rows: Rows, cache: Any) -> Any:
        return self.ffn(self.mixer(x, rows, cache))


class Qwen35(Model):
    names: ClassVar[dict[str, str]] = {
        "post_attention_norm": "post_attention_layernorm",
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_a": "linear_attn.A_log",
        "ssm_dt.bias": "linear_attn.dt_bias",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    }
    unused = ("mtp.", "model.mtp.", "model.visual.", "visual.")

    def layer(self, config: Layer, w: Weights) -> Qwen35Layer:
        return Qwen35Layer(self, config, w)
