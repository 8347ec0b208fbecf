"""A model on disk as it lies there: metadata, and named tensors that open as views into mapped files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

from turbospark.errors import TurbosparkError
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown
from turbospark.quant.formats import FORMATS
from turbospark.quant.tensor import QTensor

# numbers that open as they are
PLAIN = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


class TensorInfo(NamedTuple):
    """Where a tensor lies: `nbytes` from byte `offset` of `file`. `shape` is logical and row-major, never ().

    A type that is not known has no size of its own: there `nbytes` is the room up to the next tensor.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Checkpoint:
    """`metadata` is the GGUF key-value section, or the parsed config.json of an HF folder.

    tensors: by name, in file order; all were checked to lie inside their files.
    maps: the files that hold them, by path.
    generation_config, tokenizer_config: the JSON files of those names in an HF folder, None where absent.
    """

    kind: Literal["gguf", "hf"]
    path: Path
    metadata: Mapping[str, Any]
    tensors: dict[str, TensorInfo]
    maps: dict[Path, MappedFile] = field(repr=False)
    generation_config: dict[str, Any] | None = None
    tokenizer_config: dict[str, Any] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors, in their own order."""
        return tuple(self.maps)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(info.nbytes for info in self.tensors.values())

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
        return QTensor(name, info.format, info.shape, data)
