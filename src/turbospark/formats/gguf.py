"""GGUF files, single or split: bytes to metadata and named tensors."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Checkpoint, TensorInfo
from turbospark.formats.ggml_types import GGML_TYPES
from turbospark.formats.gguf_header import U32, U64, GGUFMetadata, Header
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import listed, shown

ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 64
MAX_DIMS = 4
PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
FOREIGN = {  # how other files begin, and what helps
    b"lmgg": "it is a GGML model of before August 2023: convert the original again",
    b"fmgg": "it is a GGML model of before August 2023: convert the original again",
    b"tjgg": "it is a GGML model of before August 2023: convert the original again",
    b"algg": "it is a GGML adapter of before August 2023: convert the original again",
    b"PK\x03\x04": "it is a zip archive or a PyTorch file: convert it to safetensors or GGUF",
    b"\x80": "it is a Python pickle: convert it to safetensors or GGUF",
    b"vers": "it may be a Git LFS pointer: fetch the file itself with `git lfs pull`",
    b"<!": "it is a web page: download the file itself",
    b"<h": "it is a web page: download the file itself",
}


class Part(NamedTuple):
    """What one file says of itself."""

    file: MappedFile
    metadata: GGUFMetadata
    tensors: dict[str, TensorInfo]


def read_gguf(path: str | Path) -> Checkpoint:
    """Reads the header of a GGUF file and, if it is a part of a split one, of the other parts beside it.

    The metadata is that of the first part. Versions 2 and 3, little-endian. Tensor types nobody decodes are
    listed like the others and refused when opened. Raises `file_cut`, `bad_gguf`, `unsupported_gguf`,
    `unknown_file`, `parts_missing`, and what MappedFile raises.
    """
    path = Path(path)
    part = read_part(path)
    count = _integer(part, "split.count", 1)
    if count <= 1:
        return Checkpoint("gguf", path, part.metadata, part.tensors, {path: part.file})
    parts = _read_split(part, count)
    tensors: dict[str, TensorInfo] = {}
    for part in parts:
        for name, info in part.tensors.items():
            if name in tensors:
                message = f"tensor {shown(name)} is in {tensors[name].file} and again in {info.file}"
                raise TurbosparkError("bad_gguf", message, "one of the parts may be of another model")
            tensors[name] = info
    total = _integer(parts[0], "split.tensors.count", len(tensors))
    if total != len(tensors):
        message = f"{path}: split.tensors.count is {total}, the {count} parts have {len(tensors)} tensors"
        raise TurbosparkError("bad_gguf", message, "one of the parts may be of another model")
    return Checkpoint("gguf", path, parts[0].metadata, tensors, {part.file.path: part.file for part in parts})


def _read_split(part: Part, count: int) -> list[Part]:
    path = part.file.path
    match = PART_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        message = f"{path} is one of {count} parts, and its name does not tell those of the others"
        raise TurbosparkError("parts_missing", message, "parts have names like NAME-00001-of-00003.gguf")
    paths = [path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}.gguf") for number in range(1, count + 1)]
    missing = [other.name for other in paths if not other.exists()]
    if missing:
        message = f"{path} is one of {count} parts, {len(missing)} are missing: {listed(missing)}"
        raise TurbosparkError("parts_missing", message, "put all parts in one folder")
    parts = [part if other == path else read_part(other) for other in paths]
    for number, part in enumerate(parts):
        says = _integer(part, "split.no", -1), _integer(part, "split.count", -1)
        if says != (number, count):
            message = f"{part.file.path}: split.no and split.count are {says}, by its name {(number, count)}"
            raise TurbosparkError("bad_gguf", message, "it was renamed or is of another model")
    return parts


def _integer(part: Part, key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if type(value) is not int:
        raise TurbosparkError("bad_gguf", f"{part.file.path}: {key} must be an integer, is {shown(value)}")
    return value


def read_part(path: Path) -> Part:
    """The header of one file, without a look at the parts beside it."""
    header = Header(MappedFile(path))
    _check_magic(header)
    tensor_count = header.count("tensors", 24)
    key_count = header.count("metadata keys", 13)
    values: dict[str, Any] = {}
    for index in range(key_count):
        key = header.string(f"metadata key {index} of {key_count}", MAX_KEY_BYTES)
        if not key:
            raise header.refuse(f"metadata key {index} of {key_count} is empty")
        if key in values:
            raise header.refuse(f"metadata key {shown(key)} is there twice")
        values[key] = header.value(key, only=U32 if key == ALIGNMENT else None)
    alignment = values.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    _check_alignment(header, alignment)
    tensors = _read_tensors(header, tensor_count, alignment)
    return Part(header.file, GGUFMetadata(header, values), tensors)


def _check_magic(header: Header) -> None:
    """Version 3 is 2 with big-endian files allowed, which are refused by name; 1 had 32-bit counts."""
    path = header.file.path
    magic = bytes(header.data[header.step(4, "the magic") : 4])
    if magic not in (b"GGUF", b"FUGG"):
        hints = [hint for start, hint in FOREIGN.items() if magic.startswith(start)]
        hint = hints[0] if hints else "a model is a .gguf file or a folder with config.json and safetensors"
        raise TurbosparkError("unknown_file", f"{path} is not a GGUF file: it begins with {shown(magic)}", hint)
    version = header.number(U32, "the version")
    if magic == b"FUGG" or (version and version & 0xFFFF == 0):
        raise TurbosparkError("unsupported_gguf", f"{path} is a big-endian GGUF file, little-endian is read")
    if version not in (2, 3):
        hint = "convert the original again" if version < 2 else "a newer turbospark may read it"
        message = f"{path} has GGUF version {version}, versions 2 and 3 are read"
        raise TurbosparkError("unsupported_gguf", message, hint)


def _check_alignment(header: Header, alignment: int) -> None:
    """The specification asks for a multiple of 8 in a u32, llama.cpp for a power of two: both must hold.

    So 8, 16, 32, 64 and so on up to 2^31 are read; 0, 1 and 24 are refused.
    """
    if alignment < 8 or alignment & (alignment - 1):
        raise header.refuse(f"{ALIGNMENT} must be a power of two and a multiple of 8, is {alignment}")


def _read_tensors(header: Header, count: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        name = header.string(f"the name of tensor {index} of {count}", MAX_NAME_BYTES)
        if name in tensors:
            raise header.refuse(f"tensor {shown(name)} is there twice")
        tensors[name] = _read_tensor(header, name, alignment)
    return _place(header, tensors, base=-(-header.at // alignment) * alignment)


def _read_tensor(header: Header, name: str, alignment: int) -> TensorInfo:
    """One entry of the list. Its offset counts from the data section still; an unknown type has 0 bytes."""
    what = f"tensor {shown(name)}"
    dims = header.number(U32, f"the number of dimensions of {what}")
    if dims > MAX_DIMS:
        raise header.refuse(f"{what} has {dims} dimensions, at most {MAX_DIMS} are read")
    columns_first = [header.number(U64, f"dimension {axis} of {what}") for axis in range(dims)]
    code = header.number(U32, f"the type of {what}")
    offset = header.number(U64, f"the offset of {what}")
    shape = tuple(reversed(columns_first)) or (1,)
    values = prod(shape)
    if not 0 < values < 1 << 63:
        raise header.refuse(f"{what} has shape {shape}: {values} values, must be 1 to 2^63 - 1")
    if offset % alignment:
        raise header.refuse(f"{what} has offset {offset}, must be a multiple of the alignment {alignment}")
    kind = GGML_TYPES.get(code)
    if kind is None:
        return TensorInfo(name, f"unknown type {code}", shape, header.file.path, offset, 0)
    if shape[-1] % kind.block:
        row = f"rows of {shape[-1]} values, {kind.name} needs a multiple of {kind.block}"
        raise header.refuse(f"{what} has {row}")
    return TensorInfo(name, kind.name, shape, header.file.path, offset, values // kind.block * kind.nbytes)


def _place(header: Header, tensors: dict[str, TensorInfo], base: int) -> dict[str, TensorInfo]:
    """Moves offsets to the start of the file, and sees that each tensor lies inside it, clear of the next."""
    size = header.file.size
    order = sorted(tensors, key=lambda name: tensors[name].offset)
    limits = [base + tensors[name].offset for name in order[1:]] + [size]
    placed = {}
    for name, limit in zip(order, limits, strict=False):
        info = tensors[name]
        start = base + info.offset
        nbytes = info.nbytes or max(limit - start, 1)
        if start + nbytes > size:
            raise header.file.cut(f"tensor {shown(name)}", nbytes, start)
        if start + nbytes > limit:
            message = f"tensor {shown(name)} needs {nbytes} bytes at byte {start}, the next one begins at {limit}"
            raise header.refuse(message)
        placed[name] = info._replace(offset=start, nbytes=nbytes)
    return {name: placed[name] for name in tensors}
