"""Writes GGUF files, right ones and, field by field, wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from turbospark.formats.ggml_types import GGML_IDS, GGML_TYPES
from turbospark.formats.gguf_header import ARRAY, BOOL, LETTERS, STRING
from turbospark.quant.formats import FORMATS

FLOATS = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
CODES = {np.dtype(letter).str[1:]: code for code, letter in LETTERS.items()}


@dataclass(frozen=True)
class Typed:
    """A metadata value with its type code and payload spelled out."""

    code: int
    payload: bytes


@dataclass(frozen=True)
class Text:
    """A string, key or name whose length field says `length` instead of the truth."""

    data: bytes
    length: int


@dataclass(frozen=True)
class Tensor:
    """A tensor entry; a field that is set is written in place of the true one. `dims` has columns first."""

    format: str
    data: np.ndarray
    shape: tuple[int, ...]
    n_dims: int | None = None
    dims: tuple[int, ...] | None = None
    type: int | None = None
    offset: int | None = None


def tensor(format: str, data: np.ndarray, shape: tuple[int, ...] | None = None, **fields: Any) -> Tensor:
    """Numbers [..., columns] to be encoded, or uint8 rows already encoded, then with their logical shape."""
    if data.dtype == np.uint8:
        kind = GGML_TYPES[GGML_IDS[format]]
        return Tensor(format, data, shape or (*data.shape[:-1], data.shape[-1] // kind.nbytes * kind.block), **fields)
    if format in FLOATS:
        return Tensor(format, data.astype(FLOATS[format]), data.shape, **fields)
    kind = FORMATS[format]
    blocks = data.astype(np.float32).reshape(*data.shape[:-1], -1, kind.block)
    return Tensor(format, kind.encode(blocks), data.shape, **fields)


def gguf_bytes(
    metadata: Mapping[str, Any] | Iterable[tuple[Any, Any]] = (),
    tensors: Mapping[str, Any] | Iterable[tuple[Any, Any]] = (),
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    alignment: int = 32,
    order: str = "<",
    key_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """A GGUF file. Metadata and tensors are mappings, or pairs where a key is to come twice.

    Values: bool, int, float, str, bytes (a string), lists and arrays of them, NumPy scalars for other widths,
    Typed for anything else. Keys and names: str or Text. Tensors: Tensor, or (format, data) or (format, data,
    shape) as `tensor` takes them, or a float array for F32. An alignment other than 32 is also written as
    metadata unless that has it already. `order` ">" writes the header big-endian.
    """
    values = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    entries = [(name, _tensor(given)) for name, given in (tensors.items() if isinstance(tensors, Mapping) else tensors)]
    if alignment != 32 and "general.alignment" not in dict(values):
        values.append(("general.alignment", np.uint32(alignment)))
    head = magic + struct.pack(order + "I", version)
    head += struct.pack(order + "Q", len(entries) if tensor_count is None else tensor_count)
    head += struct.pack(order + "Q", len(values) if key_count is None else key_count)
    for key, value in values:
        head += _text(key, order) + _value(value, order)
    data = b""
    for name, entry in entries:
        dims = tuple(reversed(entry.shape)) if entry.dims is None else entry.dims
        head += _text(name, order) + struct.pack(order + "I", len(dims) if entry.n_dims is None else entry.n_dims)
        head += struct.pack(f"{order}{len(dims)}Q", *dims)
        head += struct.pack(order + "I", GGML_IDS[entry.format] if entry.type is None else entry.type)
        head += struct.pack(order + "Q", len(data) if entry.offset is None else entry.offset)
        data = _padded(data + entry.data.tobytes(), alignment)
    return _padded(head, alignment) + data


def write_gguf(path: Path, metadata: Any = (), tensors: Any = (), **fields: Any) -> Path:
    """Writes what gguf_bytes makes of the same arguments; returns the path."""
    path.write_bytes(gguf_bytes(metadata, tensors, **fields))
    return path


def split_gguf(folder: Path, name: str, metadata: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> list[Path]:
    """A split set: the metadata in the first part, `parts` the tensors of each. Returns the paths."""
    paths = []
    for number, tensors in enumerate(parts):
        split = {
            "split.no": np.uint16(number),
            "split.count": np.uint16(len(parts)),
            "split.tensors.count": np.int32(sum(map(len, parts))),
        }
        path = folder / f"{name}-{number + 1:05d}-of-{len(parts):05d}.gguf"
        paths.append(write_gguf(path, {**(metadata if number == 0 else {}), **split}, tensors))
    return paths


def _tensor(given: Any) -> Tensor:
    if isinstance(given, Tensor):
        return given
    return tensor("F32", given) if isinstance(given, np.ndarray) else tensor(*given)


def _padded(data: bytes, alignment: int) -> bytes:
    return data + bytes(-len(data) % max(alignment, 1))


def _text(text: str | bytes | Text, order: str) -> bytes:
    if isinstance(text, Text):
        return struct.pack(order + "Q", text.length) + text.data
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack(order + "Q", len(data)) + data


def _value(value: Any, order: str) -> bytes:
    """Type code and payload."""
    if isinstance(value, Typed):
        return struct.pack(order + "I", value.code) + value.payload
    if isinstance(value, list | np.ndarray):
        code, pack = _packing(list(value), order)
        return struct.pack(order + "IIQ", ARRAY, code, len(value)) + b"".join(map(pack, value))
    code, pack = _packing([value], order)
    return struct.pack(order + "I", code) + pack(value)


def _packing(values: list[Any], order: str) -> tuple[int, Callable[[Any], bytes]]:
    """The type code that holds all of `values`, and what makes bytes of one of them."""
    first = values[0] if values else 0
    if isinstance(first, str | bytes | Text):
        return STRING, lambda text: _text(text, order)
    if isinstance(first, bool | np.bool_):
        code = BOOL
    elif isinstance(first, np.generic):
        code = CODES[first.dtype.str[1:]]
    elif isinstance(first, float):
        code = CODES["f4"]
    elif min(values, default=0) >= 0:
        code = CODES["u4" if max(values, default=0) < 1 << 32 else "u8"]
    else:
        code = CODES["i4" if min(values) >= -(1 << 31) and max(values) < 1 << 31 else "i8"]
    layout = struct.Struct(order + LETTERS[code])
    return code, lambda value: layout.pack(value.item() if isinstance(value, np.generic) else value)
