"""Gated DeltaNet: a linear-attention layer whose memory is one matrix a head (arXiv 2412.06464)."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospark.cache.recurrent import RecurrentCache
from turbospark.config.model import GatedDelta as Config
from turbospark.config.model import ModelConfig
from turbospark.kernels.parts import Delta, Norm
from turbospark.kernels.rows import Rows
from turbospark.layers.weights import Weights


class GatedDelta:
    """x + out(gated_delta(qkv, z, a, b of before(x))): x [R, H] -> [R, H]."""

    def __init__(self, model: ModelConfig, config: Config, w: Weights, before: Norm):
        self.kernels, self.before, self.trace = w.kernels, before, w.trace
        heads, width = config.value_heads, config.value_heads * config.value_dim
        self.inputs = w.kernels.group(
            [
                w.matrix("attn_qkv", config.channels, model.hidden),
                w.matrix("attn_gate", width, model.hidden),
                w.matrix("ssm_alpha", heads, model.hidden),
                w.matrix("ssm_beta", heads, model.hidden),
            ]
        )
        decay = w.values("ssm_a", heads, suffix="")
        shared = heads // config.key_heads
        self.delta = Delta(
            config,
            conv=w.vector("ssm_conv1d", config.channels, config.conv),
            a_neg=w.kernels.vector(-np.exp(decay) if config.log_decay else decay),
            dt_bias=w.vector("ssm_dt", heads, suffix=".bias"),
            norm=Norm(w.vector("ssm_norm", config.value_dim), model.eps),  # plain also where the trunk's are offsets
            key_head=np.arange(heads) % config.key_heads if config.tiled else np.arange(heads) // shared,
            trace=w.trace,
        )
        self.out = w.kernels.group([w.matrix("ssm_out", model.hidden, width)])

    def __call__(self, x: Any, rows: Rows, cache: RecurrentCache) -> Any:
        cache.append(rows)
        qkv, z, a, b = self.kernels.project(x, self.before, self.inputs)
        out = self.kernels.gated_delta(qkv, z, a, b, rows, cache, self.delta)
        return self.kernels.merge(x, out, self.out)
