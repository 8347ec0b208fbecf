"""Memory of the backend: scratch that sublayers share, and caches that know where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turbospark.kernels.cpu import attention, delta
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


class Memory(np.ndarray):
    """An array of a cache, with what kernels know of it once they have asked: of the cache it leads, or of it alone."""

    layout: Record | None = None
    alone: Record | None = None
    table: np.ndarray | None = None  # of the layouts of all layers' caches, when it leads the first one


def zeros(shape: tuple[int, ...]) -> Memory:
    return np.zeros(shape, np.float32).view(Memory)


def cached(shape: tuple[int, ...], halves: bool) -> Memory:
    """Keys or values, float16 or float32: a row has zeros behind it up to whole vectors of eight."""
    padded = -(-shape[-1] // 8) * 8
    memory = np.zeros((*shape[:-1], padded), np.float16 if halves else np.float32)
    return memory[..., : shape[-1]].view(Memory)


def keys_and_values(k: Memory, v: np.ndarray) -> int:
    """The address of what `attention.begin` wants to know of a cache."""
    if k.layout is None:
        k.layout = _layout(k, v)
    return k.layout.address


def layouts(caches: Sequence[tuple[Memory, np.ndarray]]) -> int:
    """The address of int64 [layers], `keys_and_values` of each."""
    places, first = [keys_and_values(k, v) for k, v in caches], caches[0][0]
    if first.table is None or first.table.tolist() != places:
        first.table = np.array(places, np.int64)
    return first.table.ctypes.data


def rows_alone(array: Memory) -> int:
    """The same of keys or of values alone, in the place of both."""
    if array.alone is None:
        array.alone = _layout(array, array)
    return array.alone.address


def _layout(k: np.ndarray, v: np.ndarray) -> Record:
    places = (attention.KERNELS[k.itemsize].address, k.itemsize, k.ctypes.data, v.ctypes.data)
    return Record.of(attention.CACHE_FIELDS, (*places, *k.strides[:3], *v.strides[:3], k.shape[2]))


def recurrent(cache: Any) -> int:
    """The address of what the `delta` kernels want to know of a cache."""
    if cache.state.layout is None:
        arrays = (cache.state, cache.window, cache.taped_inputs, cache.taped_k, cache.taped_u, cache.taped_decay)
        sizes = (*cache.state.shape[1:], cache.window.shape[2], cache.window.shape[1] + 1, cache.block)
        cache.state.layout = Record.of(delta.CACHE_FIELDS, (*sizes, *(array.ctypes.data for array in arrays)))
    return cache.state.layout.address
