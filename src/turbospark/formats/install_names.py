"""What the files and folders of an install are called."""

from __future__ import annotations

SUFFIX = ".gturbo"
PARTIAL = ".partial"  # behind the name of a folder in which an install is still being written
MANIFEST, WEIGHTS, LAYOUT = "manifest.json", "model_weights.bin", "packed_experts/layout.json"
GGUF_HEADER, HF_CONFIG = "source.gguf", "config.json"  # what the source declares, whole
DRAFTER_GGUF, DRAFTER_CONFIG = "drafter.gguf", "drafter.json"
