"""A drafter as one GGUF file of architecture `dflash`, quantised."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.draft.dflash_config import DFlashConfig
from turbospark.draft.dflash_names import locator
from turbospark.formats.ggml_types import GGML_IDS

ALIGNMENT = 32
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def write_gguf(
    path: Path, config: DFlashConfig, tensors: Mapping[str, np.ndarray], matrices: str = "Q4_1", codebooks: str = "Q4_0"
) -> None:
    """Tensors by published name, float32, and d2t of whole numbers. Vectors and convolution kernels stay F32."""
    place = locator("gguf")
    entries = []
    for name, values in tensors.items():
        stored = next(iter(place(name)))
        if values.dtype.kind == "i":
            entries.append((stored, "I32", values.shape, values.astype("<i4").tobytes()))
            continue
        format = codebooks if name.endswith("codebook") else matrices if values.ndim == 2 else "F32"
        encoded = quant.encode(values.astype(np.float32), format, name)
        entries.append((stored, format, values.shape, encoded.data.tobytes()))
    metadata = _metadata(config)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    at = 0
    for name, format, shape, data in entries:
        head += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", GGML_IDS[format], at)
        at += len(data) + -len(data) % ALIGNMENT
    with path.open("wb") as out:
        out.write(_padded(head))
        for *_, data in entries:
            out.write(_padded(data))


def _metadata(c: DFlashConfig) -> dict[str, Any]:
    windows = [layer.window for layer in c.layers]
    keys: dict[str, Any] = {
        "block_count": len(c.layers),
        "vocab_size": c.vocab,
        "embedding_length": c.hidden,
        "feed_forward_length": c.width,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.eps,
        "attention.causal": any(layer.causal for layer in c.layers),
        "rope.freq_base": float(c.rope.theta),
        "block_size": c.block,
        "target_layers": [tap + 1 for tap in c.taps],
        "embedding_scale": c.embedding_scale,
        "logit_scale": c.output_multiplier,
    }
    if any(windows):
        keys["attention.sliding_window"] = max(w or 0 for w in windows)
        keys["attention.sliding_window_pattern"] = [w is not None for w in windows]
    if c.target_layers is not None:
        keys["target_layer_count"] = c.target_layers
    if c.selector is not None:
        keys |= {"selector_rank": c.selector.rank, "selector_top_k": c.selector.top_k}
        keys |= {"conv_kernel_size": c.conv_taps, "conv_group_size": c.conv_group}
    if c.softcap is not None:
        keys["final_logit_softcapping"] = c.softcap
    if c.draft_vocab is not None:
        keys["draft_vocab_size"] = c.draft_vocab
    if c.trunk is not None:
        keys["trunk_fingerprint"] = c.trunk
    return {
        "general.architecture": "dflash",
        **{f"dflash.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.mask_token_id": c.mask_id,
    }


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        code = BOOL if isinstance(value[0], bool) else U32
        packed = b"".join(struct.pack("<?" if code == BOOL else "<I", v) for v in value)
        return struct.pack("<IIQ", ARRAY, code, len(value)) + packed
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    return struct.pack("<II", U32, value) if isinstance(value, int) else struct.pack("<If", F32, value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
