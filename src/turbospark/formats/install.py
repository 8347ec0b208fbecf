"""`.gturbo` installs: a folder with a manifest, the resident tensors, and the experts packed by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Checkpoint, TensorInfo
from turbospark.formats.expert_layout import read_layout
from turbospark.formats.gguf import read_part
from turbospark.formats.install_names import (
    DRAFTER_CONFIG,
    DRAFTER_GGUF,
    GGUF_HEADER,
    HF_CONFIG,
    LAYOUT,
    WEIGHTS,
)
from turbospark.formats.json_file import read_object
from turbospark.formats.manifest import Manifest, read_manifest
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown
from turbospark.formats.resident_index import read_index

# the names in an install that does not say of what kind its source was
EXPERTS = "language_model.model.layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"
LEAD = "numDenseLeadingLayers"


def read_install(folder: str | Path) -> Checkpoint:
    """Opens an install; only headers are read. Sizes of all files must be the manifest's; hashes are for `verify`.

    An expert is three tensors, or as many with scales and biases, in one stride of its layer's file. Raises
    `install_damaged`, `bad_install`, what read_manifest raises, and what reading the source's declarations raises.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    manifest.check_sizes(folder)
    file = MappedFile(folder / WEIGHTS)
    tensors = read_index(file, raw_ones=manifest.source is None)
    maps = {file.path: file}
    if LAYOUT in manifest.files:
        experts, layers = _experts(folder, manifest)
        for path in layers:
            _require(manifest, path.relative_to(folder).as_posix())
        if twice := next((name for name in experts if name in tensors), None):
            raise TurbosparkError("bad_install", f"{folder}: tensor {shown(twice)} is in {WEIGHTS} and in {LAYOUT}")
        tensors, maps = tensors | experts, maps | layers
    optional = lambda name: read_object(folder / name) if (folder / name).exists() else None
    whole = Checkpoint(
        "install" if manifest.source is None else manifest.source.kind,  # type: ignore[arg-type]
        folder,
        _declarations(folder, manifest),
        tensors,
        maps,
        optional("generation_config.json"),
        optional("tokenizer_config.json"),
        manifest.content,
    )
    return whole if manifest.drafter is None else _with_drafter(whole, manifest)


def _experts(folder: Path, manifest: Manifest) -> tuple[dict[str, TensorInfo], dict[Path, MappedFile]]:
    template = EXPERTS if manifest.source is None else manifest.source.experts
    layout = read_object(folder / LAYOUT)
    if template is None:
        raise TurbosparkError(
            "bad_manifest", f"{manifest.path}: source.experts is missing, the names of packed experts"
        )
    lead = manifest.arch.get(LEAD, 0)
    if type(lead) is not int or not 0 <= lead < 1 << 16:
        raise TurbosparkError("bad_manifest", f"{manifest.path}: arch.{LEAD} is {shown(lead)}, must be a whole number")
    return read_layout((folder / LAYOUT).parent, layout, template, lead)


def _declarations(folder: Path, manifest: Manifest) -> Mapping[str, Any]:
    if manifest.source is None:
        return manifest.arch
    return _read(folder, manifest, manifest.source.kind, GGUF_HEADER, HF_CONFIG)


def _with_drafter(whole: Checkpoint, manifest: Manifest) -> Checkpoint:
    """The drafter's tensors apart from the trunk's, under the names they had."""
    entry = manifest.drafter
    if entry is None:
        return whole
    own = {name: info for name, info in whole.tensors.items() if not name.startswith(entry.prefix)}
    given = {}
    for name, info in whole.tensors.items():
        if name not in own:
            name = entry.original + name.removeprefix(entry.prefix)
            given[name] = info._replace(name=name)
    if not given:
        raise TurbosparkError("bad_install", f"{whole.path} has no tensor {entry.prefix}*, its manifest has a drafter")
    declared = _read(whole.path, manifest, entry.kind, DRAFTER_GGUF, DRAFTER_CONFIG)
    shared = {info.file: whole.maps[info.file] for info in given.values()}
    drafter = Checkpoint(entry.kind, whole.path, declared, given, shared)  # type: ignore[arg-type]
    return replace(whole, tensors=own, drafter=drafter)


def _read(folder: Path, manifest: Manifest, kind: str, gguf: str, hf: str) -> Mapping[str, Any]:
    name = gguf if kind == "gguf" else hf
    _require(manifest, name)
    return read_part(folder / name).metadata if kind == "gguf" else read_object(folder / name)


def _require(manifest: Manifest, name: str) -> None:
    if name not in manifest.files:
        raise TurbosparkError("bad_manifest", f"{manifest.path}: files has no {name}, which the install needs")
