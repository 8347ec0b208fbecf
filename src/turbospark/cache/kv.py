"""Keys and values by position: a full cache, or a ring when the layer sees only a window."""

from __future__ import annotations

from typing import Any

from turbospark.cache.base import LayerCache
from turbospark.kernels.api import Kernels
from turbospark.kernels.rows import Rows

BLOCK = 64  # kernels read keys in blocks of positions, so a ring's capacity is a whole number of them


class KVCache(LayerCache):
    """k [slots, kv, capacity, d], v [slots, kv, capacity, dv]; position p lies at p % capacity.

    A ring holds window + slack positions: `slack` rows may be appended, and as many rejected, without touching a key
    that a row inside the window still sees. A commit is nothing but the session's cursor.
    """

    def __init__(
        self,
        kernels: Kernels,
        slots: int,
        context: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        window: int | None,
        slack: int,
    ):
        needed = context if window is None else min(context, window + slack)
        self.capacity = -(-needed // BLOCK) * BLOCK
        self.window, self.slack, self.ring = window, slack, window is not None and needed < context
        self._kernels = kernels
        self.k = kernels.cached((slots, kv_heads, self.capacity, key_dim))
        self.v = kernels.cached((slots, kv_heads, self.capacity, value_dim))

    def append(self, rows: Rows, k: Any, v: Any) -> None:
        """k [R, kv, d], v [R, kv, dv]."""
        self.admit(rows)
        self._kernels.store(rows, k, self.k)
        self._kernels.store(rows, v, self.v)

    def admit(self, rows: Rows) -> None:
        """Refuses rows that are more than may be appended at once; whoever writes k and v itself calls it before."""
        if self.ring:
            longest = max(map(len, rows.spans), default=0)
            if longest > self.slack:  # its first rows would lose keys to its last ones
                raise RuntimeError(f"{longest} rows of a sequence at once in a ring with room for {self.slack}")

    def commit(self, slot: int, loose: int) -> None:
        pass

    def reaches(self, length: int, committed: int, written: int) -> bool:
        # the oldest key a row at `length` sees must not have been overwritten
        return not self.ring or max(0, length - (self.window or 0) + 1) >= written - self.capacity

    def snapshot(self, slot: int, length: int) -> Any:
        return (self.k[slot] * 1, self.v[slot] * 1) if self.ring else None

    def restore(self, slot: int, source: int, length: int, snapshot: Any) -> None:
        if snapshot is not None:
            self.k[slot], self.v[slot] = snapshot
        elif slot != source:
            kept = min(length, self.capacity) if not self.ring else self.capacity
            self.k[slot, :, :kept] = self.k[source, :, :kept]
            self.v[slot, :, :kept] = self.v[source, :, :kept]

    def reset(self, slot: int) -> None:
        pass

    @property
    def nbytes(self) -> int:
        return int(self.k.nbytes) + int(self.v.nbytes)
