"""Gated DeltaNet: a linear-attention layer whose memory is one matrix a head (arXiv 2412.06464)."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospark.cache.recurrent import RecurrentCache
from turbospark.config.model import GatedDelta as Config
from turbospark.config.model import ModelConfig
from turbospark.kernels.rows import Rows
from turbospark.layers.weights import Weights

L2_EPS = 1e-6  # inside the root of q's and k's norms; fixed by the family, whatever its RMS norms use


class GatedDelta:
    """x [R, H] -> [R, H]."""

    def __init__(self, model: ModelConfig, config: Config, w: Weights):
        self.config, self.eps, self.kernels, self.trace = config, model.eps, w.kernels, w.trace
        heads, width = config.value_heads, config.value_heads * config.value_dim
        self.qkv = w.matrix("attn_qkv", config.channels, model.hidden)
        self.z = w.matrix("attn_gate", width, model.hidden)
        self.a, self.b = w.matrix("ssm_alpha", heads, model.hidden), w.matrix("ssm_beta", heads, model.hidden)
        self.conv = w.vector("ssm_conv1d", config.channels, config.conv)
        decay = w.values("ssm_a", heads, suffix="")
        self.a_neg = w.kernels.vector(-np.exp(decay) if config.log_decay else decay)
        self.dt_bias = w.vector("ssm_dt", heads, suffix=".bias")
        self.norm = w.vector("ssm_norm", config.value_dim)  # plain also where the trunk's norms are offsets
        self.out = w.matrix("ssm_out", model.hidden, width)
        shared = heads // config.key_heads
        self.key_head = np.arange(heads) % config.key_heads if config.tiled else np.arange(heads) // shared

    def __call__(self, x: Any, rows: Rows, cache: RecurrentCache) -> Any:
        c, kernels = self.config, self.kernels
        cache.append(rows)
        mixed = kernels.short_conv(kernels.linear(x, self.qkv), self.conv, cache, rows)
        self.trace("conv", mixed)
        keys = c.key_heads * c.key_dim
        heads = lambda part: kernels.l2norm(part.reshape(len(x), c.key_heads, c.key_dim), L2_EPS)[:, self.key_head]
        q, k = heads(mixed[:, :keys]) * c.key_dim**-0.5, heads(mixed[:, keys : 2 * keys])
        v = mixed[:, 2 * keys :].reshape(len(x), c.value_heads, c.value_dim)
        g, beta = kernels.delta_gates(kernels.linear(x, self.a), kernels.linear(x, self.b), self.a_neg, self.dt_bias)
        self.trace("g", g)
        self.trace("beta", beta)
        out = kernels.delta_rule(q, k, v, g, beta, cache, rows)
        self.trace("delta_out", out)
        z = kernels.linear(x, self.z).reshape(len(x), c.value_heads, c.value_dim)
        out = kernels.gate(z, kernels.norm(out, self.norm, self.eps), "silu").reshape(len(x), -1)
        return kernels.linear(out, self.out)
