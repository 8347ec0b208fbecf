"""A drafter's layers and its head as the kernels of `block` and `scoring` take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turbospark.kernels.cpu import block, scoring
from turbospark.kernels.cpu.linear import Weight
from turbospark.kernels.cpu.parts import AttendPart, BranchPart, Group, MLPPart, Part, address, eps, weight
from turbospark.kernels.cpu.record import Record, bits
from turbospark.kernels.parts import BlockLayer, Conv, Norm, Reading, Scoring


class BlockPart(Part):
    """All layers of a drafter's block, and the norm behind them."""

    callback = block.block

    def __init__(self, layers: Sequence[BlockLayer], norm: Norm):
        attention = [BranchPart(layer.attention) for layer in layers]
        feeds = [MLPPart(layer.feed_forward.mlp) for layer in layers]
        convs = [conv for layer in layers for conv in (layer.attention_conv, layer.feed_forward_conv)]
        groups = [None if conv is None else own(conv.projection) for conv in convs]
        self.native = all(part is None or part.native for part in (*attention, *feeds, *groups))
        if not self.native:
            return
        rows = []
        for i, layer in enumerate(layers):
            attention[i].qkv.set_norm(None)  # the sublayer reads what the convolution makes of the normed stream
            inner = block.inner_attention.address, attention[i].address, 1, layer.window or 0, int(layer.causal)
            rows.append((*inner, *_around(layer.attention.before, layer.attention_conv, groups[2 * i])))
            inner = feeds[i].region, feeds[i].address, 0, 0, 0
            rows.append((*inner, *_around(layer.feed_forward.before, layer.feed_forward_conv, groups[2 * i + 1])))
        keep = layers, norm, attention, feeds, groups
        record = Record(block.FIELDS, keep, sublayers=len(rows), norm=weight(norm), eps=eps(norm))
        record.append(rows)
        self._describe(record)


class RememberPart(Part):
    """Keys and values of a drafter's context."""

    callback = block.remember

    def __init__(self, reading: Reading):
        fc, heads = own(reading.fc), [AttendPart(heads) for _, heads in reading.layers]
        keys = own([pair for group, _ in reading.layers for pair in group])
        self.native = fc.native and keys.native
        if self.native:
            keys.set_norm(reading.norm)
            addresses = fc.address, keys.address, len(heads)
            record = Record.of(block.READING_FIELDS, addresses, keep=(reading, fc, keys, heads))
            record.append([[part.address] for part in heads])
            self._describe(record)


class ScoringPart(Part):
    """A head of which a few outputs are looked for."""

    callback = scoring.candidates

    def __init__(self, parts: Scoring):
        projection, coarse, head = Group([parts.projection]), Group([parts.coarse]), parts.head
        self.native = projection.native and coarse.native and (head is None or isinstance(head, Weight))
        if not self.native:
            return
        self.rank, ids = parts.projection.shape[0], np.ascontiguousarray(parts.ids, np.int64)
        record = Record(
            scoring.FIELDS,
            (parts, projection, coarse, ids),
            projection=projection.address,
            coarse=coarse.address,
            rank=self.rank,
            outputs=coarse.outputs,
            head=0 if head is None else head.address,
            integer=head is not None and head.integer,
            ids=address(ids),
            near=parts.near,
        )
        self._describe(record)


def own(group: Any) -> Group:
    """A copy of a group, whose record nobody else sets."""
    return Group(*zip(*group, strict=True))


def _around(norm: Norm, conv: Conv | None, projection: Group | None) -> tuple[int, ...]:
    """What a sublayer's fields say of its norm and its convolution."""
    before = weight(norm), bits(eps(norm))
    if conv is None or projection is None:
        return (*before, 0, 1, 0, 0)
    return (*before, conv.base.shape[1], conv.width, address(conv.base), projection.address)
