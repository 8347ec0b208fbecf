"""Writes safetensors files and Hugging Face folders, right ones and, field by field, wrong ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    np.dtype(kind): name
    for name, kind in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
        "BOOL": "?",
    }.items()
}


def entries(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The header of `tensors` laid out one after the other."""
    header, at = {}, 0
    for name, array in tensors.items():
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": DTYPES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        at += array.nbytes
    return header


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    header: str | bytes | Mapping[str, Any] | None = None,
    header_length: int | None = None,
    data: bytes | None = None,
) -> bytes:
    """A safetensors file of arrays of any dtype above. `header` (text or object), its length field and `data`
    are written in place of the true ones where given."""
    tensors = tensors or {}
    if header is None:
        header = {**({"__metadata__": dict(metadata)} if metadata else {}), **entries(tensors)}
        header = json.dumps(header)
        header += " " * (-len(header) % 8)  # so that the data is aligned, as others write it
    text = json.dumps(header) if isinstance(header, Mapping) else header
    raw = text.encode() if isinstance(text, str) else text
    if data is None:
        data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    return struct.pack("<Q", len(raw) if header_length is None else header_length) + raw + data


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray] | None = None, **fields: Any) -> Path:
    """Writes what safetensors_bytes makes of the same arguments; returns the path."""
    path.write_bytes(safetensors_bytes(tensors, **fields))
    return path


def write_hf_folder(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], shards: int = 1, **files: Any
) -> Path:
    """A model folder: config.json, and one file of weights or an index over `shards` files.

    Further files by stem, each an object for its JSON: `generation_config={...}`. Returns the folder.
    """
    path.mkdir(parents=True, exist_ok=True)
    for stem, value in {"config": config, **files}.items():
        (path / f"{stem}.json").write_text(json.dumps(value))
    if shards == 1:
        write_safetensors(path / "model.safetensors", tensors, metadata={"format": "pt"})
        return path
    weight_map = {}
    for number in range(shards):
        names = list(tensors)[number::shards]
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(path / shard, {name: tensors[name] for name in names}, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": sum(a.nbytes for a in tensors.values())}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
