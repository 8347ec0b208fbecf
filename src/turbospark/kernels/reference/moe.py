"""Activations, routing and experts in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospark.config.model import MoE


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


def route(logits: np.ndarray, moe: MoE, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """See Kernels.route. The bias decides who is chosen and never how much they weigh."""
    if moe.scoring == "softmax":
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
    else:
        scores = sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if moe.groups > 1:
        choice = _keep_groups(choice, moe)
    ids = np.argsort(-choice, axis=-1, kind="stable")[:, : moe.used]
    weights = np.take_along_axis(scores, ids, -1)
    if moe.renormalise:
        # the guard is DeepSeek-V3's: experts that all score zero must not divide by it
        weights = weights / (weights.sum(-1, keepdims=True) + np.float32(1e-20))
    return ids, weights * np.float32(moe.scale)


def _keep_groups(choice: np.ndarray, moe: MoE) -> np.ndarray:
    """Experts outside the best groups can not be chosen."""
    grouped = choice.reshape(len(choice), moe.groups, -1)
    if moe.group_rank == "max":
        rank = grouped.max(-1)
    else:
        rank = np.sort(grouped, axis=-1)[..., -2:].sum(-1)
    kept = np.argsort(-rank, axis=-1, kind="stable")[:, : moe.groups_used]
    allowed = np.zeros(rank.shape, bool)
    np.put_along_axis(allowed, kept, True, -1)
    return np.where(allowed[..., None], grouped, -np.inf).reshape(choice.shape)


def experts(
    x: np.ndarray, ids: np.ndarray, weights: np.ndarray, store: Any, activation: str, base: np.ndarray | None
) -> np.ndarray:
    """See Kernels.experts. The sum runs in routing order, from the base (the shared expert)."""
    parts = np.empty((*ids.shape, x.shape[1]), np.float32)
    for group in store.arrivals(ids):
        for expert, (gate, up, down) in group.items():
            chose = ids == expert
            rows = x[chose.any(1)]
            hidden = ACTIVATIONS[activation](gate.product(rows)) * up.product(rows)
            parts[chose] = down.product(hidden)
    out = np.zeros_like(x) if base is None else base.copy()
    for j in range(ids.shape[1]):
        out += weights[:, j : j + 1] * parts[:, j]
    return out
