"""Pieces of error messages: values and names out of files, printable and of bounded length."""

from __future__ import annotations

import reprlib
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 160
_REPR.maxlist = 12


def shown(value: Any) -> str:
    """Like repr, shortened in the middle."""
    return _REPR.repr(value)


def listed(names: list[str], most: int = 40) -> str:
    """The first `most` names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    plain = (name if name.isprintable() and len(name) <= 160 else shown(name) for name in names[:most])
    return ", ".join(plain) + more
