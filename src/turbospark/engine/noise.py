"""Noise without a generator: a pure function of (seed, position, token id).

Philox4x32-10 from Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import numpy as np

_FACTORS = 0xD2511F53, 0xCD9E8D57
_MULTIPLIERS = np.uint64(_FACTORS[0]), np.uint64(_FACTORS[1])
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_CHUNK = 8192  # ids at once: the working set of all rounds stays in the second-level cache
_FEW = 16  # ids; for so few, Python's own numbers are faster than arrays


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
    words = position & 0xFFFFFFFF, position >> 32, 0
    if len(ids) <= _FEW:
        drawn = [_philox((i, *words), key) for i in ids.tolist()]
        return np.array([((w0 >> 6 << 26 | w1 >> 6) + 0.5) * 2.0**-52 for w0, w1, _, _ in drawn], np.float64)
    # Arrays of one entry, since NumPy scalars warn when a product wraps.
    w0, w1, _, _ = philox4x32((ids.astype(np.uint64), *(np.array([word], np.uint64) for word in words)), key)
    bits = ((w0 >> np.uint64(6)) << np.uint64(26)) | (w1 >> np.uint64(6))
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def _philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """`philox4x32` of one counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _FACTORS[0], c2 * _FACTORS[1]
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = k0 + _WEYL[0] & 0xFFFFFFFF, k1 + _WEYL[1] & 0xFFFFFFFF
    return c0, c1, c2, c3


def gumbel(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise of each id at this position, float64 [n]; no value depends on the other ids."""
    ids = np.asarray(ids)
    out = np.empty(len(ids), np.float64)
    for start in range(0, len(ids), _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = -np.log(-np.log(uniform(seed, position, ids[part])))
    return out
