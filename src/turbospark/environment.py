"""The environment variables of the program, all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

DRAFTS = ("TURBOSPARK_DFLASH_DRAFT", "TURBOSPARK_MTP_DRAFT")  # proposals a block; 0: off; unset or no number: auto


def draft_block(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """The variable that fixes the number of proposals, and that number; None when each leaves it open."""
    for name in DRAFTS:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return name, int(text[:9])
    return None
