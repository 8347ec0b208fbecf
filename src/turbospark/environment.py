"""The environment variables of the program, all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from turbospark.errors import TurbosparkError

# by kind of drafter: proposals a block; 0: off; unset or no number: auto
DRAFTS = {"TURBOSPARK_DFLASH_DRAFT": "dflash", "TURBOSPARK_MTP_DRAFT": "mtp"}


def draft_block(environment: Mapping[str, str] = os.environ) -> tuple[str, str, int] | None:
    """The variable that fixes the number of proposals, its kind of drafter, and the number; None: all leave it open.

    One that asks for proposals goes before one that says 0.
    """
    texts = {name: environment.get(name, "") for name in DRAFTS}
    numbers = {name: int(text[:9]) for name, text in texts.items() if text.isascii() and text.isdigit()}
    name = next((name for name in numbers if numbers[name]), next(iter(numbers), None))
    return None if name is None else (name, DRAFTS[name], numbers[name])


def spec_stats(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether TURBOSPARK_SPEC_STATS asks for acceptance by position and rollbacks."""
    return environment.get("TURBOSPARK_SPEC_STATS", "") not in ("", "0")


def phases(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether TURBOSPARK_PHASES asks where the time of an answer went."""
    return environment.get("TURBOSPARK_PHASES", "") not in ("", "0")


def cpu_level(environment: Mapping[str, str] = os.environ) -> str | None:
    """The instruction set the CPU kernels are forced to, TURBOSPARK_CPU_LEVEL; None when they choose."""
    return environment.get("TURBOSPARK_CPU_LEVEL") or None


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where compiled kernels are kept: turbospark/ below XDG_CACHE_HOME, which is ~/.cache unless set."""
    return _folder("XDG_CACHE_HOME", "~/.cache", environment) / "turbospark"


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where installs are kept: TURBOSPARK_HOME, which is ~/.turbospark unless set."""
    return _folder("TURBOSPARK_HOME", "~/.turbospark", environment)


def _folder(name: str, default: str, environment: Mapping[str, str]) -> Path:
    """Raises `no_home` where ~ stands for a folder that nobody knows."""
    text = environment.get(name) or default
    try:
        return Path(text).expanduser()
    except RuntimeError:
        message = f"{name} is {text!r}, and whose home that is cannot be told"
        raise TurbosparkError("no_home", message, f"{name} may name any folder by its whole path") from None
