"""The bytes of tensors on their way from a source into an install: read in pieces, as they are or quantised anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

from turbospark import quant
from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Span, TensorInfo
from turbospark.formats.dtypes import AFFINE, GROUP, row_bytes
from turbospark.quant.tensor import QTensor

PIECE = 1 << 18  # bytes read at a time: a copy runs twice as fast through what a processor's cache holds
ROWS = 4 << 20  # bytes of rows that are quantised at a time


class Files:
    """The files of a source, read by position. One that changes meanwhile is refused, as soon as it shows.

    A cut file gives fewer bytes here, where a mapped one would end the process.
    """

    def __init__(self) -> None:
        self._handles: dict[Path, tuple[int, os.stat_result]] = {}

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for handle, _ in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def read(self, path: Path, span: Span) -> Iterator[bytes]:
        """A span of a file, in pieces. Raises `file_changed` where it ends too soon, `file_unreadable`."""
        handle = self._handle(path)
        at, end = span.offset, span.offset + span.nbytes
        while at < end:
            try:
                piece = os.pread(handle, min(PIECE, end - at), at)
            except OSError as error:
                raise TurbosparkError("file_unreadable", f"{path} cannot be read: {error.strerror}") from None
            if not piece:
                raise _changed(path, f"it ends at byte {at}, before {end}")
            at += len(piece)
            yield piece

    def check(self) -> None:
        """Refuses sources that changed since they were opened here (`file_changed`)."""
        for path, (handle, first) in self._handles.items():
            now = os.fstat(handle)
            for what in ("st_size", "st_mtime_ns"):
                if getattr(now, what) != getattr(first, what):
                    raise _changed(path, f"{what[3:]} was {getattr(first, what)}, is {getattr(now, what)}")

    def _handle(self, path: Path) -> int:
        if path not in self._handles:
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise TurbosparkError("file_unreadable", f"{path} cannot be read: {error.strerror}") from None
            self._handles[path] = handle, os.fstat(handle)
        return self._handles[path][0]


def sized(info: TensorInfo, format: str) -> tuple[int, int]:
    """Bytes of a tensor in a format: of the codes, and of its scales, as many as of its biases."""
    if format == info.format:
        return info.nbytes, 0 if info.scales is None else info.scales.nbytes
    rows, columns = prod(info.shape[:-1]), info.shape[-1]
    row = row_bytes(format, columns)
    if row is None:
        raise TurbosparkError("bad_columns", f"{info.name}: {format} does not fit rows of {columns} values")
    return rows * row, 2 * rows * (columns // GROUP) if format in AFFINE else 0


def content(files: Files, info: TensorInfo, format: str) -> Iterator[bytes]:
    """A tensor's codes, then its scales, then its biases."""
    if format != info.format:
        yield from _quantised(files, info, format)
        return
    for span in info.spans:
        yield from files.read(info.file, span)


def _quantised(files: Files, info: TensorInfo, format: str) -> Iterator[bytes]:
    """Some rows at a time; scales and biases, a sixteenth of the codes or less, wait until all codes are out."""
    rows, columns = prod(info.shape[:-1]), info.shape[-1]
    row = info.nbytes // rows
    step = max(1, ROWS // row)
    beside: tuple[list[bytes], list[bytes]] = ([], [])
    for start in range(0, rows, step):
        count = min(step, rows - start)
        data = b"".join(files.read(info.file, Span(info.offset + start * row, count * row)))
        stored = QTensor(info.name, info.format, (count, columns), np.frombuffer(data, np.uint8).reshape(count, row))
        encoded = quant.encode(quant.decode(stored), format, info.name)
        for part, kept in zip((encoded.scales, encoded.biases), beside, strict=True):
            if part is not None:
                kept.append(np.ascontiguousarray(part).tobytes())
        yield encoded.data.tobytes()
    yield from (b"".join(kept) for kept in beside if kept)


def _changed(path: Path, fault: str) -> TurbosparkError:
    return TurbosparkError("file_changed", f"{path} changed while it was read: {fault}", "run the import again")
