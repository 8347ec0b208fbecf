"""The registry of stored number formats, and the way from a QTensor to float32 and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from turbospark.errors import TurbosparkError
from turbospark.quant import (
    affine,
    floats,
    fp8,
    iq1,
    iq2,
    iq3,
    iq4,
    mxfp4,
    q2_k,
    q3_k,
    q4,
    q4_k,
    q5,
    q6_k,
    q8,
    ternary,
)
from turbospark.quant.tensor import Format, QTensor

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        *(floats.F64, floats.F32, floats.F16, floats.BF16),
        *(q4.Q4_0, q4.Q4_1, q5.Q5_0, q5.Q5_1, q8.Q8_0),
        *(q2_k.Q2_K, q3_k.Q3_K, q4_k.Q4_K, q4_k.Q5_K, q6_k.Q6_K),
        *(iq4.IQ4_NL, iq4.IQ4_XS, mxfp4.MXFP4, ternary.TQ1_0, ternary.TQ2_0),
        *(iq3.IQ3_S, iq3.IQ3_XXS, iq2.IQ2_S, iq2.IQ2_XS, iq2.IQ2_XXS, iq1.IQ1_M, iq1.IQ1_S),
        *(affine.INT4, affine.INT8, fp8.F8_E4M3, fp8.F8_E5M2, fp8.F8_E8M0),
    )
}
WIDE = ("F64", "F32", "BF16")  # hold any float32, infinities too
LARGEST = 65504.0  # of a float16, in which most formats keep their scales


def get_format(name: str) -> Format:
    """The format of that name, as ggml or safetensors spells it. Raises `unsupported_format`."""
    if name not in FORMATS:
        message = f"number format {name} is not supported"
        raise TurbosparkError("unsupported_format", message, f"supported: {', '.join(FORMATS)}")
    return FORMATS[name]


def check(t: QTensor) -> None:
    """Refuses a tensor whose bytes or companions do not fit its shape.

    Raises `unsupported_format`, `bad_columns`, `bad_bytes`, `missing_scale`, `bad_scale`.
    """
    fmt = get_format(t.format)
    columns = t.shape[-1] if t.shape else 0
    _check_columns(t.name, fmt, columns)
    needed = (*t.shape[:-1], fmt.row_bytes(columns))
    if t.data.shape != needed:
        message = f"{t.name}: {t.format} of shape {list(t.shape)} needs bytes {list(needed)}"
        raise TurbosparkError("bad_bytes", f"{message}, has {list(t.data.shape)}")
    if fmt.companions is not None:
        fmt.companions.parts(t)
    elif t.scales is not None or t.biases is not None:
        raise TurbosparkError("bad_scale", f"{t.name}: {t.format} has scales of its own, others came with it")


def decode(t: QTensor) -> np.ndarray:
    """All values of a tensor, float32 of its shape. A read-only view where the file itself holds float32."""
    rows = np.arange(t.shape[-2]) if len(t.shape) > 1 else np.arange(1)
    return _decode(t, t.data, rows)


def decode_rows(t: QTensor, start: int, stop: int) -> np.ndarray:
    """Rows start..stop-1 of a matrix [out, in]: float32 [stop - start, in]. Raises `row_out_of_range`."""
    if not 0 <= start <= stop <= t.shape[0]:
        raise TurbosparkError("row_out_of_range", f"{t.name}: rows {start} to {stop} asked, has {t.shape[0]}")
    return _decode(t, t.data[start:stop], np.arange(start, stop))


def take_rows(t: QTensor, ids: np.ndarray) -> np.ndarray:
    """The rows of a matrix [out, in] that `ids` [n] names: float32 [n, in]. Raises `row_out_of_range`."""
    ids = _present(t, ids)
    return _decode(t, t.data[ids], ids)


def select_rows(t: QTensor, ids: np.ndarray) -> QTensor:
    """The matrix of the rows that `ids` [n] names, in the stored format, or F32 where rows share scales.

    Raises `row_out_of_range`.
    """
    ids = _present(t, ids)
    if any(part is not None and part.shape[:1] != t.shape[:1] for part in (t.scales, t.biases)):
        values = take_rows(t, ids)
        return QTensor(t.name, "F32", values.shape, values.view(np.uint8))
    cut = lambda part: None if part is None else part[ids]
    return replace(t, shape=(len(ids), t.shape[1]), data=t.data[ids], scales=cut(t.scales), biases=cut(t.biases))


def encode(values: np.ndarray, format: str, name: str = "") -> QTensor:
    """Quantise float32 [..., columns] to a format, nearest code by block, companions included.

    Raises `unsupported_format`, `bad_columns` when the columns are no multiple of the block, `bad_values`.
    """
    fmt = get_format(format)
    if fmt.encode is None:
        able = ", ".join(known.name for known in FORMATS.values() if known.encode is not None)
        raise TurbosparkError("unsupported_format", f"nothing here writes {format}", f"supported: {able}")
    values = np.ascontiguousarray(values, dtype=np.float32)
    _check_columns(name, fmt, values.shape[-1])
    if format not in WIDE and not np.all(np.abs(values) <= LARGEST):
        largest = np.abs(values).max()
        raise TurbosparkError("bad_values", f"{name}: {format} holds values up to {LARGEST:g}, has {largest:g}")
    scales = biases = None
    codes = values
    if fmt.companions is not None:
        if values.ndim < 2:
            message = f"{name}: {format} needs a matrix of 2 axes, has {values.ndim}"
            raise TurbosparkError("bad_columns", message)
        codes, scales, biases = fmt.companions.split(values)
    blocks = codes.reshape(*values.shape[:-1], -1, fmt.block)
    data = fmt.encode(blocks).reshape(*values.shape[:-1], fmt.row_bytes(values.shape[-1]))
    return QTensor(name, format, values.shape, data, scales, biases)


def _present(t: QTensor, ids: np.ndarray) -> np.ndarray:
    ids = np.asarray(ids)
    outside = ids[(ids < 0) | (ids >= t.shape[0])]
    if outside.size:
        raise TurbosparkError("row_out_of_range", f"{t.name}: row {outside[0]} asked, has {t.shape[0]}")
    return ids


def _check_columns(name: str, fmt: Format, columns: int) -> None:
    if columns % fmt.block:
        message = f"{name}: {fmt.name} needs columns in multiples of {fmt.block}, has {columns}"
        raise TurbosparkError("bad_columns", message)


def _decode(t: QTensor, data: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Bytes uint8 [..., bytes of a row] of these rows to float32 [..., columns]."""
    check(t)
    fmt = get_format(t.format)
    blocks = data.reshape(*data.shape[:-1], t.shape[-1] // fmt.block, fmt.nbytes)
    with np.errstate(all="ignore"):  # an infinite stored scale times zero is the file's NaN, not our mistake
        values = fmt.decode(blocks).reshape(*data.shape[:-1], t.shape[-1])
        return values if fmt.companions is None else fmt.companions.join(values, t, rows)
