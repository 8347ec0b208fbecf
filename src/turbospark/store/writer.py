"""The folder in which an install grows: file by file, each with its hash, until one rename makes it an install.

A file that was ended is noted in a journal beside the folder, after its bytes have reached the disk. One that was cut
short is compared with what belongs into it, and goes on where it agrees. So a kill at any moment costs at most that
file's reading again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from turbospark.errors import TurbosparkError
from turbospark.formats.install_names import MANIFEST
from turbospark.formats.manifest import FileEntry
from turbospark.store.home import JOURNAL
from turbospark.units import size

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Tell = Callable[[int], None]  # bytes that are certain since the last call


def write(handle: BinaryIO, data: bytes) -> None:
    """Every byte of an install goes through here."""
    handle.write(data)


class Partial:
    """An unfinished install in `folder`. recipe: what it is made of; another one's remains are thrown away."""

    def __init__(self, folder: Path, recipe: str):
        self.folder, self.recipe = folder, recipe
        self.journal = folder.with_suffix(JOURNAL)
        with _refusing(folder):
            done = self._read_journal()
            if done is None:
                shutil.rmtree(folder, ignore_errors=True)
                self.journal.unlink(missing_ok=True)
            folder.mkdir(exist_ok=True)
        self.done = done or {}
        if done is None:
            self._note({"recipe": recipe})

    def add(self, name: str, pieces: Iterable[bytes], tell: Tell = lambda count: None) -> FileEntry:
        """Writes a file, unless the journal has it. Raises `disk_full`, `write_failed`."""
        path, entry = self.folder / name, self.done.get(name)
        if entry is not None and path.exists() and path.stat().st_size == entry.size:
            tell(entry.size)
            return entry
        with _refusing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "x+b") as handle:
                entry = self.done[name] = _fill(handle, pieces, tell)
        self._note({"file": name, **entry._asdict()})
        return entry

    def finish(self, manifest: dict[str, Any], final: Path) -> None:
        """The manifest, then the rename."""
        path = self.folder / MANIFEST
        with _refusing(path), path.open("wb") as handle:
            write(handle, render(manifest))
            _settle(handle)
        for stray in self.folder.rglob("*"):
            if stray.is_file() and stray != path and stray.relative_to(self.folder).as_posix() not in manifest["files"]:
                stray.unlink()
        with _refusing(final):
            _settle_folder(self.folder)
            self.folder.rename(final)
            _settle_folder(final.parent)
            self.journal.unlink(missing_ok=True)

    def _read_journal(self) -> dict[str, FileEntry] | None:
        """Files that were ended; None where there is no journal of this recipe. A last line without end is dropped."""
        if not self.journal.exists():
            return None
        *lines, cut = self.journal.read_bytes().split(b"\n")
        if cut:
            self.journal.write_bytes(b"".join(line + b"\n" for line in lines))
        try:
            recipe, *files = [json.loads(line) for line in lines]
            entries = {file["file"]: FileEntry(file["size"], file["sha256"]) for file in files}
        except (ValueError, KeyError, TypeError):
            return None
        return entries if recipe == {"recipe": self.recipe} else None

    def _note(self, line: dict[str, Any]) -> None:
        with _refusing(self.journal), self.journal.open("ab") as handle:
            write(handle, json.dumps(line).encode() + b"\n")
            _settle(handle)


def render(manifest: dict[str, Any]) -> bytes:
    """The manifest's file: with `checksum`, the hash of itself without that line."""
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    digest = hashlib.sha256(_text(content)).hexdigest()
    return _text({**content, "checksum": digest})


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"


def _fill(handle: BinaryIO, pieces: Iterable[bytes], tell: Tell) -> FileEntry:
    """Compares with what is there as long as that agrees, and writes the rest."""
    there, at, digest = handle.seek(0, os.SEEK_END), 0, hashlib.sha256()
    handle.seek(0)
    for piece in pieces:
        digest.update(piece)
        if at < there and handle.read(len(piece)) != piece:
            handle.seek(at)
            handle.truncate()
            there = at
        if at >= there:
            write(handle, piece)
        at += len(piece)
        tell(len(piece))
    handle.truncate(at)
    _settle(handle)
    return FileEntry(at, digest.hexdigest())


def _settle(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _settle_folder(folder: Path) -> None:
    """A rename is certain only when the folder it happened in has reached the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _refusing:
    """Turns what the system says of a write into the program's own error."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in FULL:
            free = size(shutil.disk_usage(self.path.parent).free)
            message = f"{self.path} could not be written: {error.strerror}, {free} are free"
            hint = "make room and run the same import again, it goes on where it stopped"
            raise TurbosparkError("disk_full", message, hint) from None
        raise TurbosparkError("write_failed", f"{self.path} could not be written: {error.strerror}") from None
