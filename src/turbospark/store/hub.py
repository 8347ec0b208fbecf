"""Models on the Hugging Face hub: which files of a repository are one model, and how they get here."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbospark.errors import TurbosparkError
from turbospark.formats.gguf import PART_NAME
from turbospark.formats.message import listed
from turbospark.formats.shards import INDEX, SINGLE
from turbospark.store import home
from turbospark.store.content import PIECE
from turbospark.store.source import TEXT_FILES
from turbospark.units import size

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
FOLDER_FILES = ("config.json", SINGLE, INDEX, *TEXT_FILES)
STATUS = {
    401: "it needs a token, or there is no such repository: HF_TOKEN",
    403: "this token may not read it: ask for access on its page",
    404: "no such repository or file, or none that is seen without a token (HF_TOKEN)",
}


@dataclass(frozen=True)
class Remote:
    """Files of one model in a repository at a commit: name -> (size, sha256 where the hub tells one)."""

    repository: str
    commit: str
    files: dict[str, tuple[int, str | None]]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for nbytes, _ in self.files.values())


def is_repository(name: str) -> bool:
    """Whether a name could be one of the hub's, OWNER/NAME."""
    return REPOSITORY.fullmatch(name) is not None


def look_up(repository: str, file: str | None = None, revision: str | None = None) -> Remote:
    """The files of a repository that are one model: a GGUF, all its parts, or a folder of safetensors.

    file: which GGUF, where there are several. Raises `bad_repository`, `no_hub`, `hub_refused` with the hub's status,
    `hub_unreachable`, `file_choice` with the names there are.
    """
    if not is_repository(repository):
        raise TurbosparkError("bad_repository", f"{repository[:100]!r} is no name on the hub, which are OWNER/NAME")
    with _hub(repository) as hub:
        told = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    there = {s.rfilename: (int(s.size or 0), getattr(s.lfs, "sha256", None)) for s in told.siblings or []}
    wanted = _choose(repository, sorted(there), file)
    return Remote(repository, str(told.sha), {name: there[name] for name in wanted})


def _choose(repository: str, names: list[str], file: str | None) -> list[str]:
    if file is not None:
        if file not in names:
            raise TurbosparkError("file_choice", f"{repository} has no {file!r}, it has {listed(names)}")
        return _with_parts(file, names)
    if "config.json" in names and (SINGLE in names or INDEX in names):
        return [name for name in names if name in FOLDER_FILES] + (_shards(names) if INDEX in names else [])
    models = {_with_parts(name, names)[0] for name in names if name.endswith(".gguf")}
    if len(models) == 1:
        return _with_parts(models.pop(), names)
    if not models:
        message = f"{repository} has neither a GGUF nor {SINGLE} with config.json: {listed(names)}"
        raise TurbosparkError("file_choice", message)
    message = f"{repository} has {len(models)} models: {listed(sorted(models))}"
    raise TurbosparkError("file_choice", message, "--file names one")


def _shards(names: list[str]) -> list[str]:
    """The usual names of shards, else whatever lies beside the index; some repositories hold weights twice."""
    beside = [name for name in names if name.endswith(".safetensors") and "/" not in name and name != SINGLE]
    return [name for name in beside if SHARD.fullmatch(name)] or beside


def _with_parts(file: str, names: list[str]) -> list[str]:
    """The parts of a split GGUF, in order."""
    match = PART_NAME.fullmatch(file)
    if match is None:
        return [file]
    return [name for name in names if (other := PART_NAME.fullmatch(name)) and other[1] == match[1]]


def fetch(remote: Remote, alias: str) -> Path:
    """Downloads what is not here yet and returns the model's path: the GGUF's first file, or the folder.

    The hub's library shows its progress where stderr is a terminal. A download that was stopped goes on; a file of
    another size or hash is thrown away. Raises `disk_full`, `bad_download`, and the hub's errors as look_up does.
    """
    home.check_alias(alias)
    with home.locked(alias):
        return _fetch(remote, home.staging(alias))


def _fetch(remote: Remote, folder: Path) -> Path:
    _check_room(remote, folder)
    for name, (nbytes, digest) in remote.files.items():
        path = folder / name
        if not (path.exists() and path.stat().st_size == nbytes):
            with _hub(remote.repository) as hub:
                hub.hf_hub_download(remote.repository, name, revision=remote.commit, local_dir=folder)
        _check(path, name, nbytes, digest)
    first = next((name for name in remote.files if name.endswith(".gguf")), None)
    return folder if first is None else folder / first


def _check_room(remote: Remote, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    there = home.size_of(folder)
    free = shutil.disk_usage(folder).free
    if remote.nbytes > free + there:
        message = f"{remote.repository} needs {size(remote.nbytes - there)} in {folder.parent}, {size(free)} are free"
        raise TurbosparkError("disk_full", message, "make room, or let TURBOSPARK_HOME name another disk")


def _check(path: Path, name: str, nbytes: int, digest: str | None) -> None:
    found = path.stat().st_size
    if found == nbytes and digest is not None:
        sha = hashlib.sha256()
        with path.open("rb") as handle:
            while piece := handle.read(PIECE):
                sha.update(piece)
        if sha.hexdigest() == digest:
            return
        told = f"its sha256 is {sha.hexdigest()[:16]}..., the hub says {digest[:16]}..."
    elif found == nbytes:
        return
    else:
        told = f"it has {found} bytes, the hub says {nbytes}"
    path.unlink()
    raise TurbosparkError("bad_download", f"{name} did not arrive whole: {told}", "run it again, it is fetched anew")


class _hub:
    """The hub's library, and its errors as the program's own."""

    def __init__(self, repository: str):
        self.repository = repository

    def __enter__(self) -> Any:
        try:
            import huggingface_hub
        except ImportError:
            message = "models are fetched from the hub through huggingface_hub, which is not installed"
            raise TurbosparkError("no_hub", message, "pip install huggingface_hub") from None
        import sys

        from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

        (enable_progress_bars if sys.stderr.isatty() else disable_progress_bars)()
        return huggingface_hub

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, TurbosparkError) or not isinstance(error, Exception):
            return
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if status in STATUS:
            raise TurbosparkError(
                "hub_refused", f"{self.repository}: the hub answers {status}", STATUS[status]
            ) from None
        message = f"{self.repository} could not be fetched: {reason}"
        raise TurbosparkError("hub_unreachable", message, "what has arrived is kept; run it again") from None


def clean(alias: str) -> None:
    """Throws away what was fetched for an install that is complete."""
    shutil.rmtree(home.staging(alias), ignore_errors=True)
