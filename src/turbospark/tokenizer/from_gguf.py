"""A tokenizer from GGUF metadata (`tokenizer.ggml.*`): byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

Source of the keys: the GGUF specification and llama.cpp's vocabulary loader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.byte_level import byte_level
from turbospark.tokenizer.chat import ChatTemplate
from turbospark.tokenizer.end_ids import end_sources
from turbospark.tokenizer.pretokenizers import pre_tokenizer
from turbospark.tokenizer.sentencepiece import SentencePiece
from turbospark.tokenizer.tokenizer import Encoder, Tokenizer
from turbospark.tokenizer.vocabulary import BYTE, NORMAL, Vocabulary

KEY = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
NO_TOKENIZER = (None, "none", "no_vocab")  # values of the model key in files that work on token ids alone
ENDS = ("eos", "eot", "eom")
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes; its encoder is only built when a text is encoded.

    metadata: the file's key-value section; arrays of strings are sequences of str (what is not UTF-8 as
    surrogateescape). Raises `no_tokenizer` when it describes none, `unsupported_tokenizer` for other models and
    pre-tokenizers, `bad_tokenizer` for entries that are missing or contradict each other.
    """
    model = metadata.get(KEY + "model")
    if model in NO_TOKENIZER:
        raise TurbosparkError("no_tokenizer", f"{KEY}model is {model!r}: the file describes no tokenizer")
    if model == "gpt2":
        return _byte_level(metadata)
    if model == "llama":
        return _sentencepiece(metadata)
    message = f"{KEY}model is {model!r}, which is not supported"
    raise TurbosparkError("unsupported_tokenizer", message, "supported: gpt2 (byte-level BPE), llama (SentencePiece)")


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    pre = pre_tokenizer(_required(metadata, "pre", str))
    vocabulary = Vocabulary(*_tokens(metadata), style="byte_level")
    merges = _array(metadata, "merges", str)
    return _tokenizer(metadata, vocabulary, partial(byte_level, vocabulary, merges, pre), pre.adds_bos)


def _sentencepiece(metadata: Mapping[str, Any]) -> Tokenizer:
    vocabulary = Vocabulary(*_tokens(metadata), style="spm")
    scores = _array(metadata, "scores", float, len(vocabulary))
    adds_space = _optional(metadata, KEY + "add_space_prefix", bool, True)
    build = partial(SentencePiece, vocabulary, scores, adds_space)
    return _tokenizer(metadata, vocabulary, build, adds_bos=True, adds_space=adds_space)


def _tokenizer(
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    build: Callable[[], Encoder],
    adds_bos: bool,
    adds_space: bool = False,
) -> Tokenizer:
    ids = {name: _optional(metadata, f"{KEY}{name}_token_id", int) for name in (*NAMED.values(), *ENDS)}
    ids = {name: token_id for name, token_id in ids.items() if token_id is not None}
    for name, token_id in ids.items():
        if not 0 <= token_id < len(vocabulary):
            raise _bad(f"{KEY}{name}_token_id is {token_id}, but the vocabulary has {len(vocabulary)} tokens")
    adds_bos = _optional(metadata, KEY + "add_bos_token", bool, adds_bos)
    if adds_bos and "bos" not in ids:
        raise _bad(f"texts begin with a BOS, but the file has no {KEY}bos_token_id")
    template = _optional(metadata, TEMPLATE, str)
    tool_template = _optional(metadata, TEMPLATE + ".tool_use", str)
    texts = {name: vocabulary.texts[ids[key]] for name, key in NAMED.items() if key in ids}
    return Tokenizer(
        vocabulary,
        build,
        prefix=(ids["bos"],) if adds_bos else (),
        bos_id=ids.get("bos"),
        end_sources=end_sources(vocabulary, [(f"{KEY}{end}_token_id", ids[end]) for end in ENDS if end in ids]),
        adds_space=adds_space,
        template=ChatTemplate(template, texts, tool_template) if template else None,
    )


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], bytes]:
    """Texts and kinds, in order of id. An empty text, which could not be told from others, gets a name."""
    texts = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(_array(metadata, "tokens", str))]
    if KEY + "token_type" not in metadata:
        return texts, bytes([NORMAL]) * len(texts)
    types = _array(metadata, "token_type", int, len(texts))
    if wrong := set(types) - set(range(BYTE + 1)):
        raise _bad(f"{KEY}token_type holds {min(wrong)}, types are 0 to {BYTE}")
    kinds = bytes(types)
    for text, kind in zip(texts, kinds, strict=True):
        if kind == BYTE and not re.fullmatch("<0x[0-9A-Fa-f]{2}>", text):
            raise _bad(f"a byte token should read like <0x0A>, the file has {text!r}")
    return texts, kinds


def _array(metadata: Mapping[str, Any], name: str, kind: type, count: int | None = None) -> list[Any]:
    """A required array of strings or numbers, one per token where `count` says how many tokens there are."""
    values = _required(metadata, name, object)
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise _bad(f"{KEY}{name} must be an array, is a {type(values).__name__}")
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    allowed = {int, float} if kind is float else {kind}
    if others := set(map(type, entries)) - allowed:
        raise _bad(f"{KEY}{name} must hold entries of type {kind.__name__}, has {others.pop().__name__}")
    if count is not None and len(entries) != count:
        raise _bad(f"{KEY}{name} has {len(entries)} entries, the vocabulary has {count} tokens")
    return entries


def _required(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    if KEY + name not in metadata:
        raise _bad(f"the file has no {KEY}{name}")
    return _optional(metadata, KEY + name, kind)


def _optional(metadata: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = metadata.get(key, default)
    if key in metadata and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise _bad(f"{key} must be of type {kind.__name__}, has {type(value).__name__} {value!r:.40}")
    return value


def _bad(message: str) -> TurbosparkError:
    return TurbosparkError("bad_tokenizer", message, "the file is damaged, or was converted by an old tool")
