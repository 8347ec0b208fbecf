"""The rotation tables of a model, one for each distinct rope of its layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospark.config.model import MLA, Attention, ModelConfig
from turbospark.errors import TurbosparkError
from turbospark.layers.weights import Weights


def rotations(config: ModelConfig, w: Weights, max_context: int) -> dict[Any, Any]:
    """Rope -> the backend's table. A file may carry factors for the frequencies (GGUF: rope_freqs)."""
    ropes = {mixer.rope for mixer in (layer.mixer for layer in config.layers) if isinstance(mixer, Attention | MLA)}
    tables: dict[Any, Any] = {None: None}
    for rope in filter(None, ropes):
        factors = _factors(w, rope.dim // 2) if w.has("rope_freqs") else None
        tables[rope] = w.kernels.rotary(rope, max_context, factors)
    return tables


def _factors(w: Weights, pairs: int) -> np.ndarray:
    """rope_freqs, of which none may be 0 or below, as frequencies are divided by them."""
    factors = w.values("rope_freqs", pairs)
    if not (np.isfinite(factors) & (factors > 0)).all():
        wrong = factors[~(np.isfinite(factors) & (factors > 0))][0]
        raise TurbosparkError("bad_tensor", f"tensor rope_freqs.weight holds {wrong}; its values must be above 0")
    return factors
