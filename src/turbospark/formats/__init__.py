"""File readers: bytes to named tensors, bounds checked, no numerics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from turbospark.errors import TurbosparkError

if TYPE_CHECKING:
    from turbospark.formats.checkpoint import Checkpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a GGUF file (any part of a split one), a Hugging Face folder or an install. Only headers are read.

    Raises `file_missing`, `file_empty`, `unknown_file` and what read_gguf, read_folder and read_install raise.
    """
    # imported late, so that ggml_types can be had without the readers
    from turbospark.formats.gguf import read_gguf
    from turbospark.formats.install import read_install
    from turbospark.formats.manifest import is_install
    from turbospark.formats.shards import read_folder

    path = Path(path)
    if os.path.isdir(path):
        return read_install(path) if is_install(path) else read_folder(path)
    if path.suffix == ".safetensors" and os.path.exists(path):
        raise TurbosparkError("unknown_file", f"{path} is weights without a config", f"open its folder: {path.parent}")
    return read_gguf(path)
