"""JSON from a file that may be wrong: one object, no key with two values, and errors that say where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from turbospark.errors import TurbosparkError
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown

MAX_BYTES = 100_000_000  # as the safetensors package limits its headers


def parse_object(text: bytes, where: str, code: str = "bad_json", once: tuple[str, ...] = ()) -> dict[str, Any]:
    """The object in UTF-8 `text`; `where` names it in errors of code `code`.

    A key that comes twice is refused, unless both values are equal and it is not one of `once`.
    """

    def join(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        joined = dict(pairs)
        if len(joined) < len(pairs):
            seen: dict[str, Any] = {}
            for key, value in pairs:
                if key in seen and (key in once or seen[key] != value):
                    raise TurbosparkError(code, f"{where} has the key {shown(key)} twice")
                seen[key] = value
        return joined

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=join, parse_int=_integer if b"-0" in text else None)
    except UnicodeDecodeError as error:
        raise TurbosparkError(code, f"{where} is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise TurbosparkError(code, f"{where} is not JSON at {at}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise TurbosparkError(code, f"{where} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise TurbosparkError(code, f"{where} must be a JSON object, is {type(value).__name__}")
    return value


def _integer(text: str) -> int | float:
    """Minus zero is no integer, as other JSON readers have it."""
    return int(text) if text != "-0" else -0.0


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file. Raises `bad_json`, and what MappedFile raises."""
    file = MappedFile(path)
    if file.size > MAX_BYTES:
        raise TurbosparkError("bad_json", f"{path} has {file.size} bytes, at most {MAX_BYTES} are read")
    return parse_object(file.data.tobytes(), str(path))
