"""Which trunk a drafter belongs to, told from the trunk alone, the same in every number format."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from turbospark.config.model import ModelConfig
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Source, Weights
from turbospark.models.names import locator
from turbospark.models.registry import model_class


def fingerprint(config: ModelConfig, source: Source, kind: str) -> str:
    """FAMILY-HIDDENxLAYERS-VOCAB-DIGEST, such as "llama-576x30-49152-0123456789abcdef".

    The digest is of the final norm's weights and of the first norm's in the first and the last layer, as BF16. Norms
    are small, learned, and kept exact by every quantisation, so that all files of one model agree.
    """
    layers, hidden = len(config.layers), config.hidden
    no_kernels: Any = None  # none are needed to decode values
    w = Weights(source, locator(kind, model_class(config.family).names), no_kernels, Trace(), config.scale_block)
    digest = hashlib.sha256()
    for name in ("output_norm", "blk.0.attn_norm", f"blk.{layers - 1}.attn_norm"):
        values = w.values(name, hidden) + np.float32(config.norm_offset)
        digest.update(values.astype(bfloat16).tobytes())
    return f"{config.family}-{hidden}x{layers}-{config.vocab}-{digest.hexdigest()[:16]}"
