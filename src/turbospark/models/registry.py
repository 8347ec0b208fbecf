"""Family name -> model class."""

from __future__ import annotations

from importlib import import_module

from turbospark.errors import TurbosparkError
from turbospark.models.base import Model

FAMILIES = {
    "deepseek2": "turbospark.models.deepseek2:DeepSeek2",
    "gemma3": "turbospark.models.gemma3:Gemma3",
    "llama": "turbospark.models.llama:Llama",
    "qwen3_5": "turbospark.models.qwen3_5:Qwen35",
}


def model_class(family: str) -> type[Model]:
    if family not in FAMILIES:
        raise TurbosparkError(
            "unsupported_family", f"family {family!r} is not known; known: {', '.join(sorted(FAMILIES))}"
        )
    module, name = FAMILIES[family].split(":")
    return getattr(import_module(module), name)
