"""A tokenizer from a Hugging Face folder: tokenizer.json and the files beside it."""

from __future__ import annotations

from pathlib import Path

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.tokenizer import Tokenizer


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of an HF folder, None when it has no tokenizer.json."""
    if not (folder / "tokenizer.json").exists():
        return None
    raise TurbosparkError("unsupported_tokenizer", f"{folder / 'tokenizer.json'} cannot be read yet")
