"""A drafter in the published layout: a folder with config.json and model.safetensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from turbospark import quant
from turbospark.draft.dflash_names import locator
from turbospark.train.dflash import DFlash2

CONFIG, WEIGHTS = "config.json", "model.safetensors"
DTYPES = {"bfloat16": "BF16", "float32": "F32", "int64": "I64"}


def arrays(model: DFlash2) -> dict[str, np.ndarray]:
    """The weights by published name, float32, and d2t of a reduced vocabulary: what to add to a draft id."""
    found: dict[str, np.ndarray] = {n: p.detach().float().cpu().numpy() for n, p in model.named_parameters()}
    ids = model.ids.cpu().numpy().astype(np.int64)
    if len(ids) < model.config.vocab:
        found["d2t"] = ids - np.arange(len(ids))
    return found


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """BF16 weights in the published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    stored = {n: v if v.dtype == np.int64 else v.astype(ml_dtypes.bfloat16) for n, v in tensors.items()}
    header, at = {}, 0
    for name, value in stored.items():
        header[name] = {
            "dtype": DTYPES[value.dtype.name],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.nbytes],
        }
        at += value.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with (folder / WEIGHTS).open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for value in stored.values():
            out.write(np.ascontiguousarray(value).tobytes())


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What write_folder wrote: the configuration and float32 weights (d2t int64)."""
    from turbospark.formats import open_checkpoint

    checkpoint, found = open_checkpoint(folder), {}
    for name in checkpoint.tensors:
        tensor = checkpoint.open(name)
        plain = tensor.format == "I64"
        found[name] = tensor.data.view(np.int64).reshape(tensor.shape) if plain else np.array(quant.decode(tensor))
    return dict(checkpoint.metadata), found


def read_gguf(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """float32 weights by published name, as far as the file has them."""
    from turbospark.formats import open_checkpoint

    checkpoint, place, found = open_checkpoint(path), locator("gguf"), {}
    for name in names:
        stored = next((n for n in place(name) if n in checkpoint.tensors), None)
        if stored is not None:
            found[name] = np.array(quant.decode(checkpoint.open(stored)), np.float32)
    return found
