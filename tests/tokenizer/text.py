"""Text to compare tokenizers on: code, every script, emoji, controls, and mixtures of them, the same in every run."""

from __future__ import annotations

import string
import sysconfig
import unicodedata
from functools import lru_cache
from pathlib import Path
from random import Random

AWKWARD = [
    *(
        "don't",
        "I'LL",
        "we've",
        "x's",
        "'S",
        "l'\u017f",
        "''",
        "camelCase",
        "HTTPServer",
        "snake_case",
        "e\u0301",
        "\u01c5",
    ),
    *(" ", "  ", "   ", " " * 33, "\t", "\t\t", "\n", "\r", "\r\n", "\n\n\n", " \n ", "\x0b", "\x0c", "\x85", "\xa0"),
    *(
        "\u2028",
        "\u3000",
        "\u200b",
        "\ufeff",
        "\u2581",
        "\u0120",
        "\ufffd",
        "\0",
        "\x04",
        "\x13",
        "\x1b",
        "\x1d",
        "\x7f",
    ),
    *("1", "12", "123", "4567890", "3.14", "1,000", "\xbd", "\xb2", "\u0663\u0664", "\uff11\uff12", "\u2167"),
    *(
        ".",
        "...",
        "!?",
        "//",
        "(",
        ")}",
        "==",
        "$",
        "\u20ac",
        "+",
        "|",
        "`",
        "~",
        "\u3002",
        "\uff01",
        "\u2019",
        "\u2014",
    ),
    *(
        "\U0001f600",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f1fa\U0001f1f3",
        "\u2764\ufe0f",
        "\U0001f44d\U0001f3fd",
    ),
    *(
        "\u4f60\u597d",
        "\u65e5\u672c\u8a9e",
        "\u30ab\u30bf",
        "\ud55c\uad6d",
        "\u0e01\u0e33",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
    ),
    *(
        "\u041f\u0440\u0438",
        "\u0645\u0631\u062d\u0628\u0627",
        "\u05e9\u05dc\u05d5\u05dd",
        "\u10d0",
        "\U0001d400",
        "\U00020000",
    ),
]


@lru_cache
def assigned() -> list[str]:
    """All characters of Unicode as this Python knows them, without surrogates and private ones."""
    return [char for char in map(chr, range(0x110000)) if unicodedata.category(char) not in ("Cn", "Co", "Cs")]


def source_code(size: int) -> str:
    """The beginning of the standard library, in order of its file names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = ""
    while len(text) < size:
        text += files.pop(0).read_text(encoding="utf-8")
    return text[:size]


def characters(count: int) -> str:
    """Characters from all over Unicode, in runs of neighbours and alone."""
    random, out = Random(1), []
    while len(out) < count:
        start, length = random.randrange(len(assigned())), random.choice((1, 1, 1, 2, 5, 20))
        out += [*assigned()[start : start + length], random.choice(("", "", " ", "\n", "a", "7"))]
    return "".join(out)


def mixture(count: int, words: list[str] = AWKWARD) -> str:
    """`count` awkward words and letters in random order."""
    random = Random(2)
    return "".join(
        random.choice(words) if random.random() < 0.8 else random.choice(string.printable) for _ in range(count)
    )


def mixed_text() -> str:
    """About a megabyte in UTF-8."""
    return source_code(300_000) + characters(110_000) + mixture(120_000)


def chunks(text: str, size: int = 4000) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
