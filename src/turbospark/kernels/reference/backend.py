"""The NumPy backend's class: small operations here, the larger ones in the files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from turbospark.config.model import MoE, Rope
from turbospark.kernels import rotation
from turbospark.kernels.api import Kernels
from turbospark.kernels.reference import attention, delta, moe
from turbospark.kernels.reference.matrix import Matrix
from turbospark.kernels.rows import Rows
from turbospark.quant.tensor import QTensor

DECODED_BYTES = 3 << 30  # matrices are decoded once while their sum stays below this, then at every use


class ReferenceKernels(Kernels):
    name = "reference"

    def __init__(self, decoded_bytes: int = DECODED_BYTES):
        self.decoded_left = decoded_bytes
        # row products are too small to share: two spinning BLAS threads took ten times as long as one
        self._blas = threadpool_limits(1, "blas")

    def weight(self, tensor: QTensor) -> Matrix:
        needed = 4 * int(np.prod(tensor.shape))
        keep = needed <= self.decoded_left
        if keep:
            self.decoded_left -= needed
        return Matrix(tensor, keep)

    def borrowed(self, tensor: QTensor) -> Matrix:
        return Matrix(tensor, keep=False)

    def vector(self, values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values, np.float32)

    def zeros(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, np.float32)

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts, -1)

    def stack(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    def embed(self, ids: np.ndarray, table: Matrix) -> np.ndarray:
        return table.rows(ids)

    def linear(self, x: np.ndarray, w: Matrix) -> np.ndarray:
        return w.product(x)

    def head_linear(self, x: np.ndarray, w: Matrix) -> np.ndarray:
        heads = w.values()
        return np.stack([np.matmul(heads, row[:, :, None])[:, :, 0] for row in x])

    def norm(self, x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
        y = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
        return y if weight is None else y * weight

    def l2norm(self, x: np.ndarray, eps: float) -> np.ndarray:
        return x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + np.float32(eps))

    def rotary(self, rope: Rope, max_context: int, factors: np.ndarray | None = None) -> rotation.Table:
        return rotation.table(rope, max_context, factors)

    def rope(self, x: np.ndarray, rows: Rows, table: rotation.Table) -> np.ndarray:
        half = table.cos.shape[1]
        cos, sin = table.cos[rows.positions][:, None], table.sin[rows.positions][:, None]
        turned = x.copy()
        first, second = table.pairs(half)
        a, b = x[..., first], x[..., second]
        turned[..., first] = a * cos - b * sin
        turned[..., second] = b * cos + a * sin
        return turned

    def gate(self, gate: np.ndarray, up: np.ndarray, activation: str) -> np.ndarray:
        return moe.ACTIVATIONS[activation](gate) * up

    def sigmoid(self, x: np.ndarray) -> np.ndarray:
        return moe.sigmoid(x)

    def softcap(self, x: np.ndarray, cap: float) -> np.ndarray:
        return np.tanh(x / np.float32(cap)) * np.float32(cap)

    def store(self, rows: Rows, values: np.ndarray, cache: np.ndarray) -> None:
        cache[rows.slots, :, rows.positions % cache.shape[2]] = values

    def attention(self, q, k, v, rows: Rows, *, scale, window, softcap, visible=None) -> np.ndarray:
        return attention.attention(q, k, v, rows, scale, window, softcap, visible)

    def short_conv(self, x: np.ndarray, weight: np.ndarray, cache: Any, rows: Rows) -> np.ndarray:
        return delta.short_conv(x, weight, cache, rows)

    def delta_rule(self, q, k, v, g, beta, cache: Any, rows: Rows) -> np.ndarray:
        return delta.delta_rule(q, k, v, g, beta, cache, rows)

    def delta_gates(self, a, b, a_neg, dt_bias) -> tuple[np.ndarray, np.ndarray]:
        return a_neg * np.logaddexp(np.float32(0), a + dt_bias), moe.sigmoid(b)

    def commit_delta(self, cache: Any, slot: int, count: int) -> None:
        delta.commit(cache, slot, count)

    def route(self, logits: np.ndarray, moe_config: MoE, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return moe.route(logits, moe_config, bias)

    def experts(self, x, ids, weights, store: Any, activation: str, base: np.ndarray | None) -> np.ndarray:
        return moe.experts(x, ids, weights, store, activation, base)
