"""Which cache each layer keeps; from the configuration alone, so that its size is known before any weight."""

from __future__ import annotations

from typing import Any

from turbospark.cache.base import LayerCache
from turbospark.cache.kv import KVCache
from turbospark.cache.latent import LatentCache
from turbospark.cache.recurrent import RecurrentCache
from turbospark.config.model import MLA, Attention, ModelConfig
from turbospark.kernels.api import Kernels

MAX_BLOCK = 16  # rows of a verify block


def layer_caches(config: ModelConfig, kernels: Kernels, context: int, slots: int, chunk: int) -> list[LayerCache]:
    """A cache for each layer; `chunk` bounds the rows of a sequence in one forward."""
    slack = max(chunk, MAX_BLOCK)
    return [_cache(layer.mixer, kernels, context, slots, slack) for layer in config.layers]


def _cache(mixer: Any, kernels: Kernels, context: int, slots: int, slack: int) -> LayerCache:
    if isinstance(mixer, Attention):
        d = mixer.head_dim
        return KVCache(kernels, slots, context, mixer.kv_heads, d, d, mixer.window, slack)
    if isinstance(mixer, MLA):
        return LatentCache(kernels, slots, context, mixer.latent, mixer.rope.dim)
    return RecurrentCache(kernels, slots, mixer, MAX_BLOCK)
