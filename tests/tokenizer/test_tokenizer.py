"""Encoding and decoding on tokenizers of a few hundred tokens."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny.tokenizers import BOS, END, bpe_metadata, byte_tokenizer_metadata, spm_metadata
from tests.tokenizer.text import mixture
from turbospark.errors import TurbosparkError
from turbospark.tokenizer import Tokenizer
from turbospark.tokenizer.from_gguf import from_gguf
from turbospark.tokenizer.pretokenizers import PRE_TOKENIZERS
from turbospark.tokenizer.stream import Utf8Stream

PIECES = {"\u2581": -9.0, "a": -8.0, "b": -7.0, "\u2581a": -1.0, "ab": -2.0, "\u2581\u2581": -3.0}
BYTES, BPE = from_gguf(byte_tokenizer_metadata()), from_gguf(bpe_metadata())
SPACED, PLAIN = (from_gguf(spm_metadata(PIECES, add_space_prefix=adds)) for adds in (True, False))


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = Utf8Stream()
    return "".join(stream.push(tokenizer.piece(i)) for i in ids) + stream.close()


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, PLAIN, SPACED])
@settings(deadline=None)
@given(text=st.text())
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    if tokenizer.vocabulary.style == "spm":
        text = text.replace("\u2581", " ")
    ids = tokenizer.encode(text, special=False)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, PLAIN, SPACED])
@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 260)))
def test_pieces_join_to_the_whole_however_they_are_cut(tokenizer: Tokenizer, ids: list[int]) -> None:
    joined = b"".join(tokenizer.piece(i) for i in ids)
    text = tokenizer.decode(ids, whole=False)
    assert text == joined.decode("utf-8", "replace") == streamed(tokenizer, ids)
    assert tokenizer.decode(ids) == (text.removeprefix(" ") if tokenizer is SPACED else text)


def test_the_small_bpe_cuts_characters_where_it_should() -> None:
    ids = BPE.encode("\U0001f600\ufffde\u0301")
    assert [BPE.piece(i) for i in ids] == [b"\xf0\x9f", b"\x98\x80", b"\xef\xbf\xbd", b"e\xcc", b"\x81"]
    assert BPE.decode(ids[:1]) == BPE.decode([0xFF]) == "\ufffd"
    assert BPE.decode(ids) == "\U0001f600\ufffde\u0301"
    assert [BPE.token_text(i) for i in BPE.encode(" hello")] == ["\u0120hello"]


def test_control_tokens_are_no_text_and_user_defined_ones_are() -> None:
    ids = BPE.encode(f"{END}<think>")
    assert [BPE.token_text(i) for i in ids] == [END, "<think>"]
    assert [BPE.piece(i) for i in ids] == [b"", b"<think>"]
    assert BPE.decode(BPE.encode(END, special=False)) == END
    assert BPE.is_control(ids[0])
    assert not BPE.is_control(ids[1])


def test_the_one_space_before_a_text_is_put_and_taken() -> None:
    assert [SPACED.token_text(i) for i in SPACED.encode("a b")] == ["<s>", "\u2581a", "\u2581", "b"]
    assert [PLAIN.token_text(i) for i in PLAIN.encode("a b")] == ["<s>", "a", "\u2581", "b"]
    ids = SPACED.encode(" a")
    assert (SPACED.decode(ids), SPACED.decode(ids, whole=False)) == (" a", "  a")


def test_a_text_ends_at_every_declared_token() -> None:
    assert BPE.end_ids == {257, 259}
    assert BPE.end_sources == {257: ["tokenizer.ggml.eos_token_id"], 259: ["named <|im_end|>"]}
    more = from_gguf(bpe_metadata(eot_token_id=257, eom_token_id=65))
    assert more.end_sources[257] == ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]
    assert more.end_ids == {65, 257, 259}


def test_only_control_tokens_end_a_text_by_their_name() -> None:
    tokens = [*bpe_metadata()["tokenizer.ggml.tokens"], "</s>"]
    types = [*bpe_metadata()["tokenizer.ggml.token_type"].tolist(), 4]
    assert from_gguf(bpe_metadata(tokens=tokens, token_type=types)).end_ids == {257, 259}
    types[-1] = 3
    assert from_gguf(bpe_metadata(tokens=tokens, token_type=types)).end_ids == {257, 259, len(tokens) - 1}


@pytest.mark.parametrize(
    ("text", "read_as"),
    [("", ""), ("\0", "\0"), ("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "\U0001f600"), ("\udfff", "\ufffd")],
)
def test_any_python_string_has_ids(text: str, read_as: str) -> None:
    for tokenizer in (BYTES, BPE, PLAIN, SPACED):
        assert tokenizer.decode(tokenizer.encode(text)) == read_as


def test_a_megabyte_has_ids() -> None:
    text = mixture(300_000).replace("\u2581", "_")
    assert len(text.encode()) > 1_000_000
    for tokenizer in (BPE, PLAIN):
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@pytest.mark.parametrize("token_id", [-1, 277, 10**12])
def test_an_id_outside_the_vocabulary_is_named(token_id: int) -> None:
    assert BPE.vocab_size == 277
    for ask in (BPE.piece, BPE.token_text, lambda i: BPE.decode([65, i])):
        with pytest.raises(TurbosparkError, match=f"{token_id} .* 277") as error:
            ask(token_id)
        assert error.value.code == "token_out_of_range"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"model": "gemma4"}, "'gemma4'"),
        ({"model": 5}, "5"),
        ({"pre": "gpt-5"}, "'gpt-5'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(TurbosparkError, match=words) as error:
        from_gguf(bpe_metadata(**fields))
    assert error.value.code == "unsupported_tokenizer"
    known = ["gpt2", "llama"] if "model" in fields else PRE_TOKENIZERS
    assert all(name in error.value.hint for name in known)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pre": None}, "no tokenizer.ggml.pre"),
        ({"pre": ["qwen2"]}, "pre must be of type str, has list"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": "abc"}, "tokens must be an array"),
        ({"tokens": [1, 2]}, "tokens must hold entries of type str, has int"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"token_type": [1, 1]}, "token_type has 2 entries, the vocabulary has 277"),
        ({"token_type": [9] * 277}, "token_type holds 9"),
        ({"token_type": [6] * 277}, "should read like <0x0A>"),
        ({"bos_token_id": 277}, "bos_token_id is 277, but the vocabulary has 277"),
        ({"eos_token_id": -1}, "eos_token_id is -1, but the vocabulary has 277"),
        ({"eos_token_id": "2"}, "eos_token_id must be of type int, has str"),
        ({"add_bos_token": True, "bos_token_id": None}, "no tokenizer.ggml.bos_token_id"),
        (
            {"tokens": ["a", "b", "a"], "token_type": [1] * 3, "bos_token_id": 0, "eos_token_id": 0},
            "'a' has two ids, 0 and 2",
        ),
    ],
)
def test_contradictions_in_a_file_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(TurbosparkError, match=words) as error:
        from_gguf(bpe_metadata(**fields))
    assert error.value.code == "bad_tokenizer"


def test_faults_that_only_encoding_meets_are_named_too() -> None:
    broken = {
        "the merge 'x y'": bpe_metadata(merges=["x y"]),
        "the merge 'xy'": bpe_metadata(merges=["xy"]),
        "needs 256 byte tokens, has 0": spm_metadata(PIECES, token_type=[1] * (260 + len(PIECES))),
        "is not UTF-8": bpe_metadata(tokens=[*bpe_metadata()["tokenizer.ggml.tokens"][:-1], "\udcff"], merges=[]),
    }
    for words, metadata in broken.items():
        with pytest.raises(TurbosparkError, match=words) as error:
            from_gguf(metadata).encode("a")
        assert error.value.code == "bad_tokenizer"


def test_importing_the_tokenizer_is_cheap() -> None:
    heavy = "numpy", "jinja2", "tokenizers"
    code = f"import turbospark.tokenizer, sys; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_encoder_is_built_once_and_only_to_encode() -> None:
    tokenizer = from_gguf(bpe_metadata())
    built: list[int] = []
    build = tokenizer.build
    tokenizer.build = lambda: (built.append(1), build())[1]
    tokenizer.decode([65])
    assert built == []
    tokenizer.encode(BOS)
    tokenizer.encode("a")
    assert built == [1]
