"""The state of a Gated DeltaNet layer, with the tape that lets a part of a block be committed."""

from __future__ import annotations

from typing import Any

from turbospark.cache.base import LayerCache
from turbospark.config.model import GatedDelta
from turbospark.kernels.api import Kernels
from turbospark.kernels.rows import Rows


class RecurrentCache(LayerCache):
    """state [slots, Hv, dk, dv] and window [slots, conv-1, channels] of the committed rows.

    Certain rows advance both in place. Uncertain rows leave them as they are and write the tape: inputs of the
    convolution, and k, u = beta * (v - S^T k) and exp(g) of the recurrence, at most `block` rows a slot.
    """

    def __init__(self, kernels: Kernels, slots: int, config: GatedDelta, block: int):
        self._kernels = kernels
        heads, zeros = config.value_heads, kernels.zeros
        self.state = zeros((slots, heads, config.key_dim, config.value_dim))
        self.window = zeros((slots, config.conv - 1, config.channels))
        self.block = block
        self.taped = [0] * slots  # rows on each slot's tape that may still be committed
        self.taped_inputs = zeros((slots, block, config.channels))
        self.taped_k = zeros((slots, block, heads, config.key_dim))
        self.taped_u = zeros((slots, block, heads, config.value_dim))
        self.taped_decay = zeros((slots, block, heads))

    def append(self, rows: Rows) -> None:
        """Takes in the rows that `short_conv` and `delta_rule` are about to write."""
        for span in rows.spans:
            loose = len(span) - span.certain
            if loose > self.block:
                raise RuntimeError(f"slot {span.slot}: {loose} uncertain rows for a tape of {self.block}")
            self.taped[span.slot] = loose

    def commit(self, slot: int, loose: int) -> None:
        if loose > self.taped[slot]:
            raise RuntimeError(f"slot {slot}: {loose} rows to commit, the tape holds {self.taped[slot]}")
        self.taped[slot] = 0
        if loose:
            self._kernels.commit_delta(self, slot, loose)

    def reaches(self, length: int, committed: int, written: int) -> bool:
        return length == committed

    def snapshot(self, slot: int, length: int) -> Any:
        return self.state[slot] * 1, self.window[slot] * 1

    def restore(self, slot: int, source: int, length: int, snapshot: Any) -> None:
        state, window = (self.state[source], self.window[source]) if snapshot is None else snapshot
        self.state[slot], self.window[slot] = state, window
        self.taped[slot] = 0

    def reset(self, slot: int) -> None:
        self.state[slot] = 0
        self.window[slot] = 0
        self.taped[slot] = 0

    @property
    def nbytes(self) -> int:
        parts = (self.state, self.window, self.taped_inputs, self.taped_k, self.taped_u, self.taped_decay)
        return sum(int(part.nbytes) for part in parts)
