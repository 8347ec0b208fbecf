"""Grouped-query attention, with the options its families add: head norms, an output gate, a window, biases."""

from __future__ import annotations

from typing import Any

from turbospark.cache.kv import KVCache
from turbospark.config.model import Attention as Config
from turbospark.config.model import ModelConfig
from turbospark.kernels.rows import Rows
from turbospark.layers.weights import Weights


class Attention:
    """x [R, H] -> [R, H]. `rotation` is the shared table of the layer's rope, or None."""

    def __init__(self, model: ModelConfig, config: Config, w: Weights, rotation: Any):
        self.config, self.eps, self.rotation, self.kernels, self.trace = (
            config,
            model.eps,
            rotation,
            w.kernels,
            w.trace,
        )
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q = w.matrix("attn_q", q_width * (2 if config.gated else 1), model.hidden)
        self.k = w.matrix("attn_k", kv_width, model.hidden)
        self.v = w.matrix("attn_v", kv_width, model.hidden)
        self.o = w.matrix("attn_output", model.hidden, q_width)
        bias = lambda name, n: w.vector(name, n, suffix=".bias") if config.bias else None
        self.q_bias, self.k_bias, self.v_bias = (
            bias("attn_q", q_width),
            bias("attn_k", kv_width),
            bias("attn_v", kv_width),
        )
        self.o_bias = w.vector("attn_output", model.hidden, suffix=".bias") if config.output_bias else None
        norm = lambda name: w.vector(name, config.head_dim, offset=model.norm_offset) if config.qk_norm else None
        self.q_norm, self.k_norm = norm("attn_q_norm"), norm("attn_k_norm")

    def __call__(self, x: Any, rows: Rows, cache: KVCache) -> Any:
        c, kernels = self.config, self.kernels
        project = lambda x, w, bias: kernels.linear(x, w) if bias is None else kernels.linear(x, w) + bias
        q, k, v = project(x, self.q, self.q_bias), project(x, self.k, self.k_bias), project(x, self.v, self.v_bias)
        gate = None
        if c.gated:  # per head: query, then gate
            both = q.reshape(len(x), c.heads, 2, c.head_dim)
            q, gate = both[:, :, 0], both[:, :, 1].reshape(len(x), -1)
        q = q.reshape(len(x), c.heads, c.head_dim)
        k = k.reshape(len(x), c.kv_heads, c.head_dim)
        if c.qk_norm:
            q, k = kernels.norm(q, self.q_norm, self.eps), kernels.norm(k, self.k_norm, self.eps)
        if c.rope is not None:
            q, k = kernels.rope(q, rows, self.rotation), kernels.rope(k, rows, self.rotation)
        self.trace("q", q)
        self.trace("k", k)
        cache.append(rows, k, v.reshape(len(x), c.kv_heads, c.head_dim))
        out = kernels.attention(q, cache.k, cache.v, rows, scale=c.scale, window=c.window, softcap=c.softcap)
        out = out.reshape(len(x), -1)
        if gate is not None:
            out = out * kernels.sigmoid(gate)
        self.trace("attn_mix", out)
        return project(out, self.o, self.o_bias)
