"""Rotary frequencies and their scaling kinds, as a table of cosines and sines by position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turbospark.config.model import Rope, RopeScaling
from turbospark.errors import TurbosparkError

BLOCK = 4096  # positions at once: the float64 angles of a long context would be several times its table


@dataclass(frozen=True)
class Table:
    """cos, sin float32 [positions, dim/2]."""

    cos: np.ndarray
    sin: np.ndarray
    interleaved: bool

    def pairs(self, half: int) -> tuple[slice, slice]:
        """Where the first and second elements of the rotated pairs lie in a head."""
        if self.interleaved:
            return slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        return slice(0, half), slice(half, 2 * half)


def table(rope: Rope, positions: int, factors: np.ndarray | None = None) -> Table:
    """The table for positions 0 .. positions - 1; `factors` [dim/2] divide the frequencies (GGUF's rope_freqs)."""
    frequencies = inverse_frequencies(rope)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    magnitude = rope.scaling.attention_factor if rope.scaling else 1.0
    cos, sin = (np.empty((positions, len(frequencies)), np.float32) for _ in range(2))
    for start in range(0, positions, BLOCK):
        part = slice(start, min(start + BLOCK, positions))
        angles = np.outer(np.arange(part.start, part.stop, dtype=np.float64), frequencies)
        cos[part], sin[part] = np.cos(angles) * magnitude, np.sin(angles) * magnitude
    return Table(cos, sin, rope.interleaved)


def inverse_frequencies(rope: Rope) -> np.ndarray:
    """Radians a position of each pair, float64 [dim/2]."""
    plain = rope.theta ** -(np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    scaling = rope.scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    if scaling.kind == "yarn":
        return _yarn(plain, rope, scaling)
    raise TurbosparkError("unsupported_rope", f"rope scaling kind {scaling.kind!r}; known: linear, llama3, yarn")


def _llama3(plain: np.ndarray, s: RopeScaling) -> np.ndarray:
    # waves shorter than original/high keep their pace, longer than original/low slow down, a ramp between
    turns = s.original_context * plain / (2 * math.pi)
    keep = np.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0)
    return plain * keep + plain / s.factor * (1 - keep)


def _yarn(plain: np.ndarray, rope: Rope, s: RopeScaling) -> np.ndarray:
    # pairs that turn more than beta_fast times in the trained context extrapolate, fewer than beta_slow interpolate
    pair = lambda turns: rope.dim * math.log(s.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
    low, high = max(math.floor(pair(s.beta_fast)), 0), min(math.ceil(pair(s.beta_slow)), rope.dim - 1)
    ramp = np.clip((np.arange(rope.dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain / s.factor * ramp + plain * (1 - ramp)
