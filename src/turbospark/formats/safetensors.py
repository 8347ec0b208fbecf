"""One safetensors file: bytes to named tensors, with the checks of the `safetensors` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Checkpoint, TensorInfo
from turbospark.formats.json_file import MAX_BYTES, parse_object
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown

METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")
LIMIT = 1 << 64  # counts are unsigned 64-bit numbers
WIDTHS = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "U16 I16 F16 BF16",
    32: "U32 I32 F32",
    64: "U64 I64 F64 C64",
}
BITS = {dtype: bits for bits, dtypes in WIDTHS.items() for dtype in dtypes.split()}


def read_safetensors(path: str | Path) -> Checkpoint:
    """Reads the header of one file; `metadata` is its own `__metadata__`, strings only.

    Tensors must cover the data without gap or overlap. A name that comes twice must come with equal entries.
    Raises `file_cut`, `bad_safetensors`, and what MappedFile raises.
    """
    path = Path(path)
    file = MappedFile(path)
    length = int.from_bytes(_span(file, 0, 8, "the header's length").tobytes(), "little")
    if length > MAX_BYTES:
        hint = "it may be a Git LFS pointer or a web page in place of the file"
        raise _bad(path, f"its header has {length} bytes, at most {MAX_BYTES} are read", hint)
    text = _span(file, 8, length, "the header").tobytes()
    entries = parse_object(text, f"the header of {path}", "bad_safetensors", once=(METADATA, *FIELDS))
    metadata = entries.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _bad(path, f"{METADATA} must be an object of strings")
    for string in (*entries, *metadata, *metadata.values()):
        if not _is_text(string):
            raise _bad(path, f"{shown(string)} in its header is not text")
    base = 8 + length
    infos = [_read_entry(path, name, entry, base) for name, entry in entries.items()]
    _check_cover(file, infos, base)
    return Checkpoint("hf", path, metadata, {info.name: info for info in infos}, {path: file})


def _span(file: MappedFile, start: int, count: int, what: str) -> np.ndarray:
    if count > file.size - start:
        raise file.cut(what, count, start)
    return file.data[start : start + count]


def _is_text(string: str) -> bool:
    """JSON can spell half of a surrogate pair, which no text has."""
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError):
        raise _bad_tensor(path, name, f"must be an object with {', '.join(FIELDS)}") from None
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _bad_tensor(path, name, f"has dtype {shown(dtype)}, known are {', '.join(BITS)}")
    if not _are_counts(shape):
        raise _bad_tensor(path, name, f"has shape {shown(shape)}, must be integers from 0 to 2^64 - 1")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise _bad_tensor(path, name, f"has data_offsets {shown(offsets)}, must be two integers from 0 to 2^64 - 1")
    bits = BITS[dtype]
    for extent in shape:
        bits *= extent
        if bits >= LIMIT:
            raise _bad_tensor(path, name, f"has shape {shown(shape)}, too large: {bits} bits or more")
    if bits % 8:
        raise _bad_tensor(path, name, f"has shape {shown(shape)} of {dtype}: {bits} bits, must be whole bytes")
    begin, end = offsets
    if end - begin != bits // 8:
        need = f"needs {bits // 8} bytes, data_offsets span {end - begin}"
        raise _bad_tensor(path, name, f"has shape {shown(shape)} of {dtype}: {need}")
    return TensorInfo(name, dtype, tuple(shape) or (1,), path, base + begin, bits // 8)


def _are_counts(value: Any) -> bool:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return False
    return not value or (min(value) >= 0 and max(value) < LIMIT)


def _check_cover(file: MappedFile, infos: list[TensorInfo], base: int) -> None:
    """Tensors follow each other without gap or overlap from the end of the header to the end of the file."""
    at = base
    for info in sorted(infos, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != at:
            message = f"tensor {shown(info.name)} begins at data byte {info.offset - base}, must at {at - base}"
            raise _bad(file.path, message, "tensors may neither overlap nor leave a gap")
        at += info.nbytes
        if at > file.size:
            raise file.cut(f"tensor {shown(info.name)}", info.nbytes, info.offset)
    if at != file.size:
        raise _bad(file.path, f"its tensors end at byte {at}, the file at {file.size}", "nothing may follow them")


def _bad_tensor(path: Path, name: str, fault: str) -> TurbosparkError:
    return _bad(path, f"tensor {shown(name)} {fault}")


def _bad(path: Path, message: str, hint: str = "") -> TurbosparkError:
    return TurbosparkError("bad_safetensors", f"{path}: {message}", hint)
