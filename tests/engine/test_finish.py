"""The cut of a block, against a search on the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospark.engine.finish import Cut, finish


def oracle(tokens, pieces, room, end_ids, stop_ids, stops):
    """Joined text, count, reason and match, from the list of all events and their order."""
    events = []  # (token index, rank within the token, order within the rank, reason, text length, match)
    ends = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]
    whole = b"".join(pieces)
    for i, token in enumerate(tokens):
        if token in end_ids or token in stop_ids:
            events.append((i, 0, (0, 0), "stop", ends[i] - len(pieces[i]), token))
    for stop in stops:
        for start in range(len(whole)):
            if whole.startswith(stop, start):
                index = next(i for i, end in enumerate(ends) if end >= start + len(stop))
                events.append((index, 1, (start, len(stop)), "stop", start, stop))
    if len(tokens) >= room:
        events.append((room - 1, 2, (0, 0), "length", ends[room - 1], None))
    if not events:
        return whole, len(tokens), None, None
    index, _, _, reason, size, match = min(events, key=lambda event: event[:3])
    return whole[:size], index + 1, reason, match


def in_blocks(tokens, pieces, room, end_ids, stop_ids, stops, sizes):
    """The same through `finish`, block by block; also every text that was sent."""
    sent, tail, count, start = [], b"", 0, 0
    for size in sizes:
        block = slice(start, start + size)
        start += size
        cut = finish(tokens[block], pieces[block], tail, room - count, end_ids, stop_ids, stops)
        sent.append(cut.text)
        count, tail = count + cut.count, cut.tail
        if cut.reason:
            return sent, count, cut.reason, cut.matched, tail
    return sent, count, None, None, tail


@st.composite
def scenes(draw):
    letters = st.binary(min_size=0, max_size=4).map(lambda b: bytes(b"abn"[x % 3] for x in b))
    tokens = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    table = draw(st.lists(letters, min_size=10, max_size=10))
    stops = draw(st.lists(letters.filter(len), max_size=3))
    some = st.sets(st.integers(0, 9), max_size=1)
    room = draw(st.integers(1, 14))
    sizes = []
    while sum(sizes) < len(tokens):
        sizes.append(draw(st.integers(1, len(tokens) - sum(sizes))))
    pieces = [table[token] for token in tokens]
    return (tokens, pieces, room, draw(some), draw(some), tuple(stops)), sizes


@settings(max_examples=500, deadline=None)
@given(scenes())
def test_every_cutting_into_blocks_gives_what_a_search_on_the_whole_text_gives(scene):
    arguments, sizes = scene
    text, count, reason, match = oracle(*arguments)
    sent, *rest, tail = in_blocks(*arguments, sizes)
    assert rest == [count, reason, match]
    assert b"".join(sent) + tail == text
    if reason:
        assert tail == b""


def test_nothing_that_could_begin_a_stop_is_sent_and_nothing_else_is_held():
    cut = finish([1, 2], [b"one ", b"two EN"], b"", 9, (), (), (b"END", b"NO"))
    assert cut == Cut(2, None, b"one two ", b"EN")
    assert finish([3], [b"OUGH"], cut.tail, 7, (), (), (b"END", b"NO")) == Cut(1, "stop", b"E", b"", b"NO")
    assert finish([3], [b"GINE"], cut.tail, 7, (), (), (b"END", b"NO")) == Cut(1, None, b"ENGIN", b"E")


def test_the_end_token_counts_and_shows_nothing():
    cut = finish([5, 0, 6], [b"hi", b"</s>", b"x"], b"", 9, {0}, (), ())
    assert cut == Cut(2, "stop", b"hi", b"", 0)


def test_a_stop_id_of_a_normal_token_hides_its_text():
    assert finish([5, 6], [b"hi", b"!"], b"", 9, (), [6], ()) == Cut(2, "stop", b"hi", b"", 6)


def test_an_end_token_releases_what_was_held():
    assert finish([0], [b""], b"EN", 3, {0}, (), (b"END",)) == Cut(1, "stop", b"EN", b"", 0)


def test_length_releases_what_was_held():
    assert finish([4], [b"N"], b"E", 1, (), (), (b"END",)) == Cut(1, "length", b"EN", b"")


def test_a_stop_finished_in_the_last_allowed_token_is_a_stop():
    assert finish([4, 5], [b"D", b"z"], b"EN", 1, (), (), (b"END",)) == Cut(1, "stop", b"", b"", b"END")
    assert finish([0], [b""], b"", 1, {0}, (), ()) == Cut(1, "stop", b"", b"", 0)


def test_a_stop_beyond_the_budget_changes_nothing():
    assert finish([4, 0], [b"a", b""], b"", 1, {0}, (), (b"b",)) == Cut(1, "length", b"a", b"")


def test_no_room_keeps_no_token():
    assert finish([4], [b"a"], b"E", 0, (), (), (b"END",)) == Cut(0, "length", b"E", b"")
    assert finish([], [], b"", 0, (), (), ()) == Cut(0, "length", b"", b"")


def test_an_empty_block_keeps_the_tail():
    assert finish([], [], b"E", 3, (), (), (b"END",)) == Cut(0, None, b"", b"E")


@pytest.mark.parametrize("stops", [(b"bc", b"abcd"), (b"abcd", b"bc")])
def test_of_two_stops_in_one_token_the_earlier_start_counts(stops):
    assert finish([1], [b"xabcd"], b"", 9, (), (), stops) == Cut(1, "stop", b"x", b"", b"abcd")
    assert finish([1, 2], [b"xabc", b"d"], b"", 9, (), (), stops) == Cut(1, "stop", b"xa", b"", b"bc")


@pytest.mark.parametrize("stops", [(b"ab", b"abc"), (b"abc", b"ab")])
def test_of_two_stops_with_one_start_the_shorter_counts(stops):
    assert finish([1], [b"xabc"], b"", 9, (), (), stops) == Cut(1, "stop", b"x", b"", b"ab")


def test_a_false_start_inside_a_character_is_released_byte_exact():
    euro = "€".encode()
    cut = finish([1], [euro[:2]], b"", 9, (), (), ("₭".encode(),))
    assert cut.text + cut.tail == euro[:2]
    after = finish([2], [euro[2:]], cut.tail, 8, (), (), ("₭".encode(),))
    assert cut.text + after.text == euro
