"""Teams of threads: every part of a region is run once, waits hold, nothing is left waiting."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.compile import callback, load_int
from turbospark.kernels.cpu.record import get, put


@callback
def mark(record, team, thread, threads):
    """Field 0: threads seen, fields 1..: how often each ran."""
    put(record, 0, threads)
    put(record, 1 + thread, get(record, 1 + thread) + 1)


@callback
def pass_on(record, team, thread, threads):
    """A hundred times each thread writes its turn and reads its neighbour's of the turn before."""
    wrong = 0
    for turn in range(1, 101):
        put(record, 16 * (1 + thread), turn)
        waiting(team, threads)
        neighbour = (thread + 1) % threads
        if load_int(record + 8 * 16 * (1 + neighbour)) != turn:
            wrong += 1
        waiting(team, threads)
    put(record, 16 * (1 + thread) + 1, wrong)


waiting = threads.wait


@pytest.fixture(params=[1, 2, 3, 5])
def team(request):
    before = threads.count()
    threads.set_count(request.param)
    yield threads.team()
    threads.set_count(before)


def launch(team: int, region, fields: int = 256) -> np.ndarray:
    record = np.zeros(fields, np.int64)
    threads.launch(team, region.address, record.ctypes.data)
    return record


def test_a_region_is_run_once_by_each_of_its_threads(team):
    for _ in range(200):
        seen, *ran = launch(team, mark)
        assert 1 <= seen <= threads.count()
        assert ran[:seen] == [1] * seen
        assert not any(ran[seen:])


def test_what_was_written_before_a_wait_is_seen_after_it(team):
    for _ in range(20):
        record = launch(team, pass_on).reshape(-1, 16)
        assert not record[1:, 1].any()


def test_a_team_that_changes_its_size_keeps_its_address_and_forgets_no_thread():
    before, address = threads.count(), threads.team()
    try:
        for count in (3, 1, 2, 4, 2):
            threads.set_count(count)
            assert threads.team() == address
            for _ in range(50):
                seen, *ran = launch(address, mark)
                assert seen <= count
                assert ran[:seen] == [1] * seen
                assert not launch(address, pass_on).reshape(-1, 16)[1:, 1].any()
    finally:
        threads.set_count(before)


def test_two_python_threads_may_launch_at_once(team):
    records = [[] for _ in range(2)]

    def work(mine):
        mine.extend(launch(team, pass_on) for _ in range(50))

    workers = [threading.Thread(target=work, args=(mine,)) for mine in records]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(len(mine) == 50 for mine in records)
    assert not any(record.reshape(-1, 16)[1:, 1].any() for mine in records for record in mine)


@pytest.mark.parametrize("count", [0, -1, 257])
def test_an_impossible_number_of_threads_is_refused_with_both_numbers(count):
    with pytest.raises(TurbosparkError, match=f"between 1 and 256, {count} asked"):
        threads.set_count(count)


def test_two_hardware_threads_of_a_core_count_once(tmp_path):
    for cpu in os.sched_getaffinity(0):
        file = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text("0-1\n")
    assert threads.cores(tmp_path) == 1
    assert threads.cores(tmp_path / "nothing") == len(os.sched_getaffinity(0))


END = """
import os, numpy as np
from tests.kernels.cpu.test_threads import launch, mark, threads
threads.set_count(3)
launch(threads.team(), mark)
child = os.fork()
if child == 0:
    seen, *ran = launch(threads.team(), mark)
    os._exit(0 if ran[:seen] == [1] * seen else 1)
print("child", os.waitpid(child, 0)[1])
"""


def test_a_forked_child_has_its_own_team_and_the_process_ends():
    run = subprocess.run(
        [sys.executable, "-c", END],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "child 0"
