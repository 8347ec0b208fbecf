"""The session's verbs: what may follow what, and what a snapshot must remember."""

import numpy as np
import pytest

from tests.cache.kinds import BLOCK, CONTEXT, KINDS, SLACK, SLOTS, append, make
from turbospark.cache.session import Session
from turbospark.kernels.rows import Rows


@pytest.fixture
def session():
    return Session([make(kind) for kind in KINDS], SLOTS, CONTEXT)


def feed(session, ids, certain=None, slot=0):
    """Rows at the slot's cursor, not committed."""
    before = bytes(session.cursors[slot].tokens)
    rows = Rows.of([(slot, len(before), list(ids), len(ids) if certain is None else certain)])
    session.begin(rows)
    for layer in session.layers:
        append(layer, rows, [before + bytes(ids[: i + 1]) for i in range(len(ids))])


def keep(session, ids, kept=None, certain=None, slot=0):
    feed(session, ids, certain, slot)
    session.commit(slot, len(ids) if kept is None else kept)


def test_a_tape_is_committed_once(session):
    feed(session, [1, 2, 0], certain=1)
    session.commit(0, 2)
    with pytest.raises(RuntimeError, match="slot 0: 1 rows to commit"):
        session.commit(0, 1)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_no_more_than_was_fed_and_no_less_than_is_certain(session, count):
    feed(session, [1, 2, 0], certain=2)
    with pytest.raises(RuntimeError, match=f"{count} rows to commit"):
        session.commit(0, count)


def test_rows_wait_for_the_commit_of_those_before_them(session):
    feed(session, [1, 2])
    with pytest.raises(RuntimeError, match="uncommitted"):
        feed(session, [0])


def test_a_slot_with_uncommitted_rows_is_neither_remembered_nor_adopted(session):
    keep(session, [1, 2, 0])
    prefix = session.find([1, 2, 0, 0])
    feed(session, [1], certain=0)
    with pytest.raises(RuntimeError, match="slot 0 has 1 rows"):
        session.checkpoint(0)
    for target in (0, 1):
        with pytest.raises(RuntimeError, match="slot 0 has 1 rows"):
            session.adopt(target, prefix)


def test_rows_start_at_the_cursor_and_end_in_the_context(session):
    keep(session, [1, 2, 0])
    with pytest.raises(RuntimeError, match="stands at 3, rows start at 2"):
        session.begin(Rows.of([(0, 2, [1], 1)]))
    with pytest.raises(RuntimeError, match=f"in a context of {CONTEXT}"):
        session.begin(Rows.of([(0, 3, [0] * CONTEXT, 1)]))


def test_a_tape_holds_the_rows_that_were_fed(session):
    recurrent = make("recurrent")
    rows = Rows.of([(0, 0, [1, 2, 0], 1)])
    append(recurrent, rows, [b"\1", b"\1\2", b"\1\2\0"])
    assert recurrent.taped[0] == 2
    with pytest.raises(RuntimeError, match="3 rows to commit, the tape holds 2"):
        recurrent.commit(0, 3)
    recurrent.commit(0, 1)
    with pytest.raises(RuntimeError, match="the tape holds 0"):
        recurrent.commit(0, 1)


@pytest.mark.parametrize("forget", ["reset", "restore"])
def test_a_tape_does_not_outlive_its_state(forget):
    recurrent = make("recurrent")
    append(recurrent, Rows.of([(0, 0, [1, 2], 0)]), [b"\1", b"\1\2"])
    recurrent.reset(0) if forget == "reset" else recurrent.restore(0, 1, 0, None)
    with pytest.raises(RuntimeError, match="the tape holds 0"):
        recurrent.commit(0, 1)


def test_a_block_longer_than_the_tape_is_refused(session):
    with pytest.raises(RuntimeError, match=f"{BLOCK + 1} uncertain rows for a tape of {BLOCK}"):
        feed(session, [0] * (BLOCK + 1), certain=0)


def test_a_ring_refuses_more_rows_at_once_than_it_has_room_for(session):
    with pytest.raises(RuntimeError, match=f"{SLACK + 1} rows of a sequence at once in a ring with room for {SLACK}"):
        feed(session, [0] * (SLACK + 1))


def test_a_snapshot_remembers_the_marks_of_rejected_rows():
    session = Session([make("ring")], SLOTS, CONTEXT)
    text = np.random.default_rng(1).integers(0, 3, 130).tolist()
    for start in range(0, 100, 20):
        keep(session, text[start : start + 20])
    keep(session, [0] * 15, kept=0, certain=0)  # overwrites keys that a text going back to 90 would see
    session.checkpoint(0)
    keep(session, text[100:115])
    keep(session, text[115:130])
    session.adopt(0, session.find(text[:101]))
    assert session.length(0) == 100
    assert session.find(text[:91]) is None
    assert session.find(text[:92]).length == 91


def test_a_prefix_can_be_taken_from_a_slot_in_use(session):
    keep(session, [1, 2, 0, 1])
    session.adopt(1, session.find([1, 2, 0, 1, 1]))
    keep(session, [2, 2], slot=0)
    keep(session, [0], slot=1)
    assert [session.cursors[slot].tokens for slot in range(2)] == [[1, 2, 0, 1, 2, 2], [1, 2, 0, 1, 0]]


def test_one_row_at_least_is_left_to_feed(session):
    keep(session, [1, 2, 0])
    assert session.find([1, 2, 0]) is None  # a recurrent layer stands at 3 and cannot go back to 2
    assert session.find([1]) is None
    assert session.find([1, 2, 0, 1]).length == 3
