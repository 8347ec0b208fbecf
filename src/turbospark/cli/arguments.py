"""Types of flags: text to values. What a value may be is checked by who uses it."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from turbospark.errors import TurbosparkError
from turbospark.units import SIZES


class Parser(argparse.ArgumentParser):
    """Raises what argparse would print, as the program's own error; flags are spelled out."""

    def __init__(self, **kwargs: Any):
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise TurbosparkError("bad_arguments", message, f"{self.prog} --help")


def text(given: str) -> str:
    """Text for the model."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"is not UTF-8 at character {error.start}") from None
    return given


def whole(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, has {given[:60]!r}") from None


def whole_or_auto(given: str) -> int | None:
    return None if given == "auto" else whole(given)


def count_or_auto(given: str) -> int | None:
    value = whole_or_auto(given)
    if value is not None and value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, has {value}")
    return value


def bytes_or_auto(given: str) -> int | None:
    """A number of bytes, or of kB, MB, GB (thousands) or KiB, MiB, GiB (1024s) of them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", given)
    if match is None:
        return count_or_auto(given)
    if match[2] not in SIZES:
        raise argparse.ArgumentTypeError(f"has the unit {match[2][:20]!r}, known are {', '.join(SIZES)}")
    return count_or_auto(str(int(float(match[1]) * SIZES[match[2]])))


def number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, has {given[:60]!r}") from None


def speculative(given: str) -> str | int:
    return given if given in ("off", "auto") else whole(given)
