"""Memory of the backend: scratch that sublayers share, and cached rows that know where they lie."""

from __future__ import annotations

import numpy as np

from turbospark.kernels.cpu.attention import CACHE_FIELDS
from turbospark.kernels.cpu.inputs import LINE
from turbospark.kernels.cpu.record import Record


class Scratch:
    """One buffer for whatever a sublayer needs while it runs; it grows to the largest need and stays."""

    def __init__(self) -> None:
        self.address = self.size = 0

    def reserve(self, size: int) -> None:
        """Makes room for at least so many bytes; what was there is lost."""
        if size > self.size:
            self.size = size + size // 4
            self._buffer = np.empty(self.size + LINE, np.uint8)  # untouched pages cost nothing
            start = self._buffer.ctypes.data
            self.address = start + -start % LINE


class Cached(np.ndarray):
    """Keys or values [slots, heads, capacity, width]; a row has zeros behind it up to whole vectors of eight."""

    _layout: tuple[Record, np.ndarray] | None = None

    def layout(self, values: np.ndarray) -> int:
        """The address of what `attention.begin` wants to know of these keys and the values beside them."""
        if self._layout is None or self._layout[1] is not values:
            numbers = (self.itemsize, self.ctypes.data, values.ctypes.data)
            strides = (*self.strides[:3], *values.strides[:3], self.shape[2])
            self._layout = Record.of(CACHE_FIELDS, (*numbers, *strides)), values
        return self._layout[0].address


def cached(shape: tuple[int, ...], halves: bool) -> Cached:
    """Zeros, float16 or float32."""
    padded = -(-shape[-1] // 8) * 8
    memory = np.zeros((*shape[:-1], padded), np.float16 if halves else np.float32)
    return memory[..., : shape[-1]].view(Cached)
