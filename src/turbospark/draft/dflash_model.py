"""DFlash and DFlash2 as mathematics: context keys from tapped states, a block forward, and the candidate selector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospark.cache.kv import KVCache
from turbospark.draft.dflash_config import DFlashConfig, DFlashLayer
from turbospark.errors import TurbosparkError
from turbospark.kernels.parts import Norm
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
        self.kernels, self.shape, self.group = w.kernels, (2, config.conv_taps, groups), config.conv_group
        self.base = w.vector(f"{name}.base_kernel", 2, config.conv_taps, config.hidden, suffix="")
        self.projection = w.matrix(f"{name}.kernel_projection", 2 * config.conv_taps * groups, config.hidden)

    def kernel(self, x: Any) -> Any:
        """d [R, 2, taps, G] of rows x [R, H]."""
        return self.kernels.linear(x, self.projection).reshape(len(x), *self.shape)

    def __call__(self, x: Any, kernel: Any, side: int, rows: Rows) -> Any:
        inside = np.concatenate([np.arange(len(span)) for span in rows.spans])
        y = 0 * x
        for t in range(self.shape[1]):
            earlier = x[np.maximum(np.arange(len(x)) - t, 0)] * self.kernels.vector(inside >= t)[:, None]
            spread = self.base[side, t] + kernel[:, side, t].repeat(self.group, -1)
            y = y + spread * earlier
        return y


class Layer:
    """One drafter layer over the rows of a block; the context is in the cache."""

    def __init__(self, config: DFlashConfig, layer: DFlashLayer, w: Weights, rotation: Any):
        c, hidden = config, config.hidden
        self.config, self.layer, self.kernels, self.rotation = config, layer, w.kernels, rotation
        norm = lambda name, n: Norm(w.vector(name, n), c.eps)
        self.before_attention, self.before_mlp = (
            norm("input_layernorm", hidden),
            norm("post_attention_layernorm", hidden),
        )
        self.q = w.matrix("self_attn.q_proj", c.heads * c.head_dim, hidden)
        self.k = w.matrix("self_attn.k_proj", c.kv_heads * c.head_dim, hidden)
        self.v = w.matrix("self_attn.v_proj", c.kv_heads * c.head_dim, hidden)
        self.o = w.matrix("self_attn.o_proj", hidden, c.heads * c.head_dim)
        self.q_norm, self.k_norm = norm("self_attn.q_norm", c.head_dim), norm("self_attn.k_norm", c.head_dim)
        self.gate, self.up = w.matrix("mlp.gate_proj", c.width, hidden), w.matrix("mlp.up_proj", c.width, hidden)
        self.down = w.matrix("mlp.down_proj", hidden, c.width)
        self.attention_conv = GroupedConv(c, w, "attention_conv") if c.conv_taps else None
        self.mlp_conv = GroupedConv(c, w, "mlp_conv") if c.conv_taps else None

    def keys_values(self, x: Any, rows: Rows) -> tuple[Any, Any]:
        """k (normed and rotated) and v [R, kv, d] of context or block rows."""
        k = self._heads(self.kernels.linear(x, self.k), self.config.kv_heads)
        k = self.kernels.rope(self.kernels.norm(k, self.k_norm.weight, self.k_norm.eps), rows, self.rotation)
        return k, self._heads(self.kernels.linear(x, self.v), self.config.kv_heads)

    def __call__(self, x: Any, rows: Rows, cache: KVCache, visible: tuple[np.ndarray, np.ndarray]) -> Any:
        normed = self.kernels.norm(x, self.before_attention.weight, self.before_attention.eps)
        x = x + self._around(self.attention_conv, normed, rows, lambda h: self._attend(h, rows, cache, visible))
        normed = self.kernels.norm(x, self.before_mlp.weight, self.before_mlp.eps)
        return x + self._around(self.mlp_conv, normed, rows, self._mlp)

    def _around(self, conv: GroupedConv | None, x: Any, rows: Rows, sublayer: Callable[[Any], Any]) -> Any:
        """The sublayer between the two sides of its convolution; both kernels come from the sublayer's input."""
        if conv is None:
            return sublayer(x)
        kernel = conv.kernel(x)
        return conv(sublayer(conv(x, kernel, 0, rows)), kernel, 1, rows)

    def _attend(self, x: Any, rows: Rows, cache: KVCache, visible: tuple[np.ndarray, np.ndarray]) -> Any:
        c, kernels = self.config, self.kernels
        q = kernels.norm(self._heads(kernels.linear(x, self.q), c.heads), self.q_norm.weight, self.q_norm.eps)
        cache.append(rows, *self.keys_values(x, rows))
        out = kernels.attention(
            kernels.rope(q, rows, self.rotation),
            cache.k,
            cache.v,
            rows,
            scale=c.head_dim**-0.5,
            window=None,
            softcap=None,
            visible=visible,
        )
        return kernels.linear(out.reshape(len(x), -1), self.o)

    def _mlp(self, x: Any) -> Any:
        linear = self.kernels.linear
        return linear(self.kernels.gate(linear(x, self.gate), linear(x, self.up), "silu"), self.down)

    def _heads(self, x: Any, heads: int) -> Any:
        return x.reshape(len(x), heads, self.config.head_dim)


