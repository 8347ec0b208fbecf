"""What an answer's experts cost, as lines."""

from turbospark.cli.phases import costs, summary
from turbospark.engine.request import Stats
from turbospark.experts.traffic import Traffic

TRAFFIC = Traffic(tokens=10, hits=30, misses=10, bytes_read=5_000_000, route_s=1, experts_s=2, wait_s=0.5)


def test_a_line_tells_hits_bytes_and_the_wait_of_streamed_experts():
    assert summary(TRAFFIC) == "experts 75.0% there, 5.0 MB read, 50.0 ms waited a token"
    ahead = Traffic(guesses=10, dropped=2, useful=6)
    assert summary(ahead).endswith("75% of those read ahead were used")


def test_nothing_is_said_of_experts_that_do_not_stream_nor_when_it_should_be_quiet(monkeypatch):
    monkeypatch.delenv("TURBOSPARK_PHASES", raising=False)
    assert list(costs(Stats(experts=Traffic(hits=30)), quiet=False)) == []
    assert list(costs(Stats(experts=TRAFFIC), quiet=True)) == []
    assert len(list(costs(Stats(experts=TRAFFIC), quiet=False))) == 1


def test_phases_add_up_to_the_whole(monkeypatch):
    monkeypatch.setenv("TURBOSPARK_PHASES", "1")
    (line,) = costs(Stats(total_s=5.0, experts=TRAFFIC), quiet=True)
    assert "experts 2.00 s" in line
    assert "waiting for experts 0.50 s" in line
    assert "all else 1.50 s of 5.00 s" in line
