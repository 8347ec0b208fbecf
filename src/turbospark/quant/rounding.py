"""How the writers choose a block's scale and round to its codes. Nearest code, no search."""

from __future__ import annotations

import numpy as np


def reciprocal(step: np.ndarray) -> np.ndarray:
    """1 / step, and 0 where that is not finite: a block without extent gets the code of zero."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / step
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def peak(values: np.ndarray) -> np.ndarray:
    """The value of largest magnitude of each block, with its sign: [..., n] to [..., 1]."""
    return np.take_along_axis(values, np.abs(values).argmax(axis=-1, keepdims=True), axis=-1)


def centred(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(d [..., 1], codes uint8 [..., n]) for value = d * (code - half), half = 2 ** (width - 1).

    The peak becomes code 0, the end that reaches farther.
    """
    half = 1 << width - 1
    d = peak(values) / np.float32(-half)
    codes = np.trunc(values * reciprocal(d) + np.float32(half + 0.5))
    return d, codes.clip(0, 2 * half - 1).astype(np.uint8)


def shifted(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(d [..., 1], low [..., 1], codes uint8 [..., n]) for value = d * code + low."""
    top = (1 << width) - 1
    low = values.min(axis=-1, keepdims=True)
    d = (values.max(axis=-1, keepdims=True) - low) / np.float32(top)
    codes = np.trunc((values - low) * reciprocal(d) + np.float32(0.5))
    return d, low, codes.clip(0, top).astype(np.uint8)


def nearest(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Whole numbers float32, ties to even, kept within low..high."""
    return np.rint(values).clip(low, high)
