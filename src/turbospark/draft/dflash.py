"""The DFlash and DFlash2 drafter: a block in one pass, from the target's own hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from turbospark.cache.kv import KVCache
from turbospark.draft.base import Drafter, Draw
from turbospark.draft.context import Context
from turbospark.draft.dflash_config import DFlashConfig
from turbospark.draft.dflash_model import DFlashModel
from turbospark.kernels.api import Kernels
from turbospark.kernels.rows import Rows, selection
from turbospark.models.caches import MAX_BLOCK


class DFlash(Drafter):
    """Rings of window + chunk + block rows hold the context of each slot; `block` bounds a round's rows."""

    name = "dflash"

    def __init__(self, model: DFlashModel, slots: int, context: int, chunk: int, block: int = MAX_BLOCK):
        c = model.config
        self.model, self.taps, self._block = model, c.taps, block
        self.window = (
            None if any(layer.window is None for layer in c.layers) else max(la.window or 0 for la in c.layers)
        )
        self.context = Context(context_caches(c, model.kernels, context, slots, chunk, block), slots)

    @property
    def longest(self) -> int:
        return self._block - 1

    @property
    def trained(self) -> int:
        return min(self.model.config.block, self._block) - 1

    def admit(self, slot: int, prompt: Sequence[int], source: int | None, reused: int) -> None:
        # only the last window of a prompt is ever looked at
        start = 0 if self.window is None else max(0, len(prompt) - self.window)
        self.context.admit(slot, source, reused, start)

    def observe(self, rows: Rows, states: Mapping[Any, Any]) -> None:
        unseen = self.context.unseen(rows)
        if not unseen:
            return
        kept, picked = rows.keep(unseen), selection(unseen)
        taps = self.model.kernels.join([states[layer][picked] for layer in self.taps])
        self.model.observe(taps, kept, self.context.caches)
        self.context.advance(kept)

    def propose(self, anchors: Rows, counts: Sequence[int], draw: Draw) -> list[list[int]]:
        sequences = list(
            zip(anchors.slots.tolist(), anchors.positions.tolist(), anchors.ids.tolist(), counts, strict=True)
        )
        wanted = [s for s in sequences if s[3] > 0]
        if not wanted:
            return [[] for _ in counts]
        mask = self.model.config.mask_id
        rows = Rows.of((slot, p, [anchor, *[mask] * n], 1) for slot, p, anchor, n in wanted)
        hidden = self.model.block(rows, self.context.caches, self.context.begin_block(rows))
        spans = iter(rows.spans)
        proposals = []
        for slot, position, anchor, count in sequences:
            if count > 0:
                span = next(spans)
                walk = self.model.walk(hidden[span.start + 1 : span.stop], anchor, position, partial(draw, slot))
                proposals.append(walk)
            else:
                proposals.append([])
        return proposals


def context_caches(
    c: DFlashConfig, kernels: Kernels, context: int, slots: int, chunk: int, block: int = MAX_BLOCK
) -> list[KVCache]:
    """Each layer's keys and values of the context and of a block behind it."""
    sizes = (c.kv_heads, c.head_dim, c.head_dim)
    return [KVCache(kernels, slots, context + block, *sizes, layer.window, chunk + block) for layer in c.layers]
