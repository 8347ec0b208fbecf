"""DeepSeek V2 and V3, and the models that share their graph: latent attention, a dense lead, then routed experts."""

from __future__ import annotations

from typing import Any, ClassVar

from turbospark.cache.latent import LatentCache
from turbospark.config.model import MLA as MLAConfig
from turbospark.config.model import Layer, ModelConfig, MoE
from turbospark.errors import TurbosparkError
from turbospark.kernels.rows import Rows
from turbospark.layers.feed_forward import feed_forward
from turbospark.layers.mla import MLA
from turbospark.layers.weights import Weights
from turbospark.models.base import Model


class DeepSeek2Layer:
    def __init__(self, model: Model, layer: Layer, w: Weights):
        config, norm = model.config, lambda name: w.norm(name, model.config.hidden, model.config)
        self.attention = MLA(config, layer.mixer, w, model.rotations[layer.mixer.rope], norm("attn_norm"))
        self.ffn = feed_forward(layer.ffn, config, w, norm("ffn_norm"))

    def __call__(self, x: Any, rows: Rows, cache: LatentCache) -> Any:
        return self.ffn(self.attention(x, rows, cache))


class DeepSeek2(Model):
    names: ClassVar[dict[str, str]] = {
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    }

    def __init__(self, config: ModelConfig, *arguments: Any, **named: Any):
        check(config)
        super().__init__(config, *arguments, **named)

    def layer(self, config: Layer, w: Weights) -> DeepSeek2Layer:
        return DeepSeek2Layer(self, config, w)


def check(config: ModelConfig) -> None:
    """Refuses, by name, what other families add to a trunk and this one would leave out."""
    other = next((i for i, layer in enumerate(config.layers) if not isinstance(layer.mixer, MLAConfig)), None)
    if other is not None:
        kind = type(config.layers[other].mixer).__name__
        raise TurbosparkError(
            "unsupported_feature", f"layer {other} of a deepseek2 model is {kind}; all {len(config.layers)} must be MLA"
        )
    extensions = {
        "norm_offset": config.norm_offset,
        "embedding_scale": config.embedding_scale != 1.0,
        "output_softcap": config.output_softcap is not None,
        "shared_gate": any(isinstance(layer.ffn, MoE) and layer.ffn.shared_gate for layer in config.layers),
    }
    for name, wanted in extensions.items():
        if wanted:
            raise TurbosparkError("unsupported_feature", f"{name} is not implemented in the deepseek2 family")
