"""GGUF files written: whatever there is to put into one, and a drafter as one of architecture `dflash`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.draft.dflash_config import DFlashConfig
from turbospark.draft.dflash_names import locator
from turbospark.formats.ggml_types import GGML_IDS
from turbospark.quant.tensor import QTensor

ALIGNMENT = 32
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
Values = np.ndarray | QTensor
Entry = tuple[str, str, Values]  # name, format, values or what they are encoded as


def write_gguf(
    path: Path, config: DFlashConfig, tensors: Mapping[str, Values], matrices: str = "Q4_1", codebooks: str = "Q4_0"
) -> None:
    """Tensors by published name, float32 or encoded already, and d2t of whole numbers.

    Vectors and convolution kernels stay F32.
    """
    place = locator("gguf")

    def format(name: str, v: Values) -> str:
        if isinstance(v, QTensor):
            return v.format
        if v.dtype.kind == "i":
            return "I32"
        return "F32" if v.ndim != 2 else codebooks if name.endswith("codebook") else matrices

    entries = [(next(iter(place(n))), format(n, v), v) for n, v in tensors.items()]
    write_file(path, _metadata(config), entries)


def write_file(path: Path, metadata: Mapping[str, Any], entries: Iterable[Entry]) -> None:
    """Metadata: numbers, truths, texts and lists of one of them. Tensors: encoded, I32 stored as it is."""
    stored = [(name, format, values.shape, _encoded(name, format, values)) for name, format, values in entries]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(stored), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    at = 0
    for name, format, shape, data in stored:
        head += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", GGML_IDS[format], at)
        at += len(data) + -len(data) % ALIGNMENT
    with path.open("wb") as out:
        out.write(_padded(head))
        for *_, data in stored:
            out.write(_padded(data))


def _encoded(name: str, format: str, values: Values) -> bytes:
    if isinstance(values, QTensor):
        return values.data.tobytes()
    if format == "I32":
        return values.astype("<i4").tobytes()
    return quant.encode(values.astype(np.float32), format, name).data.tobytes()


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
    if not isinstance(value, list):
        code, pack = _packing(value)
        return struct.pack("<I", code) + pack(value)
    code, pack = _packing(value[0])
    return struct.pack("<IIQ", ARRAY, code, len(value)) + b"".join(map(pack, value))


def _packing(value: Any) -> tuple[int, Callable[[Any], bytes]]:
    if isinstance(value, str):
        return STRING, _text
    if isinstance(value, bool):
        return BOOL, struct.Struct("<?").pack
    return (U32, struct.Struct("<I").pack) if isinstance(value, int) else (F32, struct.Struct("<f").pack)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
