"""Gated DeltaNet in NumPy: the recurrence step by step, certain rows into the state, uncertain ones onto the tape."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospark.kernels.rows import Rows


def short_conv(x: np.ndarray, weight: np.ndarray, cache: Any, rows: Rows) -> np.ndarray:
    """x [R, C], weight [C, taps] -> silu(conv) [R, C]; cache.window [slots, taps-1, C] holds the last inputs."""
    y = np.empty_like(x)
    past = weight.shape[1] - 1
    for span in rows.spans:
        window = np.concatenate([cache.window[span.slot], x[span.start : span.stop]])
        for i in range(len(span)):
            y[span.start + i] = np.sum(window[i : i + past + 1] * weight.T, axis=0)
        cache.window[span.slot] = window[span.certain : span.certain + past]
        loose = len(span) - span.certain
        cache.taped_inputs[span.slot, :loose] = x[span.start + span.certain : span.stop]
    return y / (1 + np.exp(-y))


def delta_rule(q, k, v, g, beta, cache: Any, rows: Rows) -> np.ndarray:
    """See Kernels.delta_rule; cache.state [slots, Hv, dk, dv]."""
    out = np.empty_like(v)
    for span in rows.spans:
        state = cache.state[span.slot]
        for i in range(span.start, span.stop):
            loose = i - span.start - span.certain
            if loose == 0:
                state = state.copy()  # from here on the committed state is left as it is
            decayed = state * np.exp(g[i])[:, None, None]
            u = beta[i][:, None] * (v[i] - np.matmul(k[i][:, None, :], decayed)[:, 0])
            state[...] = decayed + k[i][:, :, None] * u[:, None, :]
            out[i] = np.matmul(q[i][:, None, :], state)[:, 0]
            if loose >= 0:
                cache.taped_k[span.slot, loose], cache.taped_u[span.slot, loose] = k[i], u
                cache.taped_g[span.slot, loose] = g[i]
    return out


def commit(cache: Any, slot: int, count: int) -> None:
    """Replays `count` taped rows with the step's own arithmetic: the state is bit-equal to having stepped."""
    state = cache.state[slot]
    for i in range(count):
        decayed = state * np.exp(cache.taped_g[slot, i])[:, None, None]
        state[...] = decayed + cache.taped_k[slot, i][:, :, None] * cache.taped_u[slot, i][:, None, :]
    window = np.concatenate([cache.window[slot], cache.taped_inputs[slot, :count]])
    cache.window[slot] = window[count:]
