"""Scales and biases that a file stores as tensors of their own, seen as arrays and checked."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from turbospark.errors import TurbosparkError
from turbospark.quant.tensor import QTensor

FLOATS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(bfloat16)}
EXPONENTS = {"F8_E8M0": np.dtype(np.uint8), "U8": np.dtype(np.uint8)}


def as_array(part: QTensor, types: dict[str, np.dtype]) -> np.ndarray:
    """A stored companion as an array of its own type, a view. Raises `bad_scale` for any but these types."""
    if part.format not in types:
        message = f"{part.name}: scales or biases in {part.format} are not supported here"
        raise TurbosparkError("bad_scale", message, f"supported: {', '.join(types)}")
    return part.data.view(types[part.format]).reshape(part.shape)


def checked(
    t: QTensor,
    role: str,
    part: np.ndarray | None,
    shapes: list[tuple[int, ...]],
    types: dict[str, np.dtype] = FLOATS,
) -> np.ndarray:
    """The companion, unless it is missing (`missing_scale`) or has another type or shape (`bad_scale`)."""
    needed = f"{t.name}: {t.format} of shape {list(t.shape)} needs {role} of shape "
    needed += " or ".join(str(list(shape)) for shape in shapes)
    if part is None:
        hint = "codes alone are not weights; a tensor that is truly unscaled has a scale of 1"
        raise TurbosparkError("missing_scale", f"{needed}, has none", hint)
    if part.shape not in shapes:
        raise TurbosparkError("bad_scale", f"{needed}, has {list(part.shape)}")
    if part.dtype not in types.values():
        raise TurbosparkError("bad_scale", f"{t.name}: {role} of type {part.dtype} are not supported")
    return part
