"""The progress line, on a clock set by hand."""

import io
import sys

import pytest

from turbospark.cli import output


class Terminal(io.StringIO):
    def __init__(self, watched):
        super().__init__()
        self.watched = watched

    def isatty(self):
        return self.watched


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def work(monkeypatch, clock, steps, watched=True):
    """What stderr gets from a progress line that is told 1 of 4, 2 of 4, ... at these seconds."""
    monkeypatch.setattr(sys, "stderr", Terminal(watched))
    progress = output.Progress("opening")
    for done, second in enumerate(steps, 1):
        clock[0] = 100 + second
        progress(done, 4)
    progress.close()
    return sys.stderr.getvalue()


def test_work_under_a_second_shows_nothing(monkeypatch, clock):
    assert work(monkeypatch, clock, [0.1, 0.5, 0.9]) == ""


def test_longer_work_counts_and_the_line_goes_away(monkeypatch, clock):
    assert work(monkeypatch, clock, [0.5, 1.5, 2]) == "\ropening 50 %\ropening 75 %\r\x1b[K"


def test_the_line_does_not_change_more_often_than_it_can_be_read(monkeypatch, clock):
    assert work(monkeypatch, clock, [1.5, 1.55, 1.7]).count("opening") == 2


def test_nothing_is_shown_where_no_one_watches(monkeypatch, clock):
    assert work(monkeypatch, clock, [1.5, 2], watched=False) == ""


def test_an_error_is_one_line_and_its_hint_another(capsys):
    output.report(output.TurbosparkError("a_code", "two\nlines", "do\tthis"))
    assert capsys.readouterr().err == "error: two\\nlines [a_code]\nhint: do\\tthis\n"
