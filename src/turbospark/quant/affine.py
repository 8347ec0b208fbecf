"""INT4 and INT8 affine, as MLX stores them: value = code * scale + bias, both for each 64 values of a row.

Codes fill 32-bit words from the lowest bits up, so of each byte the lower half comes first. Scales and biases
are tensors of their own, usually BF16.
"""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from turbospark.errors import TurbosparkError
from turbospark.quant.blocks import pack, unpack, widen
from turbospark.quant.companions import FLOATS, as_array, checked
from turbospark.quant.rounding import nearest, reciprocal
from turbospark.quant.tensor import Companions, Format, QTensor

GROUP = 64


def with_affine(words: QTensor, scales: QTensor, biases: QTensor, width: int) -> QTensor:
    """The INT4 or INT8 tensor that words U32 [..., out, in * width / 32] make with what lies beside them.

    Raises `unsupported_format` for another width, `bad_scale` where shapes do not fit, as with other groups.
    """
    if words.format != "U32" or width not in (4, 8):
        message = f"{words.name}: affine weights of {width} bits in {words.format} are not supported"
        raise TurbosparkError("unsupported_format", message, "supported: 4 and 8 bits in U32, groups of 64")
    shape = (*words.shape[:-1], words.shape[-1] * 32 // width)
    apart = as_array(scales, FLOATS), as_array(biases, FLOATS)
    joined = QTensor(words.name, f"INT{width}", shape, words.data, *apart)
    parts(joined)
    return joined


def parts(t: QTensor) -> tuple[np.ndarray, np.ndarray]:
    """Scales and biases, checked."""
    shape = (*t.shape[:-1], t.shape[-1] // GROUP)
    return checked(t, "scales", t.scales, [shape]), checked(t, "biases", t.biases, [shape])


def join(codes: np.ndarray, t: QTensor, rows: np.ndarray) -> np.ndarray:
    scales, biases = parts(t)
    values = codes.reshape(*codes.shape[:-1], -1, GROUP)
    values *= widen(scales[..., rows, :])
    values += widen(biases[..., rows, :])
    return values.reshape(codes.shape)


def _affine(width: int) -> Format:
    top = (1 << width) - 1

    def decode(blocks: np.ndarray) -> np.ndarray:
        return unpack(blocks, width).astype(np.float32)

    def encode(codes: np.ndarray) -> np.ndarray:
        return pack(codes.astype(np.uint8), width)

    def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The bias is rounded down and the scale up, so that every value lies within the codes."""
        groups = values.reshape(*values.shape[:-1], -1, GROUP)
        biases = _narrow(groups.min(axis=-1), -np.inf)
        low = biases.astype(np.float32)
        scales = _narrow((groups.max(axis=-1) - low) / np.float32(top), np.inf)
        steps = reciprocal(scales.astype(np.float32))
        codes = nearest((groups - low[..., None]) * steps[..., None], 0, top)
        return codes.reshape(values.shape), scales, biases

    return Format(f"INT{width}", GROUP, GROUP * width // 8, decode, encode, Companions(parts, join, split))


def _narrow(values: np.ndarray, toward: float) -> np.ndarray:
    """BF16, rounded toward -inf or +inf."""
    narrow = values.astype(bfloat16)
    wide = narrow.astype(np.float32)
    passed = wide > values if toward < 0 else wide < values
    return np.where(passed, np.nextafter(narrow, bfloat16(toward)), narrow)


INT4, INT8 = _affine(4), _affine(8)
