"""A trained trunk, its tokenizer and its MTP head as one GGUF file of architecture `qwen35`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from turbospark.tokenizer.vocabulary import CONTROL, NORMAL
from turbospark.train.gguf import Entry, write_file
from turbospark.train.hybrid.model import Hybrid, MTPHead, Shape
from turbospark.train.hybrid.text import END, MASK, PRE
from turbospark.train.qwen import ENDINGS

ABOUT = {"general.name": "hybrid-demo", "general.license": "apache-2.0"}
NEXTN = ("eh_proj", "enorm", "hnorm", "shared_head_norm")


def write_trunk(path: Path, model: Hybrid, tokenizer: Path, mtp: MTPHead | None = None, matrices: str = "Q8_0") -> None:
    """Matrices in that format, everything else F32. tokenizer: the library's JSON file."""
    keys = _metadata(model.shape, mtp is not None) | _tokenizer(json.loads(tokenizer.read_text()))
    write_file(path, keys, _entries(model, mtp, matrices))


def _entries(model: Hybrid, mtp: MTPHead | None, matrices: str) -> Iterator[Entry]:
    format = lambda shape: matrices if len(shape) == 2 and shape[1] % 32 == 0 else "F32"
    values = lambda part, name: getattr(part, name).detach().float().cpu().numpy()
    entry = lambda name, array: (name, format(array.shape), array)
    yield entry("token_embd.weight", values(model, "token_embd"))
    yield entry("output_norm.weight", values(model, "output_norm"))
    layers: list[nn.Module] = [*model.layers, *([] if mtp is None else [mtp.layer])]
    for i, layer in enumerate(layers):
        for name, _ in layer.named_parameters():
            array = values(layer, name)
            yield entry(f"blk.{i}.{name}{ENDINGS.get(name, '.weight')}", -np.exp(array) if name == "ssm_a" else array)
    if mtp is not None:
        for name in NEXTN:
            yield entry(f"blk.{len(model.layers)}.nextn.{name}.weight", values(mtp, name))


def _metadata(s: Shape, mtp: bool) -> dict[str, Any]:
    keys = {
        "block_count": s.layers + mtp,
        "nextn_predict_layers": int(mtp),
        "context_length": s.context,
        "embedding_length": s.hidden,
        "feed_forward_length": s.width,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": s.eps,
        "rope.freq_base": s.theta,
        "rope.dimension_count": s.rotated,
        "rope.dimension_sections": [s.rotated // 2 - 2, 1, 1, 0],  # an image's axes; a text's are one
        "ssm.conv_kernel": s.conv,
        "ssm.state_size": s.delta_dim,
        "ssm.group_count": s.key_heads,
        "ssm.time_step_rank": s.value_heads,
        "ssm.inner_size": s.value_heads * s.delta_dim,
        "full_attention_interval": s.interval,
    }
    return {"general.architecture": "qwen35", **ABOUT, **{f"qwen35.{key}": value for key, value in keys.items()}}


def _tokenizer(stored: dict[str, Any]) -> dict[str, Any]:
    """The keys of a GGUF's tokenizer, from the library's JSON."""
    vocab = stored["model"]["vocab"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in stored["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE,
        "tokenizer.ggml.tokens": sorted(vocab, key=vocab.__getitem__),
        "tokenizer.ggml.token_type": [CONTROL if i in (vocab[END], vocab[MASK]) else NORMAL for i in range(len(vocab))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": vocab[END],
        "tokenizer.ggml.add_bos_token": False,
    }
