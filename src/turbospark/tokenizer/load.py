"""The tokenizer of a model on disk, whatever its format."""

from __future__ import annotations

from pathlib import Path

from turbospark.formats.checkpoint import Checkpoint
from turbospark.tokenizer.tokenizer import Tokenizer


def load_tokenizer(source: Checkpoint | str | Path) -> Tokenizer | None:
    """The tokenizer of an open checkpoint, or of a Hugging Face folder; None when it has none.

    Raises the errors of `from_gguf` and `from_folder`.
    """
    if isinstance(source, Checkpoint) and source.kind == "gguf":
        from turbospark.tokenizer.from_gguf import NO_TOKENIZER, from_gguf

        model = source.metadata.get("tokenizer.ggml.model")
        return None if model in NO_TOKENIZER else from_gguf(source.metadata)
    from turbospark.tokenizer.from_json import from_folder

    return from_folder(Path(source.path if isinstance(source, Checkpoint) else source))
