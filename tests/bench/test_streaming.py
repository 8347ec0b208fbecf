"""The pieces of the measurement under a memory limit; the limit itself needs root."""

import time

import pytest

from tests.tiny.alphabet import write_alphabet
from turbospark.bench import streaming
from turbospark.bench.runner import Turbospark


def test_entropy_and_reuse_of_what_was_chosen():
    one = [[0, 1], [0, 1], [2, 3], [2, 3]]  # four experts as often, two of three tokens like the one before
    entropy, reuse = streaming.routing([one], 4)
    assert entropy == pytest.approx(2.0)
    assert reuse == pytest.approx(2 / 3)
    assert streaming.routing([[[5, 6]] * 9], 8) == (pytest.approx(1.0), 1.0)


def test_common_tokens_come_often_and_all_are_in_the_vocabulary():
    ids = streaming.tokens(2000, 50)
    assert ids == streaming.tokens(2000, 50)
    assert min(ids) >= 0
    assert max(ids) < 50
    assert ids.count(1) > 3 * ids.count(7) > 0


@pytest.mark.parametrize(
    ("v1", "file", "peak"),
    [(True, "memory/turbospark-bench/memory.limit_in_bytes", "memory.max_usage_in_bytes"),
     (False, "turbospark-bench/memory.max", "memory.peak")],
)  # fmt: skip
def test_a_limit_is_written_where_the_version_of_cgroups_has_it(v1, file, peak, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "GROUPS", tmp_path)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    if v1:
        (tmp_path / "memory").mkdir()
    with streaming.limit(12345) as group:
        assert (tmp_path / file).read_text() == "12345"
        assert str((tmp_path / file).parent / "cgroup.procs") in group.before
        (group.folder / peak).write_text("99\n")
        assert group.peak() == 99


def test_given_tokens_are_fed_one_at_a_time_from_an_empty_cache(tmp_path):
    runner = Turbospark(str(write_alphabet(tmp_path / "alphabet.gguf")), 1, 32)
    for ids in ([3, 1, 4], [1, 5]):
        assert len(runner.feed(ids)) == len(ids)
        assert runner.model.engine.session.cursors[0].tokens == ids
    assert runner.chosen([3, 1]) == []  # no layer of it has experts
    assert runner.traffic()["misses"] == 0
