"""Incremental UTF-8: the deltas join to the decode of the whole (fault 49)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospark.tokenizer.stream import Utf8Stream

PARTS = ["a", "é", "€", "👩‍💻", "\ufffd", "e\u0301"]
BROKEN = [
    b"\xff",
    b"\x80",
    b"\xc0\xaf",
    b"\xe2\x82",
    b"\xf0\x9f\x91",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xf0\x80",
]


def streamed(chunks):
    stream = Utf8Stream()
    return [stream.push(chunk) for chunk in chunks] + [stream.close()]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from([p.encode() for p in PARTS] + BROKEN), max_size=8), st.data())
def test_deltas_join_to_the_decode_of_the_whole(parts, data):
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert "".join(streamed(chunks)) == whole.decode("utf-8", errors="replace")


@pytest.mark.parametrize("data", [b"\xff", b"\xe2\x82", b"\xf0\x9f\x91", b"\x80\xf0\x80a\xed\xa0\x80", b"\xc3\xc3\xa9"])
def test_byte_by_byte_is_the_same(data):
    assert "".join(streamed([bytes([byte]) for byte in data])) == data.decode("utf-8", errors="replace")


def test_a_character_is_shown_once_it_is_complete_and_not_later():
    assert streamed([b"a\xf0\x9f", b"\x91", b"\xa9b"]) == ["a", "", "👩b", ""]


def test_a_lone_bad_byte_does_not_wait():
    assert streamed([b"\xff", b"a"]) == ["\ufffd", "a", ""]


def test_a_true_replacement_character_passes():
    assert streamed([b"\xef\xbf", b"\xbd"]) == ["", "\ufffd", ""]


def test_a_text_cut_inside_a_character_ends_with_one_replacement():
    assert streamed([b"ok\xf0\x9f\x91"]) == ["ok", "\ufffd"]


def test_after_close_the_stream_is_as_new():
    stream = Utf8Stream()
    stream.push(b"\xe2\x82")
    assert stream.close() == "\ufffd"
    assert stream.push(b"\xac") == "\ufffd"
    assert stream.close() == ""
