"""Where installs are kept: a folder an alias, below TURBOSPARK_HOME."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turbospark.environment import home
from turbospark.errors import TurbosparkError
from turbospark.formats.install_names import PARTIAL, SUFFIX

ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
REMOVED, JOURNAL, DOWNLOAD = ".removed", ".journal", ".download"  # beside .partial, endings of what is no install


def check_alias(alias: str) -> None:
    """Raises `bad_alias` for a name that could not be a folder everywhere."""
    if not ALIAS.fullmatch(alias) or alias.endswith((SUFFIX, PARTIAL, REMOVED)):
        message = f"{alias[:100]!r} cannot be an alias"
        raise TurbosparkError("bad_alias", message, "letters, digits, '.', '_' and '-', at most 80, first no sign")


def place(alias: str) -> Path:
    """The folder of an alias, whether it is there or not."""
    return home() / (alias + SUFFIX)


def partial(alias: str) -> Path:
    """The folder in which its install grows, and which never opens."""
    return home() / f".{alias}{SUFFIX}{PARTIAL}"


def is_taken(alias: str) -> bool:
    """Whether anything bears the name, a link that leads nowhere as well."""
    return os.path.lexists(place(alias))


def taken(alias: str) -> TurbosparkError:
    """The refusal to write over an install."""
    message = f"alias {alias!r} is installed already: {place(alias)}"
    return TurbosparkError("alias_taken", message, f"turbospark rm {alias}, or take another alias")


def staging(alias: str) -> Path:
    """Where fetched files of a model are kept until its install is complete."""
    return partial(alias).with_suffix(DOWNLOAD)


def installed(alias: str) -> Path | None:
    """The folder of an alias, where there is one."""
    # os.path: a home that may not be searched, or whose name cannot be, holds nothing to find
    return place(alias) if ALIAS.fullmatch(alias) and os.path.isdir(place(alias)) else None


def installs() -> Iterator[tuple[str, Path]]:
    """Every alias and its folder, in order of the names."""
    try:
        entries = sorted(home().iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(SUFFIX) and not entry.name.startswith(".") and os.path.isdir(entry):
            yield entry.name.removesuffix(SUFFIX), entry


@contextmanager
def locked(alias: str) -> Iterator[None]:
    """One at a time writes or removes an alias, across processes. Raises `import_running`, `home_unwritable`."""
    import fcntl

    path = home() / f".{alias}{SUFFIX}.lock"
    try:
        home().mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        message = f"{home()} cannot be written to: {error.strerror}"
        raise TurbosparkError("home_unwritable", message, "TURBOSPARK_HOME names another folder") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"alias {alias!r} is being written or removed by another process"
            raise TurbosparkError("import_running", message, "wait for it, or take another alias") from None
        yield
    finally:
        os.close(handle)


def remove(alias: str) -> int:
    """Deletes an install, and what an import or a download of it left unfinished. Returns the bytes freed.

    The folder is renamed first: one that is half deleted never opens. Raises `not_installed`.
    """
    check_alias(alias)
    with locked(alias):
        gone = home() / f".{alias}{SUFFIX}{REMOVED}"
        found = [path for path in (place(alias), partial(alias), staging(alias), gone) if os.path.lexists(path)]
        if not found:
            known = ", ".join(name for name, _ in installs()) or "none"
            raise TurbosparkError("not_installed", f"{home()} has no install {alias!r}", f"installed: {known}")
        freed = sum(size_of(path) for path in found if not path.is_symlink())
        for path in found:
            if path != gone:
                _delete(gone)
                path.rename(gone)
            _delete(gone)
        partial(alias).with_suffix(JOURNAL).unlink(missing_ok=True)
        return freed


def _delete(folder: Path) -> None:
    """A link goes alone: what it points to was put there by somebody else."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
