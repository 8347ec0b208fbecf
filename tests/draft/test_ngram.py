"""The lookup drafter: longest match, latest of equals, periodic continuation; and nothing where nothing repeats."""

import numpy as np
import pytest

from tests.parity.harness import some_ids
from tests.tiny.memory import VOCAB, tiny_llama
from tests.tiny.oracle import params, plain, run
from turbospark.draft.ngram import NGram, continuation
from turbospark.engine.loop import Engine
from turbospark.kernels.rows import Rows


def after(*ids, count=3, **options):
    return continuation(np.array(ids), count, **options)


def test_what_followed_the_last_occurrence_is_proposed():
    assert after(1, 2, 3, 4, 5, 9, 1, 2) == [3, 4, 5]


def test_the_longest_match_wins_over_a_later_shorter_one():
    assert after(7, 1, 2, 30, 31, 32, 8, 1, 2, 40, 41, 42, 7, 1, 2) == [30, 31, 32]


def test_of_equally_long_matches_the_latest_wins():
    assert after(1, 2, 30, 31, 32, 5, 1, 2, 40, 41, 42, 6, 1, 2) == [40, 41, 42]


def test_a_match_up_to_the_end_goes_on_periodically():
    assert after(9, 1, 2, 3, 1, 2, 3, count=7) == [1, 2, 3, 1, 2, 3, 1]
    assert after(4, 4, 4, count=4) == [4] * 4


@pytest.mark.parametrize("ids", [(5,), (1, 2, 3), (3, 1, 2, 3)])
def test_fewer_agreeing_tokens_than_asked_for_propose_nothing(ids):
    assert after(*ids) == []


def test_one_token_is_enough_where_it_is_asked_to_be():
    assert after(3, 1, 2, 3, least=1) == [1, 2, 3]


def test_the_whole_text_may_match():
    assert after(1, 2, 3, 1, 2, 3, 1, 2, 3, count=2) == [1, 2]


def brute(text, count, least):
    """Every earlier place, by the length of its agreement with the end."""
    n, best = len(text), (0, -1)
    for place in range(n - 1):
        agreed = 0
        while agreed <= place and text[place - agreed] == text[n - 1 - agreed]:
            agreed += 1
        best = max(best, (agreed, place))
    if best[0] < least:
        return []
    grown = list(text)
    for i in range(count):
        grown.append(grown[best[1] + 1 + i])
    return grown[n:]


def test_random_texts_agree_with_a_search_of_every_place():
    random = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        text = random.integers(0, 3, random.integers(1, 25))
        expected = brute(text.tolist(), 5, 2)
        assert continuation(text, 5, 2) == expected
        found += bool(expected)
    assert 100 < found < 400


def test_each_slot_looks_up_its_own_text_and_rejected_tokens_are_forgotten():
    drafter = NGram(slots=2)
    drafter.admit(0, [1, 2, 3, 4], None, 0)
    drafter.admit(1, [1, 2, 9, 8], None, 0)
    for slot, ids in ((0, [1, 2, 3, 4]), (1, [1, 2, 9, 8])):
        drafter.observe(Rows.of([(slot, 0, ids, 4)]), {})
    drafter.observe(Rows.of([(0, 4, [1], 1), (1, 4, [1], 1)]), {})
    anchors = Rows.of([(0, 5, [2], 1), (1, 5, [2], 1)])
    assert drafter.propose(anchors, [2, 2], None) == [[3, 4], [9, 8]]
    # the anchor was given up for another one
    assert drafter.propose(Rows.of([(0, 5, [3], 1)]), [2], None) == [[]]
    drafter.admit(0, [5], None, 0)
    assert drafter.propose(Rows.of([(0, 0, [5], 1)]), [2], None) == [[]]


def test_a_gap_in_what_is_observed_is_an_error():
    drafter = NGram(slots=1)
    drafter.admit(0, [1, 2], None, 0)
    with pytest.raises(RuntimeError, match=r"from 5 on.*ends at 2"):
        drafter.observe(Rows.of([(0, 5, [1], 1)]), {})


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_repeating_answer_is_drafted_and_stays_the_same(temperature):
    model = tiny_llama()
    settings = {"max_new": 60, "temperature": temperature, "logit_bias": {7: 9.0, 9: 9.0}}
    prompt = some_ids(9, VOCAB, 7)
    engine = Engine(model, slots=1, drafter=NGram(slots=1))
    request = run(engine, engine.submit(prompt, params(model, **settings)))
    assert request.output == plain(model, prompt, **settings).output
    assert request.stats.accepted > 0
