"""Plain and drafted answers side by side."""

import re

import pytest

from turbospark.cli import compare
from turbospark.cli.main import main

ASKED = ["--speculative-drafter", "ngram", "--threads", "1"]


def told(capsys, *args):
    status = main(["compare", *args])
    out, err = capsys.readouterr()
    return status, out, err


def test_both_texts_and_both_speeds_are_shown(model, capsys):
    status, out, _ = told(capsys, model, "m", *ASKED)
    assert status == 0
    head, _, text, *_ = out.splitlines()
    assert re.fullmatch(r"plain: 27 tokens, \d+ a second +\|  ngram: 27 tokens, \d+ a second", head)
    assert re.fullmatch(r"(abcdefghijklmnopqrstuvwxyz) +\|  \1", text)
    assert re.search(r"^the same 27 tokens, [\d.]+ times as fast", out.splitlines()[-1])


def test_answers_of_one_token_have_no_speed_to_compare(model, capsys):
    status, out, _ = told(capsys, model, "m", *ASKED, "--max-new", "1")
    assert status == 0
    assert out.splitlines()[-1] == "the same 1 tokens, too few to tell speeds"


def test_long_texts_are_wrapped_into_their_columns():
    words = "one two three four five six seven"
    lines = compare._wrapped(f"{words}\n\n  x", 12)
    assert all(len(line) <= 12 for line in lines)
    assert "".join(lines).replace(" ", "") == words.replace(" ", "") + "x"
    assert "" in lines


def test_the_texts_of_a_drafter_that_changes_tokens_would_be_reported(model, capsys, monkeypatch):
    race = compare._race

    def wrong(sides, shown):
        race(sides, shown)
        sides[1].request.context[-1] += 1

    monkeypatch.setattr(compare, "_race", wrong)
    status, _, err = told(capsys, model, "m", *ASKED)
    assert status != 0
    assert "[tokens_differ]" in err


def test_each_side_gets_as_much_time_as_the_other(monkeypatch):
    order = []

    class Side:
        def __init__(self, name, step, steps):
            self.name, self.step, self.left, self.seconds, self.request = name, step, steps, 0.0, self

        @property
        def done(self):
            return self.left <= 0

        def work(self):
            order.append(self.name)
            self.seconds += self.step
            self.left -= 1

    compare._race([Side("slow", 3.0, 3), Side("fast", 1.0, 9)], shown=False)
    assert order[:8] == ["slow", "fast", "fast", "fast", "slow", "fast", "fast", "fast"]


@pytest.mark.parametrize("drafter", ["auto", "dflash"])
def test_without_a_drafter_there_is_nothing_to_compare(model, capsys, drafter):
    status, _, err = told(capsys, model, "m", "--speculative-drafter", drafter)
    assert status != 0
    assert "drafter" in err
