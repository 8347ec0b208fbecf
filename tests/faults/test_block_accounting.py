"""Faults 1 to 5 where blocks are cut: the same ids, text, count and reason as one token at a time."""

import itertools

import pytest

from turbospark.engine.finish import finish

END = 0
PIECES = {END: b"", 1: b"one ", 2: b"tw", 3: b"o S", 4: b"TO", 5: b"P six", 6: b" STO", 7: b"NE "}


def blocks(tokens, sizes, room, stop_ids=(), stops=()):
    """(ids, all text sent, reason, matched) over blocks of these sizes; a run's end releases the tail."""
    ids, text, tail, queue = [], b"", b"", list(tokens)
    for size in sizes:
        block, queue = queue[:size], queue[size:]
        cut = finish(block, [PIECES[t] for t in block], tail, room - len(ids), {END}, stop_ids, stops)
        ids += block[: cut.count]
        text += cut.text
        tail = cut.tail
        if cut.reason:
            return ids, text, cut.reason, cut.matched
    return ids, text + tail, None, None


def cuttings(length):
    """All ways to cut `length` tokens into blocks."""
    for marks in itertools.product([False, True], repeat=length - 1):
        edges = [0, *(i + 1 for i, mark in enumerate(marks) if mark), length]
        yield [b - a for a, b in itertools.pairwise(edges)]


def one_result(tokens, **asked):
    """The result that all cuttings share."""
    results = [blocks(tokens, sizes, **asked) for sizes in cuttings(len(tokens))]
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize("offset", range(7))
def test_fault_1_nothing_after_the_end_token_stands(offset):
    tokens = [1, 2, 3, 7, 1, 2]
    tokens.insert(offset, END)
    kept = tokens[: offset + 1]
    assert one_result(tokens, room=20) == (kept, b"".join(PIECES[t] for t in kept), "stop", END)


@pytest.mark.parametrize("room", range(1, 8))
def test_fault_2_the_earlier_of_stop_and_length_wins(room):
    ids, _, reason, matched = one_result([1, 2, 3, END, 1, 2, 3], room=room)
    assert (len(ids), reason, matched) == ((room, "length", None) if room < 4 else (4, "stop", END))


@pytest.mark.parametrize("room", range(1, 10))
def test_fault_3_length_means_exactly_as_many_as_asked(room):
    tokens = [1, 2, 7, 1, 7, 2, 1]
    ids, _, reason, _ = one_result(tokens, room=room)
    assert ids == tokens[:room]
    assert reason == ("length" if room <= len(tokens) else None)


def test_fault_3_zero_keeps_nothing():
    assert blocks([1, 2], [2], room=0) == ([], b"", "length", None)


@pytest.mark.parametrize("room", range(1, 8))
def test_fault_4_ids_and_text_end_where_the_stop_string_does(room):
    ids, text, reason, matched = one_result([1, 2, 3, 4, 5, 1, 2], room=room, stops=(b"STOP",))
    if room < 5:
        assert (len(ids), reason, matched) == (room, "length", None)
        assert text == b"".join(PIECES[t] for t in ids)
    else:
        assert (ids, text, reason, matched) == ([1, 2, 3, 4, 5], b"one two ", "stop", b"STOP")


@pytest.mark.parametrize("stops", [(b"STOP",), (b"STOP", b"TOP"), (b"zz", b"O STOP", b"STOP")])
def test_fault_5_a_stop_across_tokens_never_shows(stops):
    ids, text, reason, _ = one_result([6, 1, 6, 5, 7], room=9, stops=stops)
    assert (ids, text, reason) == ([6, 1, 6, 5], b" STOone  ", "stop")


def test_fault_5_a_false_start_is_released_once():
    tokens = [6, 7, 6, 7, 6]
    assert one_result(tokens, room=9, stops=(b"STOP",)) == (tokens, b" STONE  STONE  STO", None, None)
    assert one_result([*tokens, END], room=9, stops=(b"STOP",))[1] == b" STONE  STONE  STO"


def test_fault_5_a_stop_id_of_a_normal_token_hides_only_its_own_text():
    assert one_result([1, 6, 2, 7], room=9, stop_ids={2}, stops=(b"STOP",)) == (
        [1, 6, 2],
        b"one  STO",
        "stop",
        2,
    )
