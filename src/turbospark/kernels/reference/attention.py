"""Attention in NumPy: a row at a time over its own keys, in the order of their positions."""

from __future__ import annotations

import numpy as np

from turbospark.kernels.rows import Rows


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    rows: Rows,
    scale: float,
    window: int | None,
    softcap: float | None,
    visible: tuple[np.ndarray, np.ndarray] | None,
) -> np.ndarray:
    """See Kernels.attention. Keys are gathered by position, so a ring gives the same bits as a full cache."""
    _, kv_heads, capacity, _ = k.shape
    heads = q.shape[1]
    if visible is None:
        first = 0 * rows.positions if window is None else np.maximum(0, rows.positions - window + 1)
        visible = first, rows.positions
    out = np.empty((len(q), heads, v.shape[-1]), np.float32)
    for i, (slot, since, until) in enumerate(zip(rows.slots, *visible, strict=True)):
        seen = np.arange(since, until + 1) % capacity
        keys, values = k[slot][:, seen], v[slot][:, seen]
        queries = q[i].reshape(kv_heads, heads // kv_heads, -1)
        scores = np.matmul(queries, keys.transpose(0, 2, 1)) * np.float32(scale)
        if softcap is not None:
            scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[i] = np.matmul(weights, values).reshape(heads, -1)
    return out
