"""Whether an install is what its manifest says, byte for byte, and its parts agree with each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from turbospark.config.registry import read_config
from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Checkpoint
from turbospark.formats.install import read_install
from turbospark.formats.install_names import LAYOUT, MANIFEST
from turbospark.formats.json_file import read_object
from turbospark.formats.manifest import FileEntry, Manifest, read_manifest
from turbospark.formats.message import shown
from turbospark.placement import Asked
from turbospark.store.arch import arch_keys
from turbospark.store.content import PIECE
from turbospark.store.writer import render
from turbospark.summary import summarise

Progress = Callable[[int, int], None]


def verify(folder: Path, progress: Progress = lambda done, total: None) -> list[str]:
    """Every fault of an install, named; [] for a sound one. progress: bytes read, and of all.

    Sizes and hashes of all files, files that are missing or do not belong, the manifest's own hash, the index and the
    layout against their files and each other, `arch` against the source's declarations, and whether the model would
    run. Raises what read_manifest raises: without a manifest there is nothing to hold anything against.
    """
    manifest = read_manifest(folder)
    faults = [*_manifest_faults(manifest), *_file_faults(folder, manifest, progress), *_strays(folder, manifest)]
    try:
        install = read_install(folder)
        faults += [*_layout_faults(folder, manifest), *_model_faults(install, manifest)]
    except TurbosparkError as error:
        if error.code != "install_damaged" or not faults:
            faults.append(error.message)
    return faults


def _manifest_faults(manifest: Manifest) -> Iterator[str]:
    """A manifest that was written here holds its own hash."""
    if manifest.source is not None and render(dict(manifest.content)) != manifest.path.read_bytes():
        yield f"{MANIFEST}: its checksum is {shown(manifest.content.get('checksum'))}, its content has another"


def _file_faults(folder: Path, manifest: Manifest, progress: Progress) -> Iterator[str]:
    total, done = sum(entry.size for entry in manifest.files.values()), 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    for name, entry in manifest.files.items():
        fault = _file_fault(folder / name, entry, tell)
        if fault is not None:
            yield f"{name}: {fault}"


def _file_fault(path: Path, entry: FileEntry, tell: Callable[[int], None]) -> str | None:
    digest, length = hashlib.sha256(), 0
    if path.exists() and not path.is_file():
        return "it is no file"  # reading a pipe would wait for ever
    try:
        with path.open("rb") as handle:
            while piece := handle.read(PIECE):
                digest.update(piece)
                length += len(piece)
                tell(len(piece))
    except OSError as error:
        return "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read: {error.strerror}"
    if length != entry.size:
        return f"it has {length} bytes, must have {entry.size}"
    found = digest.hexdigest()
    return None if found == entry.sha256 else f"its sha256 is {found[:16]}..., must be {entry.sha256[:16]}..."


def _strays(folder: Path, manifest: Manifest) -> Iterator[str]:
    """An install written elsewhere may leave its text files out of the manifest."""
    known = {MANIFEST, *manifest.files}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_dir() and name not in known and (manifest.source is not None or name.endswith(".bin")):
            yield f"{name}: it is not in the manifest"


def _layout_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What the layout, which reads well, says otherwise than the manifest or than its own strides."""
    if LAYOUT not in manifest.files:
        return
    layout = read_object(folder / LAYOUT)
    for name in ("expertStride", "expertsPerLayer"):
        if layout.get(name) != manifest.content.get(name):
            told = f"{name} is {shown(layout.get(name))}"
            yield f"{LAYOUT}: {told}, in {MANIFEST} it is {shown(manifest.content.get(name))}"
    for layer in layout["layers"]:
        stride, experts = layer.get("expertStride", layout.get("expertStride")), layer["experts"]
        if len(experts) != layout.get("expertsPerLayer"):
            yield f"{LAYOUT}: {layer['file']} has {len(experts)} experts, not {shown(layout.get('expertsPerLayer'))}"
        if type(stride) is not int:
            yield f"{LAYOUT}: expertStride of {layer['file']} is {shown(stride)}, must be a number of bytes"
            continue
        astray = next((e for e, expert in enumerate(experts) if expert["offset"] != e * stride), None)
        if astray is not None:
            at = f"begins at byte {experts[astray]['offset']}, at a stride of {stride} it must at {astray * stride}"
            yield f"{LAYOUT}: expert {astray} of {layer['file']} {at}"


def _model_faults(install: Checkpoint, manifest: Manifest) -> Iterator[str]:
    for problem in summarise(install.path, asked=Asked("mapped")).problems:  # whatever memory there is here
        yield problem.message
    if manifest.source is None:
        return
    for name, value in arch_keys(read_config(install)).items():
        if manifest.arch.get(name) != value:
            told = f"arch.{name} is {shown(manifest.arch.get(name))}"
            yield f"{MANIFEST}: {told}, what the source declares makes it {shown(value)}"
