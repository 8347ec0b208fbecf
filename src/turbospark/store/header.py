"""What a GGUF declares, without its tensors: a GGUF file of its own, byte for byte the source's keys and values."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from turbospark.formats.gguf_header import U32, Header
from turbospark.formats.mapped import MappedFile

MAGIC_AND_VERSION = 8
COUNTS = 16


def declarations(path: Path, added: Mapping[str, int] | None = None) -> bytes:
    """The key-value section of a GGUF that reads well, and whole numbers `added` to it."""
    header = Header(MappedFile(path))
    header.step(MAGIC_AND_VERSION, "the magic")
    header.count("tensors", 0)
    keys = header.count("metadata keys", 13)
    for index in range(keys):
        header.value(header.string(f"metadata key {index}"))
    kept = bytes(header.data[MAGIC_AND_VERSION + COUNTS : header.at])
    more = [
        struct.pack("<Q", len(k.encode())) + k.encode() + struct.pack("<II", U32, v) for k, v in (added or {}).items()
    ]
    head = bytes(header.data[:MAGIC_AND_VERSION]) + struct.pack("<QQ", 0, keys + len(more))
    return head + kept + b"".join(more)
