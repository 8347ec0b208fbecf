"""A Hugging Face folder: config.json, and weights in one safetensors file or in shards under an index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Checkpoint, TensorInfo
from turbospark.formats.json_file import read_object
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import listed, shown
from turbospark.formats.safetensors import read_safetensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PLAIN_NAME = re.compile(r"[^/\\\0]{1,180}\.safetensors")
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_folder(path: str | Path) -> Checkpoint:
    """Reads config.json and the headers of the weights; `metadata` is the config.

    Where there is an index, it decides: files it does not name are not opened, tensors it does not name are
    not listed. Every tensor it names must be in its shard, and in no other. Raises `folder_empty`,
    `config_missing`, `weights_missing`, `weights_unsupported`, `shards_missing`, `tensors_missing`,
    `bad_index`, `bad_json`, and what read_safetensors raises.
    """
    path = Path(path)
    config = _read_config(path)
    if (path / INDEX).exists():
        tensors, maps = _read_shards(path)
    elif (path / SINGLE).exists():
        single = read_safetensors(path / SINGLE)
        tensors, maps = single.tensors, single.maps
    else:
        raise _no_weights(path)
    generation = _read_optional(path / "generation_config.json")
    tokenizer = _read_optional(path / "tokenizer_config.json")
    return Checkpoint("hf", path, config, tensors, maps, generation, tokenizer)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise TurbosparkError("file_unreadable", f"{path} cannot be read: {error}") from None
    if not names:
        raise TurbosparkError("folder_empty", f"{path} is empty", f"a model folder has config.json and {SINGLE}")
    if "config.json" not in names:
        models = [name for name in names if name.endswith(".gguf")]
        hint = f"open the GGUF file itself: {listed(models)}" if models else f"it has {listed(names)}"
        raise TurbosparkError("config_missing", f"{path} has no config.json", hint)
    return read_object(path / "config.json")


def _read_optional(path: Path) -> dict[str, Any] | None:
    return read_object(path) if path.exists() else None


def _no_weights(path: Path) -> TurbosparkError:
    shards = sorted(file.name for file in path.glob("*.safetensors"))
    if shards:
        message = f"{path} has neither {SINGLE} nor {INDEX}, only {listed(shards)}"
        return TurbosparkError("weights_missing", message, f"download {INDEX}, it says which files belong")
    pickled = sorted(file.name for pattern in PICKLED for file in path.glob(pattern))
    if pickled:
        message = f"{path} has its weights in {listed(pickled)}, which are not read"
        return TurbosparkError("weights_unsupported", message, f"convert them to {SINGLE}")
    models = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"open the GGUF file itself: {listed(models)}" if models else "download them"
    return TurbosparkError("weights_missing", f"{path} has no weights: neither {SINGLE} nor {INDEX}", hint)


def _read_shards(path: Path) -> tuple[dict[str, TensorInfo], dict[Path, MappedFile]]:
    index = _read_index(path / INDEX)
    shards = list(dict.fromkeys(index.values()))
    missing = [shard for shard in shards if not (path / shard).exists()]
    if missing:
        message = f"{path} lacks {len(missing)} of the {len(shards)} shards in its index: {listed(missing)}"
        raise TurbosparkError("shards_missing", message, "download them")
    files = {shard: read_safetensors(path / shard) for shard in shards}
    lost = [f"{name} ({shard})" for name, shard in index.items() if name not in files[shard].tensors]
    if lost:
        message = f"{path} lacks {len(lost)} of the {len(index)} tensors in its index: {listed(lost)}"
        raise TurbosparkError("tensors_missing", message, "shards and index may be of different versions")
    for shard, file in files.items():
        twice = [name for name in file.tensors if index.get(name, shard) != shard]
        if twice:
            message = f"{path / shard} holds tensors that the index has in other shards: {listed(twice)}"
            raise TurbosparkError("bad_index", message, "shards and index may be of different versions")
    tensors = {name: files[shard].tensors[name] for name, shard in index.items()}
    return tensors, {path / shard: file.maps[path / shard] for shard, file in files.items()}


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> shard, a plain file name of the same folder."""
    index = read_object(path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise TurbosparkError("bad_index", f"{path}: weight_map must be an object that names the shard of each tensor")
    for name, shard in index.items():
        if not isinstance(shard, str) or not PLAIN_NAME.fullmatch(shard):
            place = f"in {shown(shard)}, must be a .safetensors file of this folder"
            message = f"{path}: tensor {shown(name)} is {place}"
            raise TurbosparkError("bad_index", message)
    return index
