"""One signature per operation. A model is written once against these; a backend is a class that implements them.

Shapes: R rows (tokens), H hidden, N outputs, d head width. Every operation treats a row by itself: its result does not
depend on how many rows came along, nor on which. Arrays are the backend's own (NumPy or torch).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turbospark.config.model import MoE, Rope
from turbospark.kernels.parts import (
    AttentionBranch,
    BlockLayer,
    Delta,
    GatedMLP,
    Heads,
    Latents,
    Norm,
    Reading,
    Scoring,
)
from turbospark.kernels.rows import Rows
from turbospark.quant.tensor import QTensor

Array = Any


# (x [R, H], rows, a cache for each layer, taps) -> the stream after the last layer, and after each tapped one
Trunk = Callable[[Array, Rows, Sequence[Any], Sequence[int]], tuple[Array, dict[int, Array]]]
# (x [R, H], rows, a cache for each layer, the first position that each span may see, int64 [spans]) -> [R, H]
Block = Callable[[Array, Rows, Sequence[Any], np.ndarray], Array]
L2_EPS = 1e-6  # inside the root of a delta rule's q and k norms; fixed by the family, whatever its RMS norms use


class Kernels(ABC):
    """The operations of a forward. `name` is what the user calls the backend.

    The abstract ones are enough to run every model; the sublayers at the end are composed of them, and a backend
    overrides those where fusing saves a pass over memory or a crossing from Python.
    """

    name: str

    # weights and memory

    @abstractmethod
    def weight(self, tensor: QTensor) -> Any:
        """A matrix as `linear` wants it, still in its stored format."""

    def borrowed(self, tensor: QTensor) -> Any:
        """The same over memory that will hold another matrix later: nothing made of it may be kept."""
        return self.weight(tensor)

    @property
    def scratch_bytes(self) -> int:
        """What it keeps from step to step for intermediates."""
        return 0

    @abstractmethod
    def vector(self, values: np.ndarray) -> Array:
        """A small float32 array (norms, biases) on the device."""

    @abstractmethod
    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Cache memory, float32 zeros; untouched pages should cost nothing where the system allows it."""

    def cached(self, shape: tuple[int, ...]) -> Array:
        """Memory for keys or values [slots, heads, capacity, width], zeros; a backend chooses its number format."""
        return self.zeros(shape)

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray:
        """float32 on the host."""

    @abstractmethod
    def join(self, parts: Sequence[Array]) -> Array:
        """[R, n] arrays side by side."""

    @abstractmethod
    def stack(self, parts: Sequence[Array]) -> Array:
        """[R, n] arrays below each other."""

    # rows of the residual stream

    @abstractmethod
    def embed(self, ids: np.ndarray, table: Any) -> Array:
        """[R] ids -> [R, H], float32."""

    @abstractmethod
    def linear(self, x: Array, w: Any) -> Array:
        """x [R, K] by w [N, K] -> [R, N]."""

    @abstractmethod
    def head_linear(self, x: Array, w: Any) -> Array:
        """One matrix a head: x [R, heads, K] by w [heads, N, K] -> [R, heads, N]."""

    @abstractmethod
    def norm(self, x: Array, weight: Array | None, eps: float) -> Array:
        """RMS norm over the last axis, times weight."""

    @abstractmethod
    def l2norm(self, x: Array, eps: float) -> Array:
        """x / sqrt(sum(x^2) + eps) over the last axis."""

    @abstractmethod
    def rotary(self, rope: Rope, max_context: int, factors: np.ndarray | None = None) -> Any:
        """The rotation table of a rope for positions below max_context. factors [dim/2] divide the frequencies."""

    @abstractmethod
    def rope(self, x: Array, rows: Rows, table: Any) -> Array:
        """Rotates the first `dim` elements of x [R, heads, d] by each row's position."""

    @abstractmethod
    def gate(self, gate: Array, up: Array, activation: str) -> Array:
        """act(gate) * up."""

    @abstractmethod
    def sigmoid(self, x: Array) -> Array: ...

    @abstractmethod
    def softcap(self, x: Array, cap: float) -> Array:
        """tanh(x / cap) * cap."""

    # attention

    @abstractmethod
    def store(self, rows: Rows, values: Array, cache: Array) -> None:
        """Writes values [R, kv, d] at cache[slot, :, position % capacity]; cache [slots, kv, capacity, d]."""

    @abstractmethod
    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        rows: Rows,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        visible: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Array:
        """q [R, heads, d] over caches k [slots, kv, capacity, d] and v [slots, kv, capacity, dv] -> [R, heads, dv].

        A row at position p sees the keys of its slot at positions (p - window, p], or, for a drafter's block, from
        visible[0] to visible[1] inclusive, both int [R]. Heads are grouped: query head h reads kv head
        h // (heads / kv). v may be a view of k (latent attention).
        """

    # Gated DeltaNet; see cache/recurrent.py for the arrays

    @abstractmethod
    def short_conv(self, x: Array, weight: Array, cache: Any, rows: Rows) -> Array:
        """silu of the depthwise causal convolution of x [R, C] with weight [C, taps], windows kept in the cache."""

    @abstractmethod
    def delta_rule(self, q: Array, k: Array, v: Array, g: Array, beta: Array, cache: Any, rows: Rows) -> Array:
        """The gated delta rule: q, k [R, Hv, dk], v [R, Hv, dv], g (log decay) and beta [R, Hv] -> [R, Hv, dv]."""

    @abstractmethod
    def delta_gates(self, a: Array, b: Array, a_neg: Array, dt_bias: Array) -> tuple[Array, Array]:
        """g = a_neg * softplus(a + dt_bias) and beta = sigmoid(b), both [R, Hv]."""

    @abstractmethod
    def commit_delta(self, cache: Any, slot: int, count: int) -> None:
        """Applies the first `count` taped rows of a slot to its state and convolution window."""

    # mixture of experts

    @abstractmethod
    def route(self, logits: Array, moe: MoE, bias: Array | None) -> tuple[Array, Array]:
        """Router logits [R, experts] -> expert ids [R, used], best first (ties to the lowest id), and weights."""

    @abstractmethod
    def experts(self, x: Array, ids: Array, weights: Array, store: Any, activation: str, base: Array | None) -> Array:
        """base + sum of weight * expert(x) in routing order: x [R, H], ids and weights [R, used] -> [R, H]."""

    def trunk(self, layers: Sequence[Sequence[Any]]) -> Trunk | None:
        """All layers as one call, where a backend has one for the branches these layers are made of; else None.

        A branch is an AttentionBranch or a FeedForwardBranch; a layer that has others is given as none.
        """
        return None

    # drafters

    def block(self, layers: Sequence[BlockLayer], norm: Norm) -> Block | None:
        """All layers of a drafter's block and the norm behind them as one call, where a backend has one; else None."""
        return None

    def read(self, taps: Array, reading: Reading) -> Array:
        """The rows [R, H] that a drafter's keys and values are made of, from the target's states side by side."""
        (x,) = self.project(taps, None, reading.fc)
        return self.norm(x, reading.norm.weight, reading.norm.eps)

    def remember(self, taps: Array, rows: Rows, caches: Sequence[Any], reading: Reading) -> None:
        """Writes each layer's keys, normed and rotated, and values of what was read to its cache."""
        x = self.read(taps, reading)
        for (group, heads), cache in zip(reading.layers, caches, strict=True):
            k, v = (part.reshape(len(x), heads.config.kv_heads, -1) for part in self.project(x, None, group))
            if heads.k_norm is not None:
                k = self.norm(k, heads.k_norm.weight, heads.k_norm.eps)
            cache.append(rows, k if heads.config.rope is None else self.rope(k, rows, heads.rotation), v)

    def candidates(self, x: Array, scoring: Scoring, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each row of x [R, H] the `count` best outputs of the head, best first, of equal ones the lowest first:
        int64 [R, count], their scores, and the products of the projection [R, rank], all on the host.

        A row with scores that are not finite has some that are not among those returned.
        """
        scores = self.to_numpy(self.linear(x, scoring.coarse))
        good = self.finite(scores)[:, None]
        near = self.best(np.where(good, scores, np.float32(0)), scoring.near)
        ids = scoring.ids[near]
        if scoring.head is None:
            scores = np.take_along_axis(scores, near, -1)
        else:
            rows = zip(self.to_numpy(x), ids, strict=True)
            scores = np.stack([self.to_numpy(self.embed(of, scoring.head)) @ row for row, of in rows])
        order = np.lexsort((ids, -scores))[:, :count]
        scores = np.where(good, np.take_along_axis(scores, order, -1), np.float32(np.nan))
        return np.take_along_axis(ids, order, -1), scores, self.to_numpy(self.linear(x, scoring.projection))

    def finite(self, x: Array) -> np.ndarray:
        """Which rows of x [R, n] hold nothing but finite numbers, bool [R] on the host."""
        return np.isfinite(self.to_numpy(x)).all(-1)

    def best(self, x: Array, count: int) -> np.ndarray:
        """Indices of the largest values of each row of x [R, n], best first, of equal ones the lowest first: [R, count]
        on the host. No value may be NaN."""
        found = []
        for row in self.to_numpy(x):
            border = np.partition(row, len(row) - count)[len(row) - count]
            able = np.flatnonzero(row >= border)
            found.append(able[np.argsort(-row[able], kind="stable")[:count]])
        return np.stack(found)

    # sublayers: project, then attend, latent or gated_delta, then merge; attention_branch; or feed_forward

    def group(self, weights: Sequence[Any], biases: Sequence[Array | None] = ()) -> Any:
        """Matrices that read the same rows, with a bias or None each, as `project` wants them."""
        return tuple(zip(weights, biases or [None] * len(weights), strict=True))

    def project(self, x: Array, norm: Norm | None, group: Any) -> list[Array]:
        """norm(x) by every matrix of a group: x [R, K] -> [R, N] each."""
        y = x if norm is None else self.norm(x, norm.weight, norm.eps)
        return [self.linear(y, w) if bias is None else self.linear(y, w) + bias for w, bias in group]

    def merge(self, x: Array, y: Array, group: Any, norm: Norm | None = None) -> Array:
        """The stream x [R, H] plus norm(y by the one matrix of a group); y [R, K]."""
        (out,) = self.project(y, None, group)
        return x + (out if norm is None else self.norm(out, norm.weight, norm.eps))

    def attention_branch(self, x: Array, rows: Rows, cache: Any, branch: AttentionBranch) -> Array:
        """The stream x [R, H] plus after(o(attend(q, k, v of before(x))))."""
        q, k, v = self.project(x, branch.before, branch.qkv)
        mix = self.attend(q, k, v, rows, cache, branch.heads)
        return self.merge(x, mix, branch.o, branch.after)

    def attend(self, q: Array, k: Array, v: Array, rows: Rows, cache: Any, heads: Heads) -> Array:
        """Head norms, rotation, append, attention and output gate: projected rows -> [R, heads * d].

        q [R, heads * d], or [R, heads * 2d] with each head's gate behind its query; k, v [R, kv * d].
        """
        c, gate = heads.config, None
        if c.gated:
            both = q.reshape(len(q), c.heads, 2, c.head_dim)
            q, gate = both[:, :, 0], both[:, :, 1].reshape(len(q), -1)
        q, k = q.reshape(len(q), c.heads, c.head_dim), k.reshape(len(k), c.kv_heads, c.head_dim)
        if heads.q_norm is not None and heads.k_norm is not None:
            q, k = (
                self.norm(q, heads.q_norm.weight, heads.q_norm.eps),
                self.norm(k, heads.k_norm.weight, heads.k_norm.eps),
            )
        if c.rope is not None:
            q, k = self.rope(q, rows, heads.rotation), self.rope(k, rows, heads.rotation)
        heads.trace("q", q)
        heads.trace("k", k)
        cache.append(rows, k, v.reshape(len(v), c.kv_heads, c.head_dim))
        out = self.attention(q, cache.k, cache.v, rows, scale=c.scale, window=c.window, softcap=c.softcap)
        out = out.reshape(len(out), -1)
        out = out if gate is None else out * self.sigmoid(gate)
        heads.trace("attn_mix", out)
        return out

    def latent(self, q: Array, row: Array, rows: Rows, cache: Any, latents: Latents) -> Array:
        """Absorbed latent attention: q [R, heads * (nope + rope)], row [R, latent + rope] -> [R, heads * value].

        The cache gets one row a token: the normed latent, the rotated key. What a head's keys and values would be is
        never formed: k_up turns the query into the latent's space, v_up the mixture of latents out of it.
        """
        c, rope = latents.config, latents.config.rope.dim
        q = q.reshape(len(q), c.heads, c.nope_dim + rope)
        query, key = self.zeros((len(q), c.heads, c.latent + rope)), self.zeros((len(q), 1, c.latent + rope))
        query[..., : c.latent] = self.head_linear(q[..., : c.nope_dim], latents.k_up)
        query[..., c.latent :] = self.rope(q[..., c.nope_dim :], rows, latents.rotation)
        key[:, 0, : c.latent] = self.norm(row[:, : c.latent], latents.norm.weight, latents.norm.eps)
        key[..., c.latent :] = self.rope(row[:, None, c.latent :], rows, latents.rotation)
        latents.trace("q", query)
        latents.trace("k", key)
        cache.append(rows, key)
        mix = self.attention(query, cache.k, cache.v, rows, scale=c.scale, window=None, softcap=None)
        out = self.head_linear(mix, latents.v_up).reshape(len(q), -1)
        latents.trace("attn_mix", out)
        return out

    def gated_delta(self, qkv: Array, z: Array, a: Array, b: Array, rows: Rows, cache: Any, delta: Delta) -> Array:
        """Convolution, gates, delta rule and gated norm: qkv [R, channels], z [R, Hv * dv], a, b [R, Hv] -> like z."""
        c, keys = delta.config, delta.config.key_heads * delta.config.key_dim
        mixed = self.short_conv(qkv, delta.conv, cache, rows)
        delta.trace("conv", mixed)
        shared = lambda part: self.l2norm(part.reshape(len(part), c.key_heads, c.key_dim), L2_EPS)[:, delta.key_head]
        q, k = shared(mixed[:, :keys]) * c.key_dim**-0.5, shared(mixed[:, keys : 2 * keys])
        v = mixed[:, 2 * keys :].reshape(len(qkv), c.value_heads, c.value_dim)
        g, beta = self.delta_gates(a, b, delta.a_neg, delta.dt_bias)
        delta.trace("g", g)
        delta.trace("beta", beta)
        out = self.delta_rule(q, k, v, g, beta, cache, rows)
        delta.trace("delta_out", out)
        normed = self.norm(out, delta.norm.weight, delta.norm.eps)
        return self.gate(z.reshape(v.shape), normed, "silu").reshape(len(qkv), -1)

    def gated_mlp(self, x: Array, norm: Norm | None, mlp: GatedMLP) -> Array:
        """down(act(gate n) * up n) of n = norm(x): [R, H] -> [R, H]."""
        n = x if norm is None else self.norm(x, norm.weight, norm.eps)
        return self.linear(self.gate(self.linear(n, mlp.gate), self.linear(n, mlp.up), mlp.activation), mlp.down)

    def feed_forward(self, x: Array, norm: Norm, mlp: GatedMLP, after: Norm | None = None) -> Array:
        """The stream x [R, H] plus after(gated_mlp(norm(x)))."""
        out = self.gated_mlp(x, norm, mlp)
        return x + (out if after is None else self.norm(out, after.weight, after.eps))
