"""The measurement of kernels: what it multiplies, what it reads, and what it makes of the times. No time is tested."""

import sys

import numpy as np
import pytest

from turbospark.bench import kernels
from turbospark.kernels.cpu import threads


@pytest.fixture
def on_threads():
    """Sets how many threads there are, for the test alone."""
    before = threads.count()
    yield threads.set_count
    threads.set_count(before)


@pytest.mark.parametrize(("format", "row"), [("Q8_0", 272), ("Q4_K", 144), ("INT4", 144)])
def test_matrices_have_the_size_that_is_asked_for_and_memory_of_their_own(format, row):
    weights = kernels.matrices(format, 256, 0.1, 3)
    assert [w.shape for w in weights] == [weights[0].shape] * 3
    assert weights[0].tensor.nbytes == weights[0].shape[0] * row
    assert abs(weights[0].tensor.nbytes - 100_000) <= 32 * row
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert not np.shares_memory(weights[a].tensor.data, weights[b].tensor.data)


def test_a_matrix_is_at_least_its_random_rows():
    assert kernels.matrices("Q8_0", 32, 0.0, 1)[0].shape == (64, 32)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_plain_read_adds_up_every_piece_on_all_threads(count, on_threads):
    on_threads(count)
    numbers = np.arange(3 * 2 * kernels.PIECE, dtype=np.int32)
    record = np.zeros(8 * (count + 1), np.int64)
    record[:2] = numbers.ctypes.data, numbers.nbytes
    threads.launch(threads.team(), kernels._read_share.address, record.ctypes.data)
    assert record[8::8].sum() == numbers.sum()


def test_medians_over_rounds_and_matrices_come_without_the_first_round(monkeypatch):
    weights = kernels.matrices("INT4", 64, 0.01, 2)
    calls = []

    def seconds(work, *arguments):
        calls.append(work)
        rows = 0 if work is kernels.read else len(arguments[0])
        turn = (len(calls) - 1) // 6  # a round: two matrices, a read and two products each
        return 1e6 if turn == 0 else 10 * (rows + 1) + turn

    monkeypatch.setattr(kernels, "_seconds", seconds)
    one, four = kernels.measure(weights, [1, 4], 3)
    assert calls[:6] == [kernels.read, *[weights[0].product] * 2, kernels.read, *[weights[1].product] * 2]
    assert len(calls) == 4 * 6
    assert (one.rows, one.seconds, four.rows, four.seconds) == (1, 22.0, 4, 52.0)
    assert one.format == "INT4"
    assert one.shape == weights[0].shape
    assert one.read == four.read == pytest.approx(12.0 * 36 / 32)  # a group of 64 has 32 bytes, its companions 4


def test_speed_is_of_weights_and_share_is_of_the_read():
    result = kernels.Result("Q8_0", (64, 32), nbytes=2_000_000_000, threads=2, rows=1, seconds=0.1, read=0.08)
    assert result.speed == pytest.approx(20.0)
    assert result.share == pytest.approx(0.8)


def test_a_line_is_printed_for_every_format_number_of_threads_and_of_rows(monkeypatch, capsys, on_threads):
    sizes = ["--columns", "64", "--megabytes", "0.01", "--matrices", "1", "--rounds", "1"]
    asked = ["--formats", "Q8_0,Q4_1", "--threads", "1,2", "--rows", "1,2"]
    monkeypatch.setattr(sys, "argv", ["kernels", *asked, *sizes])
    kernels.main()
    lines = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[2:]]
    shapes = {f: "x".join(map(str, kernels.matrices(f, 64, 0.01, 1)[0].shape)) for f in ("Q8_0", "Q4_1")}
    assert lines == [[f, shapes[f], t, m] for f in ("Q8_0", "Q4_1") for t in "12" for m in "12"]
