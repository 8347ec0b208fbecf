"""Plain floats, one value a block: F64, F32, F16, BF16."""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from turbospark.quant.tensor import Format


def _plain(name: str, dtype: np.dtype) -> Format:
    def decode(blocks: np.ndarray) -> np.ndarray:
        return blocks.view(dtype).astype(np.float32)

    def encode(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values).astype(dtype).view(np.uint8)

    return Format(name, 1, dtype.itemsize, decode, encode)


def _decode_f32(blocks: np.ndarray) -> np.ndarray:
    """A view: float32 needs no expansion, so a mapped matrix stays on disk."""
    return np.require(blocks.view("<f4"), requirements="A")


def _decode_bf16(blocks: np.ndarray) -> np.ndarray:
    """bfloat16 is the upper half of a float32."""
    wide = blocks.view("<u2").astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


F64 = _plain("F64", np.dtype("<f8"))
F32 = Format("F32", 1, 4, _decode_f32, _plain("F32", np.dtype("<f4")).encode)
F16 = _plain("F16", np.dtype("<f2"))
BF16 = Format("BF16", 1, 2, _decode_bf16, _plain("BF16", np.dtype(bfloat16)).encode)
