"""Grouped-query attention as a branch of the stream, with the options its families add."""

from __future__ import annotations

from typing import Any

from turbospark.cache.kv import KVCache
from turbospark.config.model import Attention as Config
from turbospark.config.model import ModelConfig
from turbospark.kernels.parts import AttentionBranch, Heads, Norm
from turbospark.kernels.rows import Rows
from turbospark.layers.weights import Weights


class Attention:
    """x + after(o(attend(q, k, v of before(x)))): x [R, H] -> [R, H]. `rotation`: the table of the layer's rope."""

    def __init__(
        self, model: ModelConfig, config: Config, w: Weights, rotation: Any, before: Norm, after: Norm | None = None
    ):
        self.kernels, self.trace = w.kernels, w.trace
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        matrices = (
            w.matrix("attn_q", q_width * (2 if config.gated else 1), model.hidden),
            w.matrix("attn_k", kv_width, model.hidden),
            w.matrix("attn_v", kv_width, model.hidden),
        )
        bias = lambda there, name, n: w.vector(name, n, suffix=".bias") if there else None
        widths = {"attn_q": q_width, "attn_k": kv_width, "attn_v": kv_width}
        qkv = w.kernels.group(matrices, [bias(config.bias, name, n) for name, n in widths.items()])
        output = w.matrix("attn_output", model.hidden, q_width)
        o = w.kernels.group([output], [bias(config.output_bias, "attn_output", model.hidden)])
        norm = lambda name: w.norm(name, config.head_dim, model) if config.qk_norm else None
        heads = Heads(config, norm("attn_q_norm"), norm("attn_k_norm"), rotation, w.trace)
        self.branch = AttentionBranch(before, qkv, heads, o, after)

    def __call__(self, x: Any, rows: Rows, cache: KVCache) -> Any:
        return self.kernels.attention_branch(x, rows, cache, self.branch)
