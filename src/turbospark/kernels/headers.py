"""Kernels that compute nothing: with them a model can be built from headers alone, to see whether it would run."""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

import numpy as np

from turbospark.kernels.api import Kernels
from turbospark.quant.tensor import QTensor


class HeaderKernels:
    """Takes the place of a backend's `Kernels` while a model is built; counts `parameters` as it goes."""

    name = "headers"

    def __init__(self) -> None:
        self.parameters = 0

    def weight(self, tensor: QTensor) -> QTensor:
        self.parameters += prod(tensor.shape)
        return tensor

    def vector(self, values: np.ndarray) -> np.ndarray:
        self.parameters += int(values.size)
        return values

    def zeros(self, shape: tuple[int, ...]) -> np.ndarray:
        """Of the right shape and `nbytes`, but one number wide in memory."""
        return np.broadcast_to(np.float32(0), shape)

    def rotary(self, *_: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        # what every backend inherits works here too; an operation may be kept at hand, but not called
        if name in vars(Kernels) and name not in Kernels.__abstractmethods__:
            return getattr(Kernels, name).__get__(self)

        def absent(*_: Any, **__: Any) -> NoReturn:
            raise RuntimeError(f"{name}: a model built from headers runs no forward")

        return absent
