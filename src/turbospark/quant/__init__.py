"""Stored number formats: a tensor's bytes to float32 and back."""

from turbospark.quant.formats import FORMATS, decode, decode_rows, get_format, take_rows
from turbospark.quant.tensor import Format, QTensor

__all__ = ["FORMATS", "Format", "QTensor", "decode", "decode_rows", "get_format", "take_rows"]
