"""DFlash and DFlash2 as mathematics: context keys from tapped states, a block forward, and the candidate selector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospark.cache.kv import KVCache
from turbospark.config.model import Attention
from turbospark.draft.dflash_config import DFlashConfig, DFlashLayer
from turbospark.draft.dflash_head import AGAIN, DraftHead
from turbospark.errors import TurbosparkError
from turbospark.kernels.parts import (
    AttentionBranch,
    BlockLayer,
    Conv,
    FeedForwardBranch,
    GatedMLP,
    Heads,
    Norm,
    Reading,
    Scoring,
)
from turbospark.kernels.rows import Rows
from turbospark.layers.weights import Weights

Draw = Callable[[int, np.ndarray, np.ndarray], int]  # (position, candidate ids, scores) -> id


@dataclass(frozen=True)
class Candidates:
    """For each mask row: ids int [R, k], best first, their logits [R, k], and w [R, rank] that weighs the codebooks."""

    ids: np.ndarray
    unary: np.ndarray
    weight: np.ndarray


class GroupedConv:
    """y[i, c] = sum_t (base[side, t, c] + d[i, side, t, c // group]) x[i - t, c], zero before the block's start.

    base_kernel [2, taps, H]; kernel_projection [2 * taps * G, H] makes d from the sublayer's input.
    """

    def __init__(self, config: DFlashConfig, w: Weights, name: str):
        groups = config.hidden // config.conv_group
        self.kernels, self.shape = w.kernels, (2, config.conv_taps, groups)
        base = w.vector(f"{name}.base_kernel", 2, config.conv_taps, config.hidden, suffix="")
        projection = w.matrix(f"{name}.kernel_projection", 2 * config.conv_taps * groups, config.hidden)
        self.part = Conv(base, w.kernels.group([projection]), config.conv_group)

    def kernel(self, x: Any) -> Any:
        """d [R, 2, taps, G] of rows x [R, H]."""
        return self.kernels.project(x, None, self.part.projection)[0].reshape(len(x), *self.shape)

    def __call__(self, x: Any, kernel: Any, side: int, rows: Rows) -> Any:
        inside = np.concatenate([np.arange(len(span)) for span in rows.spans])
        y = 0 * x
        for t in range(self.shape[1]):
            earlier = x[np.maximum(np.arange(len(x)) - t, 0)] * self.kernels.vector(inside >= t)[:, None]
            spread = self.part.base[side, t] + kernel[:, side, t].repeat(self.part.width, -1)
            y = y + spread * earlier
        return y


class Layer:
    """One drafter layer over the rows of a block; the context is in the cache. `parts`: what a backend may fuse."""

    def __init__(self, config: DFlashConfig, layer: DFlashLayer, w: Weights, rotation: Any):
        c, hidden, kernels = config, config.hidden, w.kernels
        self.layer, self.kernels = layer, kernels
        norm = lambda name, n: Norm(w.vector(name, n), c.eps)
        attention = Attention(c.heads, c.kv_heads, c.head_dim, c.rope, c.head_dim**-0.5, qk_norm=True)
        q = w.matrix("self_attn.q_proj", c.heads * c.head_dim, hidden)
        k = w.matrix("self_attn.k_proj", c.kv_heads * c.head_dim, hidden)
        v = w.matrix("self_attn.v_proj", c.kv_heads * c.head_dim, hidden)
        o = w.matrix("self_attn.o_proj", hidden, c.heads * c.head_dim)
        head_norms = norm("self_attn.q_norm", c.head_dim), norm("self_attn.k_norm", c.head_dim)
        self.heads = Heads(attention, *head_norms, rotation, lambda *_: None)
        self.kv = kernels.group([k, v])
        gate, up = w.matrix("mlp.gate_proj", c.width, hidden), w.matrix("mlp.up_proj", c.width, hidden)
        mlp = GatedMLP(gate, up, w.matrix("mlp.down_proj", hidden, c.width), "silu", lambda *_: None)
        self.attention_conv = GroupedConv(c, w, "attention_conv") if c.conv_taps else None
        self.mlp_conv = GroupedConv(c, w, "mlp_conv") if c.conv_taps else None
        qkv, output = kernels.group([q, k, v]), kernels.group([o])
        self.parts = BlockLayer(
            layer.window,
            layer.causal,
            AttentionBranch(norm("input_layernorm", hidden), qkv, self.heads, output, None),
            None if self.attention_conv is None else self.attention_conv.part,
            FeedForwardBranch(norm("post_attention_layernorm", hidden), mlp, None),
            None if self.mlp_conv is None else self.mlp_conv.part,
        )

    def __call__(self, x: Any, rows: Rows, cache: KVCache, visible: tuple[np.ndarray, np.ndarray]) -> Any:
        attend = lambda h: self._attend(h, rows, cache, visible)
        feed = lambda h: self.kernels.gated_mlp(h, None, self.parts.feed_forward.mlp)
        x = x + self._around(self.attention_conv, self.parts.attention.before, x, rows, attend)
        return x + self._around(self.mlp_conv, self.parts.feed_forward.before, x, rows, feed)

    def _around(self, conv: GroupedConv | None, norm: Norm, x: Any, rows: Rows, sublayer: Callable[[Any], Any]) -> Any:
        """The sublayer between the two sides of its convolution; both kernels come from the sublayer's input."""
        x = self.kernels.norm(x, norm.weight, norm.eps)
        if conv is None:
            return sublayer(x)
        kernel = conv.kernel(x)
        return conv(sublayer(conv(x, kernel, 0, rows)), kernel, 1, rows)

    def _attend(self, x: Any, rows: Rows, cache: KVCache, visible: tuple[np.ndarray, np.ndarray]) -> Any:
        c, norm, kernels = self.heads.config, self.heads.q_norm, self.kernels
        q, k, v = (part.reshape(len(x), -1, c.head_dim) for part in kernels.project(x, None, self.parts.attention.qkv))
        turned = lambda x, norm: kernels.rope(kernels.norm(x, norm.weight, norm.eps), rows, self.heads.rotation)
        cache.append(rows, turned(k, self.heads.k_norm), v)
        out = kernels.attention(
            turned(q, norm), cache.k, cache.v, rows, scale=c.scale, window=None, softcap=None, visible=visible
        )
        return kernels.project(out.reshape(len(x), -1), None, self.parts.attention.o)[0]


class DFlashModel:
    """The drafter's weights. It has no embedding and no head of its own: `embed` and `head` are the target's.

    mask: [H], what the mask rows embed instead of the mask token.
    """

    def __init__(
        self,
        config: DFlashConfig,
        w: Weights,
        embed: Callable[[np.ndarray], Any],
        head: DraftHead,
        context: int,
        mask: Any = None,
    ):
        c = config
        self.config, self.kernels, self.embed, self.head, self.mask = c, w.kernels, embed, head, mask
        rotation = w.kernels.rotary(c.rope, context + c.block)
        fc = w.matrix("fc", c.hidden, len(c.taps) * c.hidden)
        context_norm = Norm(w.vector("hidden_norm", c.hidden), c.eps)
        self.norm = Norm(w.vector("norm", c.hidden), c.eps)
        self.layers = [Layer(c, layer, w.scope(f"layers.{i}."), rotation) for i, layer in enumerate(c.layers)]
        self.reading = Reading(w.kernels.group([fc]), context_norm, [(layer.kv, layer.heads) for layer in self.layers])
        self._whole = w.kernels.block([layer.parts for layer in self.layers], self.norm)
        if c.selector is not None:
            codebook = lambda role: w.values(f"candidate_selector.{role}_codebook", c.vocab, c.selector.rank, suffix="")
            self.predecessor, self.successor = codebook("predecessor"), codebook("successor")
            projection = w.matrix("candidate_selector.hidden_projection", c.selector.rank, c.hidden)
            self.count = min(c.selector.top_k, len(head.ids))
            near = self.count if head.whole is None else min(AGAIN * self.count, len(head.ids))
            self.scoring = Scoring(head.matrix, head.ids, projection, near, head.whole)

    def observe(self, taps: Any, rows: Rows, caches: Sequence[KVCache]) -> None:
        """Writes the keys and values of committed rows; taps [R, n_taps * H]: states there, in config.taps' order."""
        self.kernels.remember(taps, rows, caches, self.reading)

    def block(self, rows: Rows, caches: Sequence[KVCache], since: np.ndarray) -> Any:
        """hidden [R, H] after the final norm of blocks whose first row is the anchor and whose others are masks.

        since: int64 [spans], the oldest context position of each sequence. Masks are known by their place, never by id.
        """
        anchors = [span.start for span in rows.spans]
        ids = np.full(len(rows), self.config.mask_id if self.mask is None else 0)
        ids[anchors] = rows.ids[anchors]
        x = self.embed(ids)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if self.mask is not None:
            x[np.setdiff1d(np.arange(len(rows)), anchors)] = self.mask * self.config.embedding_scale
        if self._whole is not None:
            return self._whole(x, rows, caches, since)
        first = np.concatenate([np.full(len(span), oldest) for span, oldest in zip(rows.spans, since, strict=True)])
        last = np.concatenate([np.full(len(span), rows.positions[span.stop - 1]) for span in rows.spans])
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rows, cache, _visible(layer.layer, rows.positions, first, last))
        return self.kernels.norm(x, self.norm.weight, self.norm.eps)

    def logits(self, hidden: Any) -> Any:
        """float32 [R, outputs of the head's matrix]; a row that is not finite is refused by name."""
        logits = self.kernels.linear(hidden, self.head.matrix)
        logits = logits if self.config.output_multiplier == 1.0 else logits * self.config.output_multiplier
        if self.config.softcap is not None:
            logits = self.kernels.softcap(logits, self.config.softcap)
        _check(self.kernels.finite(logits))
        return logits

    def candidates(self, hidden: Any) -> Candidates:
        """The selector's top-k of each row, ties to the lowest id; a row that is not finite is refused by name."""
        cap = self.config.softcap  # rises like the multiplier, so that the best stay the best
        ids, unary, weight = self.kernels.candidates(hidden, self.scoring, self.count)
        _check(np.isfinite(unary).all(-1))
        unary = unary * np.float32(self.config.output_multiplier)
        return Candidates(ids, unary if cap is None else np.tanh(unary / np.float32(cap)) * np.float32(cap), weight)

    def scores(self, candidates: Candidates, row: int, predecessor: np.ndarray | int) -> np.ndarray:
        """unary[c] + <predecessor codebook * w, successor codebook[c]>, [.., k] for one or several predecessors."""
        weighed = self.predecessor[predecessor] * candidates.weight[row]
        return candidates.unary[row] + weighed @ self.successor[candidates.ids[row]].T

    def walk(self, hidden: Any, anchor: int, position: int, draw: Draw) -> list[int]:
        """Proposals from the mask rows' hidden [n, H], each drawn given the one before it."""
        if self.config.selector is None:
            logits = self.kernels.to_numpy(self.logits(hidden))
            return [draw(position + 1 + i, self.head.ids, row) for i, row in enumerate(logits)]
        candidates, tokens, last = self.candidates(hidden), [], anchor
        for i in range(len(hidden)):
            last = draw(position + 1 + i, candidates.ids[i], self.scores(candidates, i, last))
            tokens.append(last)
        return tokens


def _check(finite: np.ndarray) -> None:
    if not finite.all():
        message = f"the drafter's row {finite.argmin()} of {len(finite)} is not finite"
        raise TurbosparkError("non_finite_draft", message, "its activations overflowed")


def _visible(
    layer: DFlashLayer, positions: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    since, until = first, positions if layer.causal else last
    if layer.window is not None:
        since = np.maximum(since, positions - layer.window + 1)
        until = np.minimum(until, positions + layer.window - 1)
    return since, until
