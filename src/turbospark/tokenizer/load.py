"""The tokenizer of a model on disk, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from turbospark.tokenizer.from_gguf import NO_TOKENIZER, from_gguf
from turbospark.tokenizer.from_json import from_folder
from turbospark.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from turbospark.formats.checkpoint import Checkpoint


def load_tokenizer(source: Checkpoint | str | Path) -> Tokenizer | None:
    """The tokenizer of an open checkpoint, or of a Hugging Face folder; None when it has none.

    Raises the errors of `from_gguf` and `from_folder`.
    """
    if isinstance(source, str | Path):
        return from_folder(Path(source))
    if source.kind == "gguf":
        model = source.metadata.get("tokenizer.ggml.model")
        return None if model in NO_TOKENIZER else from_gguf(source.metadata)
    return from_folder(source.path)
