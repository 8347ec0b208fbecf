"""turbospark: large open language models on one machine, several tokens per forward, none of them changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turbospark.engine.loop import Engine
    from turbospark.engine.params import SamplingParams
    from turbospark.errors import TurbosparkError
    from turbospark.runtime import Chunk, Completion, LanguageModel, load

__version__ = "0.1.0"
__all__ = ["Chunk", "Completion", "Engine", "LanguageModel", "SamplingParams", "TurbosparkError", "load"]

_HOMES = {
    "Chunk": "runtime",
    "Completion": "runtime",
    "Engine": "engine.loop",
    "LanguageModel": "runtime",
    "SamplingParams": "engine.params",
    "TurbosparkError": "errors",
    "load": "runtime",
}


def __getattr__(name: str) -> Any:
    # nothing heavy is imported before it is asked for: `turbospark --help` answers at once
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"turbospark.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'turbospark' has no attribute {name!r}")
