"""manifest.json of an install: what the model is, and every file of it with its size and hash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from turbospark.errors import TurbosparkError
from turbospark.formats.install_names import MANIFEST, PARTIAL, SUFFIX, WEIGHTS
from turbospark.formats.json_file import read_object
from turbospark.formats.message import listed, shown

MAGIC, MAJOR = "GTURBO", 1
HASH = re.compile(r"[0-9a-f]{64}")


class FileEntry(NamedTuple):
    size: int
    sha256: str


class Source(NamedTuple):
    """Whose names and conventions tensors keep: kind "gguf" or "hf". experts: the name of an expert's tensor, with
    {layer}, {expert} and {role}; None without packed experts."""

    kind: str
    experts: str | None


class DrafterEntry(NamedTuple):
    """An added drafter: its kind of file, what its tensors' names begin with here and began with there."""

    kind: str
    prefix: str
    original: str


@dataclass(frozen=True)
class Manifest:
    """`content` is the whole object; the other fields are its checked parts. source: None where it does not say."""

    path: Path
    content: Mapping[str, Any]
    arch: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    source: Source | None
    drafter: DrafterEntry | None

    def check_sizes(self, folder: Path) -> None:
        """Refuses an install that lacks a file, or has one of another size (`install_damaged`), and names them all."""
        faults = [fault for name, entry in self.files.items() if (fault := _fault(folder / name, entry))]
        if faults:
            message = f"{folder} is damaged, {len(faults)} of its {len(self.files)} files: {listed(faults, 6)}"
            raise TurbosparkError("install_damaged", message, "turbospark verify tells all; rm and import it again")


def is_install(folder: Path) -> bool:
    """Whether a folder is an install or means to be one."""
    return folder.name.removesuffix(PARTIAL).endswith(SUFFIX) or all((folder / n).exists() for n in (MANIFEST, WEIGHTS))


def read_manifest(folder: Path) -> Manifest:
    """Raises `install_incomplete` where there is none, `unsupported_install` for other versions, `bad_manifest`, and
    what read_object raises."""
    path = folder / MANIFEST
    if folder.name.endswith(PARTIAL) or not path.exists():
        message = f"{folder} is not complete: an import that was to write it has not ended"
        raise TurbosparkError("install_incomplete", message, "run the same import again, it goes on where it stopped")
    content = read_object(path)
    if content.get("magic") != MAGIC:
        raise _bad(path, f"magic is {shown(content.get('magic'))}, must be {MAGIC!r}")
    if content.get("versionMajor") != MAJOR:
        message = f"{path} has version {shown(content.get('versionMajor'))}, version {MAJOR} is read"
        raise TurbosparkError("unsupported_install", message, "a newer turbospark may read it")
    files = {name: _file(path, name, entry) for name, entry in _object(path, content, "files").items()}
    source = content.get("source")
    drafter = content.get("drafter")
    manifest = Manifest(
        path,
        content,
        _object(path, content, "arch"),
        files,
        None if source is None else _source(path, _object(path, content, "source")),
        None if drafter is None else _drafter(path, _object(path, content, "drafter")),
    )
    if WEIGHTS not in files:
        raise _bad(path, f"files has no {WEIGHTS}")
    return manifest


def _fault(path: Path, entry: FileEntry) -> str | None:
    try:
        found = path.stat()
    except OSError:
        return f"{path.name} is missing"
    if not S_ISREG(found.st_mode):
        return f"{path.name} is no file"
    return None if found.st_size == entry.size else f"{path.name} has {found.st_size} bytes, must have {entry.size}"


def _file(path: Path, name: str, entry: Any) -> FileEntry:
    parts = name.split("/")
    odd = any("\ud800" <= c <= "\udfff" or c in "\0\\" for c in name)  # lone surrogates name no file
    if not all(parts) or {".", ".."} & set(parts) or odd or len(name) > 400:
        raise _bad(path, f"files names {shown(name)}, must be a file inside the install")
    size, digest = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not HASH.fullmatch(digest):
        raise _bad(path, f"file {shown(name)} must have a size and a sha256, has {shown(entry)}")
    return FileEntry(size, digest)


def _source(path: Path, source: Mapping[str, Any]) -> Source:
    experts = source.get("experts")
    fields = ("{layer}", "{expert}", "{role}")
    if experts is not None and (not isinstance(experts, str) or any(experts.count(field) != 1 for field in fields)):
        raise _bad(path, f"source.experts is {shown(experts)}, must be a name with {', '.join(fields)}")
    return Source(_kind(path, source, "source"), experts)


def _drafter(path: Path, drafter: Mapping[str, Any]) -> DrafterEntry:
    prefix, original = drafter.get("prefix"), drafter.get("original", "")
    if not isinstance(prefix, str) or not prefix or not isinstance(original, str):
        raise _bad(path, f"drafter.prefix and drafter.original must be texts, are {shown((prefix, original))}")
    return DrafterEntry(_kind(path, drafter, "drafter"), prefix, original)


def _kind(path: Path, section: Mapping[str, Any], name: str) -> str:
    kind = section.get("kind")
    if kind not in ("gguf", "hf"):
        raise _bad(path, f"{name}.kind is {shown(kind)}, must be 'gguf' or 'hf'")
    return kind


def _object(path: Path, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    if not isinstance(value, dict):
        raise _bad(path, f"{name} must be an object, is {shown(value)}")
    return value


def _bad(path: Path, fault: str) -> TurbosparkError:
    return TurbosparkError("bad_manifest", f"{path}: {fault}")
