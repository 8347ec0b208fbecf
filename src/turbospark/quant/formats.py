"""The registry of stored number formats, and the way from a QTensor to float32 and back."""

from __future__ import annotations

import numpy as np

from turbospark.errors import TurbosparkError
from turbospark.quant import floats, iq1, iq2, iq3, iq4, mxfp4, q2_k, q3_k, q4, q4_k, q5, q6_k, q8, ternary
from turbospark.quant.tensor import Format, QTensor

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        *(floats.F64, floats.F32, floats.F16, floats.BF16),
        *(q4.Q4_0, q4.Q4_1, q5.Q5_0, q5.Q5_1, q8.Q8_0),
        *(q2_k.Q2_K, q3_k.Q3_K, q4_k.Q4_K, q4_k.Q5_K, q6_k.Q6_K),
        *(iq4.IQ4_NL, iq4.IQ4_XS, mxfp4.MXFP4, ternary.TQ1_0, ternary.TQ2_0),
        *(iq3.IQ3_S, iq3.IQ3_XXS, iq2.IQ2_S, iq2.IQ2_XS, iq2.IQ2_XXS, iq1.IQ1_M, iq1.IQ1_S),
    )
}


def get_format(name: str) -> Format:
    """The format of that name, as ggml spells it. Refuses with code "unsupported_format"."""
    if name not in FORMATS:
        raise TurbosparkError(
            "unsupported_format", f"number format {name} is not supported", f"supported: {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def decode(t: QTensor) -> np.ndarray:
    """All values of a tensor, float32 of its shape. May be a read-only view where the file holds float32."""
    return _decode(t, t.data)


def decode_rows(t: QTensor, start: int, stop: int) -> np.ndarray:
    """Rows start..stop-1 of a matrix [out, in]: float32 [stop - start, in]."""
    rows = t.shape[0]
    if not 0 <= start <= stop <= rows:
        raise TurbosparkError("row_out_of_range", f"{t.name}: rows {start} to {stop} asked, has {rows}")
    return _decode(t, t.data[start:stop])


def take_rows(t: QTensor, ids: np.ndarray) -> np.ndarray:
    """The rows of a matrix [out, in] that `ids` [n] names: float32 [n, in]. Nothing else is decoded."""
    ids = np.asarray(ids)
    rows = t.shape[0]
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        worst = ids.max() if ids.max() >= rows else ids.min()
        raise TurbosparkError("row_out_of_range", f"{t.name}: row {worst} asked, has {rows}")
    return _decode(t, t.data[ids])


def _decode(t: QTensor, data: np.ndarray) -> np.ndarray:
    """Bytes uint8 [..., bytes of a row] to float32 [..., columns]."""
    fmt = get_format(t.format)
    columns = t.shape[-1]
    blocks = data.reshape(*data.shape[:-1], columns // fmt.block, fmt.nbytes)
    with np.errstate(all="ignore"):  # an infinite stored scale times zero is the file's NaN, not our mistake
        return fmt.decode(blocks).reshape(*data.shape[:-1], columns)
