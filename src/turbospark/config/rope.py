"""The rotation of a family's heads, as its file declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbospark.config import scaling
from turbospark.config.keys import Keys
from turbospark.config.model import Rope
from turbospark.errors import TurbosparkError

THETA = 10000.0  # where a file does not say


def from_gguf(keys: Keys, head_dim: int, interleaved: bool) -> Rope:
    """`{arch}.rope.*`; a dimension_count below the head's width rotates its first elements only."""
    dim = keys.int("rope.dimension_count", head_dim, minimum=2)
    if dim % 2 or dim > head_dim:
        raise keys.wrong("rope.dimension_count", dim, f"even, and at most the head's width, which is {head_dim}")
    return Rope(theta_of(keys, "rope.freq_base", THETA), dim, interleaved, scaling.from_gguf(keys))


def from_hf(keys: Keys, declared: Any, head_dim: int, context: int, theta: float, part: float | None = None) -> Rope:
    """Rotation in halves, from `rope_parameters` or the older `rope_scaling` of a config.json.

    theta: where `declared` has none, as the older form has its `rope_theta` outside. part: how much of a head is
    rotated where the file does not say; None for families that rotate all of it.
    """
    trained = keys.int("original_max_position_embeddings", None, minimum=1)
    if isinstance(declared, Mapping) and trained is not None:  # outside it wins, as in transformers
        declared = {**declared, "original_max_position_embeddings": trained}
    stretch = scaling.from_hf(declared, keys.where, context)
    inner = Keys(declared or {}, keys.where + ": rope_scaling")
    if part is None:
        for place in (keys, inner):
            place.refuse({"partial_rotary_factor": 1.0})
        part = 1.0
    else:
        part = (inner if inner.has("partial_rotary_factor") else keys).float("partial_rotary_factor", part)
    dim = int(head_dim * part)
    if dim % 2 or not 2 <= dim <= head_dim:
        message = (
            f"{keys.where}: {dim} of a head's {head_dim} elements are to be rotated (partial_rotary_factor {part})"
        )
        raise TurbosparkError("bad_config", message, "elements are rotated in pairs, from 2 to the head's width")
    return Rope(theta_of(inner, "rope_theta", theta), dim, False, stretch)


def theta_of(keys: Keys, name: str, default: float) -> float:
    """The base of the frequencies; each pair turns more slowly than the one before only if it is above 1."""
    theta = keys.float(name, default)
    if theta <= 1:
        raise keys.wrong(name, theta, "a number above 1")
    return theta
