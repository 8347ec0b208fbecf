"""The number formats of an install by code, and how many bytes a row of each takes.

Codes 1 to 25 are those of the `.gturbo` format. Formats without one keep what GGUF and safetensors hold byte for byte:
128 plus the number of the GGML type, and from 200 the types of safetensors.
"""

from __future__ import annotations

from turbospark.formats.ggml_types import GGML_IDS, GGML_TYPES
from turbospark.formats.safetensors import BITS
from turbospark.quant.formats import FORMATS

_OWN = (
    *("BF16", "F16", "F32", "INT4", "INT8", "Q8_0", "Q4_K", "Q6_K", "Q4_0", "IQ3_XXS", "IQ4_NL", "IQ4_XS", "Q5_K"),
    *("MXFP4", "INT1", "INT2", "Q2_K", "IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ3_S", "IQ2_S", "IQ1_M", "Q3_K", "Q2_0"),
)
_PLAIN = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64")
FORMAT_OF: dict[int, str] = {
    **dict(enumerate(_OWN, 1)),
    **{128 + number: kind.name for number, kind in GGML_TYPES.items() if kind.name not in _OWN},
    **dict(enumerate(_PLAIN, 200)),
}
CODE_OF: dict[str, int] = {name: code for code, name in FORMAT_OF.items()}
AFFINE = {"INT1": 1, "INT2": 2, "INT4": 4, "INT8": 8}  # bits of a code; scales and biases lie apart
GROUP = 64  # values that share a scale and a bias, two bytes each


def row_bytes(format: str, columns: int) -> int | None:
    """Bytes of a row without its scales and biases; None where the columns do not fill whole blocks or bytes."""
    if format in AFFINE:
        return None if columns % GROUP else columns * AFFINE[format] // 8
    if format in GGML_IDS:
        kind = GGML_TYPES[GGML_IDS[format]]
        return None if columns % kind.block else columns // kind.block * kind.nbytes
    if format in FORMATS:
        return FORMATS[format].row_bytes(columns)
    return columns * BITS[format] // 8 if format in BITS and columns * BITS[format] % 8 == 0 else None
