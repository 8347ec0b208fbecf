"""Noise without a generator: a pure function of (seed, position, token id).

Philox4x32-10 from Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import numpy as np

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_CHUNK = 8192  # ids at once: the working set of all rounds stays in the second-level cache


def philox4x32(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Ten rounds. Counter and result: four words as uint64 arrays that broadcast, entries below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (p1 >> _SHIFT) ^ (c1 ^ np.uint64(k0))
        c2 = (p0 >> _SHIFT) ^ (c3 ^ np.uint64(k1))
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """float64 [n] strictly inside (0, 1): odd multiples of 2^-53. seed and position < 2^64, ids < 2^32."""
    key = seed & 0xFFFFFFFF, seed >> 32
    # Arrays of one entry, since NumPy scalars warn when a product wraps.
    low, high = (np.array([word], np.uint64) for word in (position & 0xFFFFFFFF, position >> 32))
    stream = np.zeros(1, np.uint64)
    w0, w1, _, _ = philox4x32((ids.astype(np.uint64), low, high, stream), key)
    bits = ((w0 >> np.uint64(6)) << np.uint64(26)) | (w1 >> np.uint64(6))
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def gumbel(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise of each id at this position, float64 [n]; no value depends on the other ids."""
    ids = np.asarray(ids)
    out = np.empty(len(ids), np.float64)
    for start in range(0, len(ids), _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = -np.log(-np.log(uniform(seed, position, ids[part])))
    return out
