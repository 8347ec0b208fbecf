"""A stored matrix in the NumPy backend, decoded once or at every use."""

from __future__ import annotations

import numpy as np

from turbospark import quant
from turbospark.quant.tensor import QTensor

TILE = 4096  # output rows a product takes at once; fixed, so that bits do not depend on what is kept decoded


class Matrix:
    """Wraps a QTensor [N, K] (or [heads, N, K]); `keep` says whether its float32 values stay in memory."""

    def __init__(self, tensor: QTensor, keep: bool):
        self.tensor = tensor
        self.shape = tensor.shape
        self._keep = keep
        self._values: np.ndarray | None = None

    def values(self) -> np.ndarray:
        """float32, the whole shape."""
        if self._values is not None:
            return self._values
        values = quant.decode(self.tensor)
        if self._keep:
            self._values = values
        return values

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """float32 [len(ids), K]."""
        return self._values[ids] if self._values is not None else quant.take_rows(self.tensor, ids)

    def product(self, x: np.ndarray) -> np.ndarray:
        """x [R, K] -> [R, N], each row by itself: a matrix product gives a row other bits beside other rows."""
        values = self._values if self._values is not None or not self._keep else self.values()
        y = np.empty((len(x), self.shape[0]), np.float32)
        for start in range(0, self.shape[0], TILE):
            stop = min(start + TILE, self.shape[0])
            tile = values[start:stop] if values is not None else quant.decode_rows(self.tensor, start, stop)
            for row, out in zip(x, y, strict=True):
                np.dot(tile, row, out=out[start:stop])
        return y
