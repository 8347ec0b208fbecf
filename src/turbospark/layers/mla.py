"""Multi-head latent attention, absorbed: scores and mixtures are taken over the compressed rows themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.cache.latent import LatentCache
from turbospark.config.model import MLA as Config
from turbospark.config.model import ModelConfig
from turbospark.kernels.parts import Latents, Norm
from turbospark.kernels.rows import Rows
from turbospark.layers.weights import Weights
from turbospark.quant.tensor import QTensor


class MLA:
    """x + o(latent(q and compressed row of before(x))): x [R, H] -> [R, H]; see Kernels.latent (arXiv 2405.04434)."""

    def __init__(self, model: ModelConfig, config: Config, w: Weights, rotation: Any, before: Norm):
        self.kernels, self.before, self.trace = w.kernels, before, w.trace
        c, hidden, group = config, model.hidden, w.kernels.group
        q_width = c.heads * (c.nope_dim + c.rope.dim)
        self.q_norm = self.q_up = None
        if c.q_rank is None:
            first = w.matrix("attn_q", q_width, hidden)
        else:
            first = w.matrix("attn_q_a", c.q_rank, hidden)
            self.q_norm = Norm(w.vector("attn_q_a_norm", c.q_rank), c.norm_eps)
            self.q_up = group([w.matrix("attn_q_b", q_width, c.q_rank)])
        self.down = group([first, w.matrix("attn_kv_a_mqa", c.latent + c.rope.dim, hidden)])
        k_up, v_up = (w.kernels.weight(part) for part in up_projections(c, w))
        norm = Norm(w.vector("attn_kv_a_norm", c.latent), c.norm_eps)
        self.latents = Latents(c, norm, k_up, v_up, rotation, w.trace)
        self.o = group([w.matrix("attn_output", hidden, c.heads * c.value_dim)])

    def __call__(self, x: Any, rows: Rows, cache: LatentCache) -> Any:
        q, row = self.kernels.project(x, self.before, self.down)
        if self.q_up is not None:
            (q,) = self.kernels.project(q, self.q_norm, self.q_up)
        mix = self.kernels.latent(q, row, rows, cache, self.latents)
        return self.kernels.merge(x, mix, self.o)


def up_projections(c: Config, w: Weights) -> tuple[QTensor, QTensor]:
    """W_uk^T [heads, latent, nope] and W_uv [heads, value, latent] of a layer, in whatever form a file has them.

    `attn_k_b` and `attn_v_b` are these two as they are, with three axes or the first two joined. Where there is only
    `attn_kv_b` (HF: kv_b_proj), see `split_kv_b`. Of all three the first two are used.
    """
    joint = (c.heads * (c.nope_dim + c.value_dim), c.latent)
    if not w.has("attn_k_b"):
        return split_kv_b(w.tensor("attn_kv_b", joint), c.heads, c.nope_dim)
    if w.has("attn_kv_b"):
        w.tensor("attn_kv_b", joint)
    k_up = _by_head(w, "attn_k_b", c.heads, c.latent, c.nope_dim)
    return k_up, _by_head(w, "attn_v_b", c.heads, c.value_dim, c.latent)


def split_kv_b(kv_b: QTensor, heads: int, nope: int) -> tuple[QTensor, QTensor]:
    """kv_b [heads * (nope + value), latent] -> W_uk^T [heads, latent, nope] and W_uv [heads, value, latent].

    W_uv is a view. W_uk is read transposed, which a block format does not allow: it is decoded once, to F32; plain
    floats are moved as they are. FP8 is decoded whole, as its scales need not end where a head does.
    """
    latent = kv_b.shape[1]
    source = decoded(kv_b) if kv_b.scales is not None else kv_b
    rows = source.data.reshape(heads, -1, source.data.shape[-1])
    v_up = replace(source, shape=(heads, rows.shape[1] - nope, latent), data=rows[:, nope:])
    k_rows = replace(source, shape=(heads, nope, latent), data=rows[:, :nope])
    if quant.get_format(source.format).block > 1:
        k_rows = decoded(k_rows)
    values = k_rows.data.reshape(heads, nope, latent, -1).swapaxes(1, 2)
    return replace(k_rows, shape=(heads, latent, nope), data=values.reshape(heads, latent, -1)), v_up


def decoded(tensor: QTensor) -> QTensor:
    """The same values as F32."""
    return QTensor(tensor.name, "F32", tensor.shape, quant.decode(tensor).view(np.uint8))


def _by_head(w: Weights, name: str, *shape: int) -> QTensor:
    joined = (shape[0] * shape[1], shape[2])
    tensor = w.tensor(name, joined if len(w.shape(name)) == 2 else shape)
    return replace(tensor, shape=shape, data=tensor.data.reshape(*shape[:2], -1))
