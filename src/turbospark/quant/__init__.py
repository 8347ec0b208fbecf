"""Stored number formats: a tensor's bytes to float32 and back."""

from turbospark.quant.affine import with_affine
from turbospark.quant.formats import FORMATS, check, decode, decode_rows, encode, get_format, select_rows, take_rows
from turbospark.quant.fp8 import with_scales
from turbospark.quant.tensor import Format, QTensor

__all__ = [
    "FORMATS",
    "Format",
    "QTensor",
    "check",
    "decode",
    "decode_rows",
    "encode",
    "get_format",
    "select_rows",
    "take_rows",
    "with_affine",
    "with_scales",
]
