"""How fast the CPU kernels multiply, beside how fast the same threads read the same bytes.

    python -m turbospark.bench.kernels --formats Q8_0,Q4_K --rows 1,2,4,8 --threads 1,2

Several matrices take turns so that no cache holds them. A round times a plain read and every number of rows behind each
other, so that a busy moment meets all of them; medians over the rounds are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import types

from turbospark import quant
from turbospark.kernels.cpu import levels, threads
from turbospark.kernels.cpu.compile import callback, intrinsic, load_int
from turbospark.kernels.cpu.linear import KERNELS, Weight
from turbospark.kernels.cpu.vector import Emit, I32x8, Value, emitted
from turbospark.quant.tensor import QTensor

PIECE = 256  # bytes a step of the plain read takes


@dataclass(frozen=True)
class Result:
    """Seconds: the median of a product of `rows` rows, and of a plain read of the same matrix in the same rounds."""

    format: str
    shape: tuple[int, int]
    nbytes: int
    threads: int
    rows: int
    seconds: float
    read: float

    @property
    def speed(self) -> float:
        """GB/s of weights."""
        return self.nbytes / self.seconds / 1e9

    @property
    def share(self) -> float:
        """Of the speed of a plain read."""
        return self.read / self.seconds


@intrinsic
def _read(typingctx, address, nbytes, out):
    """Reads whole pieces of memory; their sum goes to 4 bytes at `out`, so that it is not left undone."""

    def write(e: Emit, address, nbytes, out) -> None:
        sums = [e.variable(I32x8) for _ in range(PIECE // 32)]
        for place in sums:
            e.b.store(ir.Constant(I32x8, None), place)
        with e.loop(e.b.sdiv(nbytes, e.number(PIECE))) as i:
            piece = e.at(address, e.times(i, PIECE))
            for k, place in enumerate(sums):
                e.b.store(e.b.add(e.b.load(place), e.load(I32x8, piece, 32 * k)), place)
        total: Value = ir.Constant(I32x8, None)
        for place in sums:
            total = e.b.add(total, e.b.load(place))
        e.store(e.total(total), out)

    return types.void(*[types.int64] * 3), emitted(write)


@callback
def _read_share(record, team, thread, threads_):
    """A region: the record holds an address, a size and 64 bytes for each thread."""
    piece = load_int(record + 8) // threads_
    _read(load_int(record) + thread * piece, piece, record + 64 * (thread + 1))


def read(memory: np.ndarray) -> None:
    """Reads all of an array, on all threads."""
    record = np.zeros(8 * (threads.count() + 1), np.int64)
    record[:2] = memory.ctypes.data, memory.nbytes
    threads.launch(threads.team(), _read_share.address, record.ctypes.data)


def matrices(format: str, columns: int, megabytes: float, count: int) -> list[Weight]:
    """Matrices of that size in memory of their own, out of a few random rows."""
    few = quant.encode(np.random.default_rng(0).standard_normal((64, columns)).astype(np.float32), format)
    times = max(1, round(megabytes * 1e6 / few.nbytes))

    def make() -> Weight:
        scales, biases = (None if part is None else np.tile(part, (times, 1)) for part in (few.scales, few.biases))
        return Weight(QTensor("w", format, (64 * times, columns), np.tile(few.data, (times, 1)), scales, biases))

    return [make() for _ in range(count)]


def measure(weights: list[Weight], rows: list[int], rounds: int) -> list[Result]:
    """Every number of rows by every matrix in turn, `rounds` times."""
    n, k = weights[0].shape
    x = np.random.default_rng(1).standard_normal((max(rows), k)).astype(np.float32)
    outputs = {m: np.empty((m, n), np.float32) for m in rows}
    times: dict[int, list[float]] = {m: [] for m in (0, *rows)}
    for turn in range(rounds + 1):
        for weight in weights:
            took = {0: _seconds(read, weight.tensor.data)}
            for m in rows:
                took[m] = _seconds(weight.product, x[:m], outputs[m])
            if turn:  # the first compiles and touches the memory
                for m, seconds in took.items():
                    times[m].append(seconds)
    data = weights[0].tensor
    middle = {m: statistics.median(taken) for m, taken in times.items()}
    whole = middle[0] * data.nbytes / data.data.nbytes  # companions are read too
    return [Result(data.format, (n, k), data.nbytes, threads.count(), m, middle[m], whole) for m in rows]


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def main() -> None:
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser = argparse.ArgumentParser(description="How fast the CPU kernels multiply")
    parser.add_argument("--formats", default="Q8_0,Q4_K,INT4", help=f"of {','.join(KERNELS)}")
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--threads", type=numbers, default=list(range(1, threads.count() + 1)))
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--megabytes", type=float, default=80, help="of one matrix")
    parser.add_argument("--matrices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"level {levels.level()}, {threads.cores()} cores, load {load:.1f}; matrices of {given.megabytes:g} MB")
    print("format  matrix         threads  rows       ms   GB/s  of a read   times one row")
    for format in given.formats.split(","):
        weights = matrices(format, given.columns, given.megabytes, given.matrices)
        for count in given.threads:
            threads.set_count(count)
            results = measure(weights, given.rows, given.rounds)
            for r in results:
                matrix = f"{r.shape[0]}x{r.shape[1]}"
                print(
                    f"{r.format:6}  {matrix:13}  {r.threads:7}  {r.rows:4}  {r.seconds * 1e3:7.2f}  {r.speed:5.1f}"
                    f"  {r.share:9.0%}   {r.seconds / results[0].seconds:13.2f}"
                )


if __name__ == "__main__":
    main()
