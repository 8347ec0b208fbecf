"""The compressed cache of latent attention: one row of latent + rope values a token, no values of their own."""

from __future__ import annotations

from typing import Any

from turbospark.cache.kv import KVCache
from turbospark.kernels.api import Kernels
from turbospark.kernels.rows import Rows


class LatentCache(KVCache):
    """k [slots, 1, capacity, latent + rope]; v is the view of its first `latent` elements."""

    def __init__(self, kernels: Kernels, slots: int, context: int, latent: int, rope_dim: int):
        super().__init__(kernels, slots, context, 1, latent + rope_dim, 0, None, 0)
        self.v = self.k[..., :latent]

    def append(self, rows: Rows, k: Any, v: Any = None) -> None:
        """k [R, 1, latent + rope]."""
        self._kernels.store(rows, k, self.k)

    def restore(self, slot: int, source: int, length: int, snapshot: Any) -> None:
        if slot != source:
            self.k[slot, :, :length] = self.k[source, :, :length]

    @property
    def nbytes(self) -> int:
        return int(self.k.nbytes)
