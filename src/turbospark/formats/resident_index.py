"""model_weights.bin of an install: a header, entries of 72 bytes, names, padding to a page; then the tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Span, TensorInfo
from turbospark.formats.dtypes import AFFINE, CODE_OF, FORMAT_OF, GROUP, row_bytes
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown

HEADER = struct.Struct("<3Q")  # bytes of the index, bytes of the tensors, entries
ENTRY = struct.Struct("<IHBxQQ4I4Q")  # name, its length, type; data, shape, scales, biases
MAX_ENTRIES = 1 << 20
PAGE, ALIGNMENT = 4096, 64  # of the first tensor, and of every tensor


def read_index(file: MappedFile, raw_ones: bool) -> dict[str, TensorInfo]:
    """The tensors by name. raw_ones: unused axes may hold 1 instead of 0.

    Every range must lie behind the index and inside the file, each size must be what its shape needs, and no name may
    come twice. Raises `file_cut`, `bad_install`.
    """
    if file.size < HEADER.size:
        raise file.cut("the header", HEADER.size, 0)
    begin, room, count = HEADER.unpack_from(file.map)
    if not HEADER.size + ENTRY.size * count <= begin:
        entries = f"{count} entries in an index of {begin} bytes"
        raise _bad(file.path, f"{entries}, need {HEADER.size + ENTRY.size * count}")
    if count > MAX_ENTRIES:
        raise _bad(file.path, f"its index has {count} entries, at most {MAX_ENTRIES} are read")
    if begin + room > file.size:
        raise file.cut("the tensors", room, begin)
    if begin + room < file.size:
        raise _bad(file.path, f"its tensors end at byte {begin + room}, the file at {file.size}")
    index = file.data[:begin].tobytes()
    tensors: dict[str, TensorInfo] = {}
    for number in range(count):
        info = _entry(file.path, index, number, begin + room, raw_ones)
        if info.name in tensors:
            raise _bad(file.path, f"tensor {shown(info.name)} is there twice")
        tensors[info.name] = info
    return tensors


def _entry(path: Path, index: bytes, number: int, end: int, raw_ones: bool) -> TensorInfo:
    fields = ENTRY.unpack_from(index, HEADER.size + ENTRY.size * number)
    at, length, code, offset, nbytes, *rest = fields
    if at < HEADER.size or at + length > len(index):
        raise _bad(path, f"the name of entry {number} lies at bytes {at} to {at + length}, the index has {len(index)}")
    try:
        name = index[at : at + length].decode()
    except UnicodeDecodeError:
        raise _bad(path, f"the name of entry {number} is not UTF-8: {shown(index[at : at + length])}") from None
    if code not in FORMAT_OF:
        raise _bad(path, f"tensor {shown(name)} has type {code}, which is not known")
    shape = _shape(rest[:4], raw_ones)
    if not shape:
        raise _bad(path, f"tensor {shown(name)} has shape {list(rest[:4])}, of no values")
    spans = [Span(offset, nbytes), Span(*rest[4:6]), Span(*rest[6:8])]
    scales, biases = (span if span.nbytes else None for span in spans[1:])
    for what, span in zip(("data", "scales", "biases"), spans, strict=True):
        if span.nbytes and not len(index) <= span.offset <= span.offset + span.nbytes <= end:
            range_ = f"bytes {span.offset} to {span.offset + span.nbytes}"
            raise _bad(path, f"the {what} of tensor {shown(name)} lie at {range_}, must in {len(index)} to {end}")
    info = TensorInfo(name, FORMAT_OF[code], shape, path, offset, nbytes, scales, biases)
    if fault := size_fault(info):
        raise _bad(path, f"tensor {shown(name)} {fault}")
    return info


def _shape(dims: Sequence[int], raw_ones: bool) -> tuple[int, ...]:
    """Unused axes are behind the used ones."""
    shape = list(dims)
    while shape and (shape[-1] == 0 or (raw_ones and shape[-1] == 1 and len(shape) > 1)):
        shape.pop()
    return () if 0 in shape else tuple(shape)


def size_fault(info: TensorInfo) -> str | None:
    """What is wrong between a tensor's shape, format and sizes, or None."""
    rows, columns = prod(info.shape[:-1]), info.shape[-1]
    row = row_bytes(info.format, columns)
    said = f"of shape {list(info.shape)} in {info.format}"
    if row is None:
        return f"{said} does not fill whole blocks"
    if info.nbytes != rows * row:
        return f"{said} needs {rows * row} bytes, has {info.nbytes}"
    beside = 2 * rows * (columns // GROUP) if info.format in AFFINE else 0
    for what, span in (("scales", info.scales), ("biases", info.biases)):
        if beside != (0 if span is None else span.nbytes):
            return f"{said} needs {beside} bytes of {what}, has {0 if span is None else span.nbytes}"
    return None


def index_bytes(infos: Sequence[TensorInfo]) -> bytes:
    """The index of tensors, sized with whatever offsets they have; with those of `placed` it is the file's beginning.

    Raises `unsupported_tensor` for a shape or name that an entry cannot hold.
    """
    names = [info.name.encode() for info in infos]
    at = HEADER.size + ENTRY.size * len(infos)
    begin = -(-(at + sum(map(len, names))) // PAGE) * PAGE
    end = max((span.offset + span.nbytes for info in infos for span in info.spans), default=begin)
    entries = []
    for info, name in zip(infos, names, strict=True):
        if len(info.shape) > 4 or max(info.shape) >= 1 << 32 or min(info.shape) < 1 or len(name) >= 1 << 16:
            message = f"tensor {shown(info.name)} of shape {list(info.shape)} does not fit into an install's index"
            raise TurbosparkError("unsupported_tensor", message, "up to 4 axes, none of them empty")
        dims = (*info.shape, 0, 0, 0)[:4]
        beside = [*(info.scales or (0, 0)), *(info.biases or (0, 0))]
        entries.append(ENTRY.pack(at, len(name), CODE_OF[info.format], info.offset, info.nbytes, *dims, *beside))
        at += len(name)
    head = HEADER.pack(begin, max(end - begin, 0), len(infos))
    return b"".join([head, *entries, *names]).ljust(begin, b"\0")


def _bad(path: Path, fault: str) -> TurbosparkError:
    return TurbosparkError("bad_install", f"{path}: {fault}", "turbospark verify tells more")
