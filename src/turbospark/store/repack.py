"""From a source to an install, streaming: no more of it is in memory than a piece of a tensor."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import TensorInfo
from turbospark.formats.manifest import MAGIC, MAJOR, FileEntry
from turbospark.store import home
from turbospark.store.arch import arch_keys
from turbospark.store.content import Files
from turbospark.store.plan import Plan, arch_of_experts, make_plan
from turbospark.store.source import Source, open_source
from turbospark.store.writer import Partial
from turbospark.units import size

WRITER = 2  # of the bytes written; another number throws away what an older program left unfinished
SPARE = 16 << 20  # bytes left to the disk beside the install: folders, the journal

Progress = Callable[[int, int], None]


class Imported(NamedTuple):
    """A new install: where it is, its bytes, and the tensors of the source that no text model reads."""

    path: Path
    nbytes: int
    left_out: tuple[TensorInfo, ...]


def import_model(
    source: Path,
    alias: str,
    drafter: Path | None = None,
    quantize: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Imported:
    """Writes the install of an alias from a GGUF, a Hugging Face folder or another install.

    It appears complete or not at all; run again after a kill it goes on where it stopped. progress: bytes that are
    certain, and of all. Raises `alias_taken`, `import_running`, `disk_full` (before it starts, where there is no room),
    `file_changed` where the source changes meanwhile, and what opening, checking and planning raise.
    """
    home.check_alias(alias)
    with home.locked(alias):
        final = home.place(alias)
        if home.is_taken(alias):
            raise home.taken(alias)
        opened = open_source(source, drafter)
        trunk = len(opened.config.layers)
        plan = make_plan(opened.checkpoint.kind, opened.tensors, trunk, quantize, opened.config.scale_block)
        total = sum(map(len, opened.small.values())) + sum(plan.sizes.values())
        _check_room(alias, total)
        writing = Partial(home.partial(alias), _recipe(opened, quantize))
        told = _Told(progress, total)
        with Files() as files:
            entries = {name: writing.add(name, [data], told) for name, data in opened.small.items()}
            entries |= {name: writing.add(name, pieces, told) for name, pieces in plan.files(files)}
            files.check()
        writing.finish(_manifest(opened, plan, quantize, entries), final)
        return Imported(final, total, opened.left_out)


class _Told:
    """Adds up what the writer tells."""

    def __init__(self, progress: Progress, total: int):
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, count: int) -> None:
        self.done += count
        self.progress(self.done, self.total)


def _check_room(alias: str, total: int) -> None:
    """What an earlier run has written already needs no room again."""
    there = home.size_of(home.partial(alias))
    free = shutil.disk_usage(home.home()).free
    if total + SPARE > free + there:
        message = f"{alias} needs {size(total + SPARE - there)} in {home.home()}, {size(free)} are free"
        raise TurbosparkError("disk_full", message, "make room, or let TURBOSPARK_HOME name another disk")


def _recipe(opened: Source, quantize: str | None) -> str:
    """A digest of everything that the bytes of the install depend on."""
    digest = hashlib.sha256()
    for path in opened.files:
        told = path.stat()
        digest.update(json.dumps([str(path.resolve()), told.st_size, told.st_mtime_ns]).encode())
    for name, data in opened.small.items():
        digest.update(json.dumps([name, hashlib.sha256(data).hexdigest()]).encode())
    digest.update(json.dumps([WRITER, quantize, [info.name for info in opened.tensors]]).encode())
    return digest.hexdigest()


def _manifest(opened: Source, plan: Plan, quantize: str | None, entries: dict[str, FileEntry]) -> dict[str, Any]:
    manifest: dict[str, Any] = {
        "magic": MAGIC,
        "versionMajor": MAJOR,
        "versionMinor": 0,
        "flags": {},
        "modelID": opened.name,
        "arch": arch_keys(opened.config),
        "quant": _quant(opened, quantize),
        "source": {"kind": opened.checkpoint.kind, "experts": plan.template},
        "files": {name: entry._asdict() for name, entry in entries.items()},
        **arch_of_experts(plan),
    }
    return manifest if opened.drafter is None else {**manifest, "drafter": dict(opened.drafter)}


def _quant(opened: Source, quantize: str | None) -> dict[str, Any] | None:
    """How weights were quantised on the way here, now or by an earlier import."""
    if quantize is not None:
        return {"method": quantize, "groupSize": 64 if quantize == "int4" else 32}
    return (opened.checkpoint.manifest or {}).get("quant")


def left_out(infos: Iterable[TensorInfo]) -> str:
    """A line on tensors that were not taken along."""
    infos = list(infos)
    nbytes = size(sum(info.total for info in infos))
    return f"{len(infos)} tensors of {nbytes} are no part of a text model, {infos[0].name} among them: left out"
