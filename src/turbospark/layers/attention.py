"""Grouped-query attention as a branch of the stream, with the options its families add."""

from __future__ import annotations

from typing import Any

from turbospark.cache.kv import KVCache
from turbospark.config.model import Attention as Config
from turbospark.config.model import ModelConfig
from turbospark.kernels.parts import Heads, Norm
from turbospark.kernels.rows import Rows
from turbospark.layers.weights import Weights


class Attention:
    """x + after(o(attend(q, k, v of before(x)))): x [R, H] -> [R, H]. `rotation`: the table of the layer's rope."""

    def __init__(
        self, model: ModelConfig, config: Config, w: Weights, rotation: Any, before: Norm, after: Norm | None = None
    ):
        self.kernels, self.before, self.after, self.trace = w.kernels, before, after, w.trace
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        matrices = (
            w.matrix("attn_q", q_width * (2 if config.gated else 1), model.hidden),
            w.matrix("attn_k", kv_width, model.hidden),
            w.matrix("attn_v", kv_width, model.hidden),
        )
        bias = lambda there, name, n: w.vector(name, n, suffix=".bias") if there else None
        widths = {"attn_q": q_width, "attn_k": kv_width, "attn_v": kv_width}
        self.qkv = w.kernels.group(matrices, [bias(config.bias, name, n) for name, n in widths.items()])
        output = w.matrix("attn_output", model.hidden, q_width)
        self.o = w.kernels.group([output], [bias(config.output_bias, "attn_output", model.hidden)])
        norm = lambda name: w.norm(name, config.head_dim, model) if config.qk_norm else None
        self.heads = Heads(config, norm("attn_q_norm"), norm("attn_k_norm"), rotation, w.trace)

    def __call__(self, x: Any, rows: Rows, cache: KVCache) -> Any:
        q, k, v = self.kernels.project(x, self.before, self.qkv)
        mix = self.kernels.attend(q, k, v, rows, cache, self.heads)
        return self.kernels.merge(x, mix, self.o, self.after)
