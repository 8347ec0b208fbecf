"""Tokenizers of a few hundred tokens: one token per byte, a small BPE with awkward borders, a small SentencePiece."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny.gguf_file import write_gguf
from turbospark.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, byte_alphabet

BOS, EOS, TURN, END = "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What the small BPE joins, in this order: words; an emoji (F0 9F 98 80) in two halves; U+FFFD whole; a letter with
# half of the combining mark that follows it (CC 81).
JOINS = [
    *((b"h", b"e"), (b"l", b"l"), (b"he", b"ll"), (b"hell", b"o"), (b" ", b"hello"), (b" ", b" "), (b" ", b"t")),
    *((b" t", b"he"), (b"i", b"n"), (b"in", b"g"), (b"\n", b"\n")),
    *((b"\xf0", b"\x9f"), (b"\x98", b"\x80"), (b"\xef", b"\xbf"), (b"\xef\xbf", b"\xbd"), (b"e", b"\xcc")),
]


def spelled(data: bytes) -> str:
    """Bytes as byte-level BPE writes them."""
    return "".join(byte_alphabet()[byte] for byte in data)


def bpe_metadata(
    joins: Iterable[tuple[bytes, bytes]] = JOINS, pre: str = "qwen35", template: str | None = CHAT, **fields: Any
) -> dict[str, Any]:
    """GGUF metadata of a byte-level BPE. Ids 0..255 are the bytes, then come BOS, EOS, the two marks of a turn, one
    user-defined token, and the joins. `fields` go in under tokenizer.ggml., None takes a key out."""
    joins = list(joins)
    control = [BOS, EOS, TURN, END]
    joined = dict.fromkeys(spelled(left + right) for left, right in joins)
    key = "tokenizer.ggml."
    metadata = {
        key + "model": "gpt2",
        key + "pre": pre,
        key + "tokens": [*byte_alphabet(), *control, "<think>", *joined],
        key + "token_type": np.array(
            [NORMAL] * 256 + [CONTROL] * 4 + [USER_DEFINED] + [NORMAL] * len(joined), np.int32
        ),
        key + "merges": [f"{spelled(left)} {spelled(right)}" for left, right in joins],
        key + "bos_token_id": 256,
        key + "eos_token_id": 257,
        key + "add_bos_token": False,
        "tokenizer.chat_template": template,
    } | {key + name: value for name, value in fields.items()}
    return {name: value for name, value in metadata.items() if value is not None}


def byte_tokenizer_metadata(template: str | None = CHAT, **fields: Any) -> dict[str, Any]:
    """GGUF metadata of a tokenizer with one token per byte (id = byte) and the five special ones: 261 tokens."""
    return bpe_metadata([], template=template, **fields)


def write_tokenizer_json(
    folder: Path, joins: Iterable[tuple[bytes, bytes]] = JOINS, template: str | None = CHAT, **config: Any
) -> Path:
    """The same BPE as an HF folder's tokenizer.json and tokenizer_config.json; `config` goes into the latter."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    metadata = bpe_metadata(joins)
    texts = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges))
    words = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), to_bytes])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts[256:260]])
    backend.add_tokens([AddedToken(texts[260], normalized=False, special=False)])
    backend.save(str(folder / "tokenizer.json"))
    fields = {"bos_token": BOS, "eos_token": EOS, "chat_template": template, **config}
    text = json.dumps({name: value for name, value in fields.items() if value is not None})
    (folder / "tokenizer_config.json").write_text(text)
    return folder


def spm_metadata(pieces: Mapping[str, float], **fields: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece BPE: <unk>, <s>, </s>, the 256 bytes, one user-defined token, then `pieces`
    with their scores."""
    key = "tokenizer.ggml."
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<think>", *pieces]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED, *[NORMAL] * len(pieces)]
    metadata = {
        key + "model": "llama",
        key + "tokens": texts,
        key + "scores": np.array([0.0] * 260 + list(pieces.values()), np.float32),
        key + "token_type": np.array(kinds, np.int32),
        key + "bos_token_id": 1,
        key + "eos_token_id": 2,
        key + "unknown_token_id": 0,
    } | {key + name: value for name, value in fields.items()}
    return {name: value for name, value in metadata.items() if value is not None}


def write_model_around(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file that llama.cpp loads: the tokenizer of `metadata` and a llama of one narrow layer."""
    count, width = len(metadata["tokenizer.ggml.tokens"]), 32
    shapes = {
        "token_embd": (count, width),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
        **{f"blk.0.attn_{name}": (width, width) for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}": (width, width) for name in ("gate", "up", "down")},
    }
    header = {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "llama.embedding_length": width,
        "llama.block_count": 1,
        "llama.feed_forward_length": width,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    tensors = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return write_gguf(path, {**header, **metadata}, tensors)
