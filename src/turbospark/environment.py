"""The environment variables of the program, all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DRAFTS = ("TURBOSPARK_DFLASH_DRAFT", "TURBOSPARK_MTP_DRAFT")  # proposals a block; 0: off; unset or no number: auto


def draft_block(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """The variable that fixes the number of proposals, and that number; None when each leaves it open."""
    for name in DRAFTS:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return name, int(text[:9])
    return None


def cpu_level(environment: Mapping[str, str] = os.environ) -> str | None:
    """The instruction set the CPU kernels are forced to, TURBOSPARK_CPU_LEVEL; None when they choose."""
    return environment.get("TURBOSPARK_CPU_LEVEL") or None


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where compiled kernels are kept: turbospark/ below XDG_CACHE_HOME, which is ~/.cache unless set."""
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "turbospark"
