"""A model on disk as it lies there: metadata, and named tensors that open as views into mapped files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from turbospark.errors import TurbosparkError
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown
from turbospark.quant.formats import FORMATS
from turbospark.quant.tensor import QTensor

# numbers that open as they are
PLAIN = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


class Span(NamedTuple):
    """`nbytes` from byte `offset` of a file."""

    offset: int
    nbytes: int


class TensorInfo(NamedTuple):
    """Where a tensor lies: `nbytes` from byte `offset` of `file`. `shape` is logical and row-major, never ().

    A type that is not known has no size of its own: there `nbytes` is the room up to the next tensor.
    scales, biases: of an affine tensor in an install, in the same file, BF16.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    scales: Span | None = None
    biases: Span | None = None

    @property
    def spans(self) -> list[Span]:
        """Everything that belongs to the tensor, the codes first."""
        return [Span(self.offset, self.nbytes), *(part for part in (self.scales, self.biases) if part is not None)]

    @property
    def total(self) -> int:
        """Bytes with scales and biases."""
        return sum(span.nbytes for span in self.spans)


@dataclass(frozen=True)
class Checkpoint:
    """`metadata` is the GGUF key-value section, or the parsed config.json of an HF folder.

    kind: whose names and conventions the tensors have. An install keeps those of its source; one that does not say
    which has names of its own, "install", and its `metadata` is the manifest's `arch`.
    tensors: by name, in file order; all were checked to lie inside their files.
    maps: the files that hold them, by path.
    generation_config, tokenizer_config: the JSON files of those names in an HF folder, None where absent.
    manifest: of an install. drafter: one that was added to it, with names and metadata of its own.
    """

    kind: Literal["gguf", "hf", "install"]
    path: Path
    metadata: Mapping[str, Any]
    tensors: dict[str, TensorInfo]
    maps: dict[Path, MappedFile] = field(repr=False)
    generation_config: dict[str, Any] | None = None
    tokenizer_config: dict[str, Any] | None = None
    manifest: Mapping[str, Any] | None = None
    drafter: Checkpoint | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors, in their own order."""
        return tuple(self.maps)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(info.total for info in self.tensors.values())

    def open(self, name: str) -> QTensor:
        """The tensor as stored, uint8 [*shape[:-1], bytes of a row]: a read-only view, nothing is copied.

        Raises `tensor_missing`, `unsupported_format` for a type that no code here decodes, `file_changed`.
        """
        info = self.tensors.get(name)
        if info is None:
            message = f"{self.path} has no tensor {shown(name)} among its {len(self.tensors)}"
            raise TurbosparkError("tensor_missing", message)
        if info.format not in FORMATS and info.format not in PLAIN:
            message = f"tensor {shown(name)} of {info.file} has format {info.format}, which is not supported"
            hint = "supported: " + ", ".join([*FORMATS, *PLAIN])
            raise TurbosparkError("unsupported_format", message, hint)
        mapped = self.maps[info.file]
        mapped.check_size()
        rows = prod(info.shape[:-1])
        row_bytes = info.nbytes // rows if rows else 0
        data = mapped.data[info.offset : info.offset + info.nbytes].reshape(*info.shape[:-1], row_bytes)
        scales, biases = (_companion(mapped, info.shape, part) for part in (info.scales, info.biases))
        return QTensor(name, info.format, info.shape, data, scales, biases)


def _companion(mapped: MappedFile, shape: tuple[int, ...], part: Span | None) -> np.ndarray | None:
    """Scales or biases, BF16 [*shape[:-1], groups of a row]."""
    if part is None:
        return None
    return mapped.data[part.offset : part.offset + part.nbytes].view(bfloat16).reshape(*shape[:-1], -1)
