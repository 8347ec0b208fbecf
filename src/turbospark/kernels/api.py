"""One signature per operation. A model is written once against these; a backend is a class that implements them.

Shapes: R rows (tokens), H hidden, N outputs, d head width. Every operation treats a row by itself: its result does not
depend on how many rows came along, nor on which. Arrays are the backend's own (NumPy or torch).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from turbospark.config.model import MoE, Rope
from turbospark.kernels.rows import Rows
from turbospark.quant.tensor import QTensor

Array = Any


class Kernels(ABC):
    """The operations of a forward. `name` is what the user calls the backend."""

    name: str

    # weights and memory

    @abstractmethod
    def weight(self, tensor: QTensor) -> Any:
        """A matrix as `linear` wants it, still in its stored format."""

    @abstractmethod
    def vector(self, values: np.ndarray) -> Array:
        """A small float32 array (norms, biases) on the device."""

    @abstractmethod
    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Cache memory, float32 zeros; untouched pages should cost nothing where the system allows it."""

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray:
        """float32 on the host."""

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
    ) -> Array:
        """q [R, heads, d] over caches k [slots, kv, capacity, d] and v [slots, kv, capacity, dv] -> [R, heads, dv].

        A row at position p sees the keys of its slot at positions (p - window, p]. Heads are grouped: query head h
        reads kv head h // (heads / kv). v may be a view of k (latent attention).
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
