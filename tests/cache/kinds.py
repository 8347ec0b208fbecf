"""Caches of every kind, and rows to fill them with: what a row stores depends on all ids up to it, as in a model."""

from __future__ import annotations

from functools import cache
from zlib import crc32

import numpy as np

from turbospark.cache.base import LayerCache
from turbospark.cache.kv import KVCache
from turbospark.cache.latent import LatentCache
from turbospark.cache.recurrent import RecurrentCache
from turbospark.config.model import GatedDelta
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows

SLOTS, CONTEXT, BLOCK = 2, 2000, 15
WINDOW, SLACK = 41, 23  # together a whole block of keys: the ring has no room to spare
DELTA = GatedDelta(key_heads=1, value_heads=2, key_dim=3, value_dim=2, conv=4, tiled=False, log_decay=False)
KERNELS = ReferenceKernels()
KINDS = ("full", "ring", "latent", "recurrent")


def make(kind: str) -> LayerCache:
    if kind == "latent":
        return LatentCache(KERNELS, SLOTS, CONTEXT, 3, 2)
    if kind == "recurrent":
        return RecurrentCache(KERNELS, SLOTS, DELTA, BLOCK)
    return KVCache(KERNELS, SLOTS, CONTEXT, 2, 3, 2, WINDOW if kind == "ring" else None, SLACK)


@cache
def values(count: int, text: bytes) -> np.ndarray:
    """`count` numbers that depend on the whole text."""
    return np.random.default_rng(crc32(text)).standard_normal(count).astype(np.float32)


def append(layer: LayerCache, rows: Rows, texts: list[bytes]) -> None:
    """What a layer does in a forward; `texts` holds, for each row, all ids up to it."""
    if not isinstance(layer, RecurrentCache):
        width = layer.k.shape[3]
        heads = layer.k.shape[1]
        k = np.stack([values(heads * width, t).reshape(heads, width) for t in texts])
        layer.append(rows, k, -k[..., : layer.v.shape[3]])
        return
    layer.append(rows)
    step(layer, rows, texts)


def step(layer: RecurrentCache, rows: Rows, texts: list[bytes]) -> None:
    c, heads = DELTA, DELTA.value_heads
    widths = [c.channels, heads * c.key_dim, heads * c.key_dim, heads * c.value_dim, heads, heads]
    x, q, k, v, g, beta = np.split(np.stack([values(sum(widths), t) for t in texts]), np.cumsum(widths)[:-1], axis=1)
    by_head = lambda part: part.reshape(len(texts), heads, -1)
    KERNELS.short_conv(x, np.ones((c.channels, c.conv), np.float32), layer, rows)
    k = KERNELS.l2norm(by_head(k), 1e-6)
    KERNELS.delta_rule(by_head(q), k, by_head(v), -np.abs(g), KERNELS.sigmoid(beta), layer, rows)
