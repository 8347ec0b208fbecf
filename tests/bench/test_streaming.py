"""The pieces of the measurement under a memory limit; the limit itself needs root."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.tiny.alphabet import write_alphabet
from turbospark.bench import streaming
from turbospark.bench.replay import Recorded, Seen, busy, replay
from turbospark.bench.runner import Turbospark
from turbospark.experts.reader import Disk, Read
from turbospark.formats.mapped import MappedFile


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


def test_a_disk_is_busy_while_any_read_is_under_way():
    seen = [Seen(None, begun, ended) for begun, ended in ((5, 6), (1, 3), (2, 4), (2, 2.5))]
    assert busy(seen) == pytest.approx(4)
    assert busy([]) == 0


def test_the_reads_of_a_run_are_repeated_in_their_order_and_size_into_other_memory(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    file, disk = MappedFile(path), Recorded(Disk())
    memory = [np.zeros(4096, np.uint8), np.zeros(8192, np.uint8)]
    for offset, part in zip((8192, 4096), memory, strict=True):
        disk.read(Read(file, offset, part, part.nbytes, "x"))
    kept, again = [part.copy() for part in memory], Recorded(Disk())
    for part in memory:
        part[:] = 7
    assert replay(disk.seen, again, threads=1) > 0
    assert [(one.read.offset, one.read.memory.nbytes) for one in again.seen] == [(8192, 4096), (4096, 8192)]
    assert [one.read.memory.tolist() for one in again.seen] == [part.tolist() for part in kept]
    assert all((part == 7).all() for part in memory)


def test_a_window_is_held_against_the_larger_of_computing_and_reading():
    traffic = {"hits": 3, "misses": 1, "wait_s": 0.2, "useful": 1, "guesses": 3, "dropped": 1}
    window = streaming.Window([0.1, 0.1], [0.3, 0.3], traffic, 10**9, 0.45, 0.5)
    assert streaming.Window([0.1], [0.3], traffic, 10**9, 0.45, 0.5, 3).row().endswith("| 3 | 50% |")
    assert window.bound == 0.5
    assert window.row() == "| 300 | 100 | 250 | 1.20 | 500 | 2.00 | 75% | 75% | 100 |  | 50% |"
    assert streaming.Window([1.0, 1.0], [0.3], traffic, 1, 0.0, 0.5).bound == 2.0


def test_tokens_go_on_behind_those_that_were_fed(tmp_path):
    runner = Turbospark(str(write_alphabet(tmp_path / "alphabet.gguf")), 1, 32)
    runner.feed([3, 1, 4])
    runner.feed([1, 5], 3)
    assert runner.model.engine.session.cursors[0].tokens == [3, 1, 4, 1, 5]
    runner.model.engine.model.residency = SimpleNamespace(reader=SimpleNamespace(disk=(disk := Disk())))
    runner.ahead(5)
    runner.model.residency.ahead.begin(10**6)
    assert runner.model.residency.ahead.wanted == 5
    runner.record()
    assert runner.model.residency.reader.disk is runner.recorded
    assert runner.replay() == (0, 0.0, 0.0)
    assert runner.model.residency.reader.disk is disk
