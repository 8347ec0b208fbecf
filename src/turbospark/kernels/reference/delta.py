"""Gated DeltaNet in NumPy: the recurrence step by step, certain rows into the state, uncertain ones onto the tape."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospark.kernels.reference.moe import silu
from turbospark.kernels.rows import Rows


def short_conv(x: np.ndarray, weight: np.ndarray, cache: Any, rows: Rows) -> np.ndarray:
    """x [R, C], weight [C, taps] -> silu(conv) [R, C]; cache.window [slots, taps-1, C] holds the last inputs."""
    y = np.zeros_like(x)
    taps = weight.shape[1]
    for span in rows.spans:
        inputs = np.concatenate([cache.window[span.slot], x[span.start : span.stop]])
        for tap in range(taps):
            y[span.start : span.stop] += inputs[tap : tap + len(span)] * weight[:, tap]
        cache.window[span.slot] = inputs[span.certain : span.certain + taps - 1]
        loose = len(span) - span.certain
        cache.taped_inputs[span.slot, :loose] = x[span.start + span.certain : span.stop]
    return silu(y)


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, cache: Any, rows: Rows
) -> np.ndarray:
    """See Kernels.delta_rule; cache.state [slots, Hv, dk, dv]."""
    out = np.empty_like(v)
    decay = np.exp(g)
    for span in rows.spans:
        state = cache.state[span.slot]
        for i in range(span.start, span.stop):
            loose = i - span.start - span.certain
            if loose == 0:
                state = state.copy()  # from here on the committed state is left as it is
            decayed = state * decay[i][:, None, None]
            u = beta[i][:, None] * (v[i] - np.matmul(k[i][:, None, :], decayed)[:, 0])
            np.add(decayed, k[i][:, :, None] * u[:, None, :], out=state)
            out[i] = np.matmul(q[i][:, None, :], state)[:, 0]
            if loose >= 0:
                cache.taped_k[span.slot, loose], cache.taped_u[span.slot, loose] = k[i], u
                cache.taped_decay[span.slot, loose] = decay[i]
    return out


def commit(cache: Any, slot: int, count: int) -> None:
    """Replays `count` taped rows with the step's own arithmetic: the state is bit-equal to having stepped."""
    state = cache.state[slot]
    for i in range(count):
        decayed = state * cache.taped_decay[slot, i][:, None, None]
        np.add(decayed, cache.taped_k[slot, i][:, :, None] * cache.taped_u[slot, i][:, None, :], out=state)
    cache.window[slot] = np.concatenate([cache.window[slot], cache.taped_inputs[slot, :count]])[count:]