class DFlashModel:
    """The drafter's weights. It has no embedding and no head of its own: `embed` and `head` are the target's.

    ids: the target's id of each of the head's rows, int [rows], where those are a subset. mask: [H], what the mask rows
    embed instead of the mask token.
    """

    def __init__(
        self,
        config: DFlashConfig,
        w: Weights,
        embed: Callable[[np.ndarray], Any],
        head: Any,
        context: int,
        ids: np.ndarray | None = None,
        mask: Any = None,
    ):
        c = config
        self.config, self.kernels, self.embed, self.head, self.mask = c, w.kernels, embed, head, mask
        self.ids = np.arange(c.vocab) if ids is None else ids
        rotation = w.kernels.rotary(c.rope, context + c.block)
        self.fc = w.matrix("fc", c.hidden, len(c.taps) * c.hidden)
        self.context_norm = Norm(w.vector("hidden_norm", c.hidden), c.eps)
        self.norm = Norm(w.vector("norm", c.hidden), c.eps)
        self.layers = [Layer(c, layer, w.scope(f"layers.{i}."), rotation) for i, layer in enumerate(c.layers)]
        if c.selector is not None:
            codebook = lambda role: w.values(f"candidate_selector.{role}_codebook", c.vocab, c.selector.rank, suffix="")
            self.predecessor, self.successor = codebook("predecessor"), codebook("successor")
            self.projection = w.matrix("candidate_selector.hidden_projection", c.selector.rank, c.hidden)

    def context(self, taps: Any) -> Any:
        """Tapped states [R, n_taps * H], in the order of config.taps -> the rows that keys and values are made of."""
        return self.kernels.norm(self.kernels.linear(taps, self.fc), self.context_norm.weight, self.context_norm.eps)

    def observe(self, taps: Any, rows: Rows, caches: Sequence[KVCache]) -> None:
        """Writes the context keys and values of committed rows at their positions."""
        context = self.context(taps)
        for layer, cache in zip(self.layers, caches, strict=True):
            cache.append(rows, *layer.keys_values(context, rows))

    def block(self, rows: Rows, caches: Sequence[KVCache], first: np.ndarray) -> Any:
        """hidden [R, H] after the final norm of blocks whose first row is the anchor and whose others are masks.

        first: int [R], the oldest context position of each row's sequence. Masks are known by their place, never by id.
        """
        anchors = np.array([span.start for span in rows.spans])
        ids = np.full(len(rows), self.config.mask_id if self.mask is None else 0)
        ids[anchors] = rows.ids[anchors]
        x = self.embed(ids) * self.config.embedding_scale
        if self.mask is not None:
            x[np.setdiff1d(np.arange(len(rows)), anchors)] = self.mask * self.config.embedding_scale
        last = np.concatenate([np.repeat(rows.positions[s.stop - 1], len(s)) for s in rows.spans])
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rows, cache, _visible(layer.layer, rows.positions, first, last))
        return self.kernels.norm(x, self.norm.weight, self.norm.eps)

    def logits(self, hidden: Any) -> np.ndarray:
        """float32 [R, rows of the head] by the target's head; a row that is not finite is refused by name."""
        logits = self.kernels.linear(hidden, self.head)
        logits = logits if self.config.output_multiplier == 1.0 else logits * self.config.output_multiplier
        if self.config.softcap is not None:
            logits = self.kernels.softcap(logits, self.config.softcap)
        values = self.kernels.to_numpy(logits)
        bad = np.flatnonzero(~np.isfinite(values).all(-1))
        if len(bad):
            raise TurbosparkError(
                "non_finite_draft",
                f"the drafter's row {bad[0]} of {len(values)} is not finite",
                "its activations overflowed",
            )
        return values

    def candidates(self, hidden: Any, logits: np.ndarray) -> Candidates:
        """The selector's top-k of each row, ties to the lowest id."""
        k = min(self.config.selector.top_k if self.config.selector else 1, logits.shape[1])
        best = np.stack([_best(row, k) for row in logits])
        weight = self.kernels.to_numpy(self.kernels.linear(hidden, self.projection))
        return Candidates(self.ids[best], np.take_along_axis(logits, best, -1), weight)

    def scores(self, candidates: Candidates, row: int, predecessor: np.ndarray | int) -> np.ndarray:
        """unary[c] + <predecessor codebook * w, successor codebook[c]>, [.., k] for one or several predecessors."""
        weighed = self.predecessor[predecessor] * candidates.weight[row]
        return candidates.unary[row] + weighed @ self.successor[candidates.ids[row]].T

    def walk(self, hidden: Any, anchor: int, position: int, draw: Draw) -> list[int]:
        """Proposals from the mask rows' hidden [n, H], each drawn given the one before it."""
        logits = self.logits(hidden)
        if self.config.selector is None:
            return [draw(position + 1 + i, self.ids, row) for i, row in enumerate(logits)]
        candidates, tokens, last = self.candidates(hidden, logits), [], anchor
        for i in range(len(logits)):
            last = draw(position + 1 + i, candidates.ids[i], self.scores(candidates, i, last))
            tokens.append(last)
        return tokens


def _best(row: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest values, best first, of equal ones the lowest first."""
    border = np.partition(row, len(row) - k)[len(row) - k]
    able = np.flatnonzero(row >= border)
    return able[np.argsort(-row[able], kind="stable")[:k]]


def _visible(
    layer: DFlashLayer, positions: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    since, until = first, positions if layer.causal else last
    if layer.window is not None:
        since = np.maximum(since, positions - layer.window + 1)
        until = np.minimum(until, positions + layer.window - 1)
    return since, until
