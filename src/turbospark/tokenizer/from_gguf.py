"""A tokenizer from GGUF metadata (`tokenizer.ggml.*`): byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

Source of the keys: the GGUF specification and llama.cpp's vocabulary loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.chat import ChatTemplate
from turbospark.tokenizer.encoders import byte_level, sentencepiece
from turbospark.tokenizer.end_ids import end_sources
from turbospark.tokenizer.pretokenizers import pre_tokenizer
from turbospark.tokenizer.tokenizer import Tokenizer
from turbospark.tokenizer.vocabulary import BYTE, NORMAL, Vocabulary

KEY = "tokenizer.ggml."
NO_TOKENIZER = (None, "none", "no_vocab")  # values of the model key in files that work on token ids alone
END_KEYS = (KEY + "eos_token_id", KEY + "eot_token_id", KEY + "eom_token_id")
NAMED_KEYS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


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
    raise TurbosparkError(
        "unsupported_tokenizer", message, "supported: gpt2 (byte-level BPE), llama (SentencePiece)"
    )


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    pre = pre_tokenizer(_required(metadata, KEY + "pre"))
    vocabulary = Vocabulary(*_tokens(metadata), style="byte_level")
    merges = _required(metadata, KEY + "merges")
    return _tokenizer(metadata, vocabulary, partial(byte_level, vocabulary, merges, pre), pre.adds_bos)


def _sentencepiece(metadata: Mapping[str, Any]) -> Tokenizer:
    vocabulary = Vocabulary(*_tokens(metadata), style="spm")
    scores = _per_token(metadata, KEY + "scores", len(vocabulary))
    adds_space = bool(metadata.get(KEY + "add_space_prefix", True))
    build = partial(sentencepiece, vocabulary, scores, adds_space)
    return _tokenizer(metadata, vocabulary, build, adds_bos=True, adds_space=adds_space)


def _tokenizer(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, build: Any, adds_bos: bool, adds_space: bool = False
) -> Tokenizer:
    bos_id = _token_id(metadata, KEY + "bos_token_id", len(vocabulary))
    adds_bos = bool(metadata.get(KEY + "add_bos_token", adds_bos))
    if adds_bos and bos_id is None:
        raise TurbosparkError(
            "bad_tokenizer", f"texts begin with a BOS, but the file has no {KEY}bos_token_id"
        )
    named = {
        name: _token_id(metadata, f"{KEY}{key}_token_id", len(vocabulary)) for name, key in NAMED_KEYS.items()
    }
    texts = {name: vocabulary.texts[token_id] for name, token_id in named.items() if token_id is not None}
    return Tokenizer(
        vocabulary,
        build,
        prefix=(bos_id,) if adds_bos and bos_id is not None else (),
        bos_id=bos_id,
        end_sources=end_sources(vocabulary, [(key, metadata[key]) for key in END_KEYS if key in metadata]),
        adds_space=adds_space,
        template=ChatTemplate(metadata["tokenizer.chat_template"], texts)
        if "tokenizer.chat_template" in metadata
        else None,
    )


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise TurbosparkError(
            "bad_tokenizer", f"the file has no {key}", "convert the model again with a newer tool"
        )
    return metadata[key]


def _per_token(metadata: Mapping[str, Any], key: str, count: int) -> Sequence[Any]:
    values = _required(metadata, key)
    if len(values) != count:
        raise TurbosparkError(
            "bad_tokenizer", f"{key} has {len(values)} entries, the vocabulary has {count} tokens"
        )
    return values


def _token_id(metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    token_id = metadata.get(key)
    if token_id is not None and not 0 <= token_id < count:
        raise TurbosparkError("bad_tokenizer", f"{key} is {token_id}, but the vocabulary has {count} tokens")
    return token_id


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Texts and kinds, in order of id. Texts are unique, so that an encoder can hold them."""
    texts = list(_required(metadata, KEY + "tokens"))
    kinds = [int(kind) for kind in metadata.get(KEY + "token_type", [NORMAL] * len(texts))]
    if len(kinds) != len(texts):
        raise TurbosparkError(
            "bad_tokenizer", f"{KEY}token_type has {len(kinds)} entries for {len(texts)} tokens"
        )
    seen: dict[str, int] = {}
    for token_id, text in enumerate(texts):
        if (first := seen.setdefault(text, token_id)) != token_id:
            raise TurbosparkError("bad_tokenizer", f"token {text!r} has two ids, {first} and {token_id}")
        if kinds[token_id] == BYTE and not re.fullmatch("<0x[0-9A-Fa-f]{2}>", text):
            raise TurbosparkError(
                "bad_tokenizer", f"token {token_id} is a byte and should read <0x..>, has {text!r}"
            )
    return texts, kinds
