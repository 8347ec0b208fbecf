"""Family name -> model class."""

from __future__ import annotations

from importlib import import_module

from turbospark.errors import TurbosparkError
from turbospark.models.base import Model

FAMILIES = {
    "llama": "turbospark.models.llama:Llama",
}


def model_class(family: str) -> type[Model]:
    if family not in FAMILIES:
        raise TurbosparkError(
            "unsupported_family", f"family {family!r} is not known; known: {', '.join(sorted(FAMILIES))}"
        )
    module, name = FAMILIES[family].split(":")
    return getattr(import_module(module), name)
