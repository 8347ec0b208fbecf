"""Writes installs as the `.gturbo` format describes them, by nothing but numbers; right ones and wrong ones."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from turbospark import quant

CODES = {"BF16": 1, "F16": 2, "F32": 3, "INT4": 4, "INT8": 5, "Q8_0": 6, "Q4_K": 7, "Q6_K": 8, "Q4_0": 9, "Q5_K": 13}
PLAIN = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
PAGE = 4096
Stored = tuple[str, np.ndarray]  # a format, and the values to be stored in it


def parts(format: str, values: np.ndarray) -> tuple[bytes, bytes, bytes]:
    """Codes, scales and biases."""
    if format in PLAIN:
        return values.astype(PLAIN[format]).tobytes(), b"", b""
    stored = quant.encode(values.astype(np.float32), format)
    beside = (b"" if part is None else part.tobytes() for part in (stored.scales, stored.biases))
    return stored.data.tobytes(), *beside


def weights_bytes(tensors: Mapping[str, Stored], header: Mapping[int, int] | None = None, **entry: Any) -> bytes:
    """model_weights.bin. header: replaces its numbers by place. entry: replaces fields of the first entry, by name of
    "name_offset", "name_length", "dtype", "offset", "size", "shape", "scale", "bias"."""
    names = b"".join(name.encode() for name in tensors)
    table = 24 + 72 * len(tensors)
    begin = -(-(table + len(names)) // PAGE) * PAGE
    entries, data, at = b"", b"", table
    for i, (name, (format, values)) in enumerate(tensors.items()):
        codes, scales, biases = parts(format, values)
        offset = begin + len(data)
        raw = format in PLAIN
        shape = (*values.shape, *[1 if raw else 0] * 4)[:4]
        fields: dict[str, Any] = {
            "name_offset": at,
            "name_length": len(name.encode()),
            "dtype": CODES.get(format, 0),
            "offset": offset,
            "size": len(codes),
            "shape": shape,
            "scale": (offset + len(codes), len(scales)) if scales else (0, 0),
            "bias": (offset + len(codes) + len(scales), len(biases)) if biases else (0, 0),
        }
        fields |= entry if i == 0 else {}
        f = fields
        entries += struct.pack("<IHBB", f["name_offset"], f["name_length"], f["dtype"], 0)
        entries += struct.pack("<QQ4I", f["offset"], f["size"], *f["shape"])
        entries += struct.pack("<4Q", *f["scale"], *f["bias"])
        at += len(name.encode())
        data += codes + scales + biases
    numbers = [begin, len(data), len(tensors)]
    for place, number in (header or {}).items():
        numbers[place] = number
    return (struct.pack("<3Q", *numbers) + entries + names).ljust(begin, b"\0") + data


def layer_bytes(experts: Sequence[Mapping[str, Stored]]) -> tuple[bytes, int, list[dict[str, Any]]]:
    """A layer's file, its stride, and what layout.json says of its experts."""
    blobs: list[bytes] = []
    described: list[dict[str, dict[str, Any]]] = []
    for roles in experts:
        blob, tensors = b"", {}
        for role, (format, values) in roles.items():
            codes, scales, biases = parts(format, values)
            groups = [values.shape[0], values.shape[1] // 64]
            for name, part, dtype, shape in (
                (role, codes, "u32" if scales else format.lower(), list(values.shape)),
                (f"{role}_scales", scales, "bf16", groups),
                (f"{role}_biases", biases, "bf16", groups),
            ):
                if part:
                    tensors[name] = {"offset": len(blob), "size": len(part), "dtype": dtype, "shape": shape}
                    blob += part
        blobs.append(blob)
        described.append(tensors)
    stride = -(-max(map(len, blobs)) // PAGE) * PAGE
    entries = [
        {"expert": e, "offset": e * stride, "size": stride, "tensors": tensors} for e, tensors in enumerate(described)
    ]
    return b"".join(blob.ljust(stride, b"\0") for blob in blobs), stride, entries


def write_install(
    folder: Path,
    arch: Mapping[str, Any],
    tensors: Mapping[str, Stored],
    layers: Sequence[Sequence[Mapping[str, Stored]]] = (),
    texts: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> Path:
    """A whole install. layers: experts of each layer that has some. texts: JSON files beside the manifest, which does
    not list them. manifest: replaces its keys, None takes one out. Returns the folder."""
    (folder / "packed_experts").mkdir(parents=True)
    files = {"model_weights.bin": weights_bytes(tensors)}
    described, strides = [], []
    for number, experts in enumerate(layers):
        data, stride, entries = layer_bytes(experts)
        name = f"layer_{number:02d}.bin"
        files[f"packed_experts/{name}"] = data
        described.append({"layer": number, "file": name, "expertStride": stride, "experts": entries})
        strides.append(stride)
    counts = {"numLayers": len(layers), "expertsPerLayer": len(layers[0]) if layers else 0}
    layout = {"expertStride": max(strides, default=0), **counts, "layers": described}
    files["packed_experts/layout.json"] = json.dumps(layout).encode()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    for name, value in (texts or {}).items():
        (folder / name).write_text(json.dumps(value))
    hashes = {name: {"size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for name, d in files.items()}
    content = {
        "magic": "GTURBO",
        "versionMajor": 1,
        "versionMinor": 0,
        "flags": {},
        "modelID": "tiny",
        "sourceSnapshotHash": None,
        "arch": dict(arch),
        "quant": None,
        "files": hashes,
        **counts,
        "expertStride": layout["expertStride"],
        **manifest,
    }
    kept = {name: value for name, value in content.items() if name not in manifest or value is not None}
    (folder / "manifest.json").write_text(json.dumps(kept, indent=2))
    return folder


def change(folder: Path, name: str, data: bytes) -> None:
    """Replaces a file and what the manifest says of it."""
    (folder / name).write_bytes(data)
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    content["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(content))
