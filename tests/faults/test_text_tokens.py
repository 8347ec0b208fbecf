"""Faults 49, 50 and 58: BOS twice or never, and text that changes once it was shown."""

from __future__ import annotations

import pytest

from tests.tiny.tokenizers import BOS, CHAT, bpe_metadata, spm_metadata
from turbospark.tokenizer import Tokenizer
from turbospark.tokenizer.from_gguf import from_gguf
from turbospark.tokenizer.stream import Utf8Stream

USER = [{"role": "user", "content": "hello"}]
WITH_BOS = "{{ bos_token }}" + CHAT
PIECES = {"\u2581": -2.0, "h": -3.0, "i": -4.0, "\u2581h": -1.0}


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [CHAT, WITH_BOS])
def test_a_chat_has_one_bos_or_as_many_as_were_declared(template: str, adds_bos: bool) -> None:
    tokenizer = from_gguf(bpe_metadata(template=template, add_bos_token=adds_bos))
    ids = tokenizer.encode(tokenizer.chat(USER))
    assert ids.count(256) == (1 if adds_bos or template is WITH_BOS else 0)
    assert ids[0] == (256 if 256 in ids else 258)


def test_a_bos_that_is_plain_text_does_not_count() -> None:
    tokenizer = from_gguf(bpe_metadata(add_bos_token=True))
    assert tokenizer.encode(BOS) == [256]
    assert tokenizer.encode(f"{BOS}{BOS}") == [256, 256]
    plain = tokenizer.encode(BOS, special=False)
    assert plain[0] == 256
    assert plain[1:] == list(BOS.encode())
    assert tokenizer.encode("", bos=True) == [256]
    assert tokenizer.encode("hello", bos=False)[0] != 256


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("smollm", False)])
def test_a_file_that_does_not_say_has_its_familys_bos(pre: str, adds: bool) -> None:
    assert from_gguf(bpe_metadata(pre=pre, add_bos_token=None)).prefix == ((256,) if adds else ())
    assert from_gguf(spm_metadata(PIECES)).prefix == (1,)


def deltas(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = Utf8Stream()
    return [*(stream.push(tokenizer.piece(i)) for i in ids), stream.close()]


@pytest.mark.parametrize(
    "text", ["hello , it 's . . . n't !", "\U0001f600\ufffde\u0301", "\ufffd\ufffd", " hello", "hi  hi"]
)
def test_deltas_join_to_the_whole_at_every_cut(text: str) -> None:
    for tokenizer in (from_gguf(bpe_metadata()), from_gguf(spm_metadata(PIECES, add_space_prefix=False))):
        ids = tokenizer.encode(text, bos=False)
        for cut in range(len(ids) + 1):
            assert "".join(deltas(tokenizer, ids[:cut])) == tokenizer.decode(ids[:cut])
        assert tokenizer.decode(ids) == text


def test_a_lone_byte_shows_at_the_end_and_a_true_replacement_character_at_once() -> None:
    tokenizer = from_gguf(bpe_metadata())
    assert deltas(tokenizer, [0xF0]) == ["", "\ufffd"]
    assert deltas(tokenizer, [0xFF]) == ["\ufffd", ""]
    assert deltas(tokenizer, tokenizer.encode("\ufffd")) == ["\ufffd", ""]
    assert deltas(tokenizer, tokenizer.encode("\U0001f600")) == ["", "\U0001f600", ""]
