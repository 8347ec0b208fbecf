"""A mixture larger than the memory it may use: streamed experts beside llama.cpp's mapped file, under the same limit.

    python -m turbospark.bench.random_model deepseek-v2-lite dsv2lite.gguf --format Q8_0 --skew 0.5
    python -m turbospark.bench.streaming dsv2lite.gguf

Needs root for a memory cgroup (v1 or v2). Both are given the same tokens one at a time, behind some that fill what they
keep; nothing of the file is in the page cache before. The limit is a share of the experts' bytes, for everything.

Streamed tokens come in windows. Behind each the very reads of the window are repeated with nothing computing, all of
them waiting from the beginning: that is the disk's speed, and what a window could not take less than is the larger of
this and of computing its tokens with all experts in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from turbospark.bench.against import Process
from turbospark.formats import open_checkpoint

GROUPS = Path("/sys/fs/cgroup")
NAME = "turbospark-bench"


@dataclass
class Limited:
    """A memory cgroup, version 1 or 2."""

    folder: Path
    v1: bool

    @property
    def before(self) -> str:
        """The shell command that puts a process in it."""
        return f"echo $$ > {self.folder}/cgroup.procs"

    def peak(self) -> int:
        return int((self.folder / ("memory.max_usage_in_bytes" if self.v1 else "memory.peak")).read_text())


@contextmanager
def limit(nbytes: int) -> Iterator[Limited]:
    """A new cgroup that may hold so many bytes, page cache included."""
    v1 = (GROUPS / "memory").is_dir()
    folder = (GROUPS / "memory" if v1 else GROUPS) / NAME
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(nbytes))
        yield Limited(folder, v1)
    finally:
        for _ in range(100):  # the last process may still be on its way out
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def forget(path: Path) -> None:
    """Empties the page cache of a file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def tokens(count: int, vocab: int) -> list[int]:
    """Ids as often as words come: the n-th of them 1 / n of the first."""
    return (np.random.default_rng(0).zipf(1.2, count) % vocab).tolist()


def routing(chosen: Sequence[Sequence[Sequence[int]]], experts: int) -> tuple[float, float]:
    """Bits of entropy of the experts, and the share of a token's that the token before had; means over the layers."""
    entropy, reuse = [], []
    for layer in chosen:
        counts = Counter(e for token in layer for e in token)
        total = sum(counts.values())
        entropy.append(-sum(n / total * log2(n / total) for n in counts.values()))
        reuse.append(statistics.mean(len({*a} & {*b}) / len(b) for a, b in pairwise(layer)))
    return statistics.mean(entropy), statistics.mean(reuse)


@dataclass
class Window:
    """Some tokens: seconds of each, with all experts in memory and streamed; the reads, alone and in the run."""

    compute: list[float]
    took: list[float]
    traffic: dict[str, float]
    read: int
    busy_s: float
    alone_s: float
    ahead: int | None = None

    @property
    def bound(self) -> float:
        """Seconds it could not take less than."""
        return max(sum(self.compute), self.alone_s)

    def row(self) -> str:
        n, t = len(self.took), self.traffic
        cells = (
            *(f"{1e3 * seconds / n:.0f}" for seconds in (sum(self.took), sum(self.compute), self.alone_s)),
            f"{sum(self.took) / self.bound:.2f}",
            f"{self.read / n / 1e6:.0f}",
            f"{self.read / max(self.alone_s, 1e-9) / 1e9:.2f}",
            f"{self.busy_s / sum(self.took):.0%}",
            f"{t['hits'] / max(1, t['hits'] + t['misses']):.0%}",
            f"{1e3 * t['wait_s'] / n:.0f}",
            "" if self.ahead is None else str(self.ahead),
            f"{t['useful'] / max(1, t['guesses'] - t['dropped']):.0%}",
        )
        return f"| {' | '.join(cells)} |"


COLUMNS = (
    *("ms a token", "all in memory", "reads alone", "ratio", "MB", "GB/s alone", "disk busy", "there", "ms waited"),
    *("ahead", "of them used"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


@contextmanager
def running(kind: str, path: Path, context: int, threads: int, nbytes: int | None, options: Any):
    """A process with the model, and its cgroup; nothing of the file is in the page cache at its beginning."""
    forget(path)
    with limit(nbytes or 1 << 40) as group:
        process = Process(kind, str(path), threads, context, group.before, **options)
        try:
            yield process, group
        finally:
            process.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Streamed experts beside llama.cpp under a memory limit")
    parser.add_argument("model", type=Path)
    parser.add_argument("--share", type=float, default=0.25, help="of the experts' bytes that all may take")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=12, help="of a window")
    parser.add_argument("--warm", type=int, default=32, help="tokens before the first window")
    parser.add_argument("--prompt", type=int, default=256, help="of a prompt before those, read as one piece")
    parser.add_argument("--ahead", type=int, action="append", help="experts a row read ahead, in turns; repeatable")
    parser.add_argument("--their-tokens", type=int, default=6, help="of llama.cpp, the first two not counted; 0: none")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    checkpoint = open_checkpoint(given.model)
    experts = {name: info for name, info in checkpoint.tensors.items() if "_exps" in name}
    nbytes = int(given.share * sum(info.nbytes for info in experts.values()))
    count = max(info.shape[0] for info in experts.values())
    ids = tokens(given.warm + given.windows * given.tokens, checkpoint.tensors["token_embd.weight"].shape[0])
    starts = range(given.warm, len(ids), given.tokens)
    every = nbytes / given.share
    print(
        f"{checkpoint.nbytes / 1e9:.2f} GB, of them {every / 1e9:.2f} of experts; all in {nbytes:,} bytes", flush=True
    )
    context, chunk = max(len(ids), given.prompt) + 64, given.prompt or 1
    start = lambda limit, **how: running(
        "turbospark", given.model, context, given.threads, limit, {"chunk": chunk, **how}
    )
    with start(None, expert_residency="resident") as (process, _):
        process.ask("feed", ids[: given.warm])
        compute = [process.ask("feed", ids[at : at + given.tokens], at) for at in starts]
        entropy, reuse = routing(process.ask("chosen", ids[given.warm :]), count)
    print(f"experts: {entropy:.2f} bits of {log2(count):.2f}, {reuse:.0%} of a token's were the last token's")
    windows, peak, memory = list[Window](), 0, {"VmHWM": 0}
    with start(nbytes, expert_residency="streamed", memory=nbytes) as (process, group):
        if given.prompt:
            process.ask("begin", tokens(given.prompt, 1000))
        process.ask("feed", ids[: given.warm])
        print(HEAD, flush=True)
        for turn, (at, alone) in enumerate(zip(starts, compute, strict=True)):
            ahead = given.ahead[turn % len(given.ahead)] if given.ahead else None
            if ahead is not None:
                process.ask("ahead", ahead)
            earlier = process.ask("traffic")
            process.ask("record")
            took = process.ask("feed", ids[at : at + given.tokens], at)
            traffic = {k: v - earlier[k] for k, v in process.ask("traffic").items()}
            if not windows:  # the reads by themselves go to memory that is no part of the run
                peak, memory = group.peak(), process.ask("memory")
            read, busy_s, alone_s = process.ask("replay")
            windows.append(Window(alone, took, traffic, read, busy_s, alone_s, ahead))
            print(windows[-1].row(), flush=True)
    ratio = statistics.median(sum(w.took) / w.bound for w in windows)
    each = statistics.mean(s for w in windows for s in w.took)
    for ahead in dict.fromkeys(given.ahead or ()):
        of = [w for w in windows if w.ahead == ahead]
        told = (sum(sum(w.took) for w in of), sum(w.read for w in of), sum(w.traffic["wait_s"] for w in of))
        ms, mb, wait = (total / sum(len(w.took) for w in of) for total in told)
        print(f"{ahead} ahead: {1e3 * ms:.0f} ms, {mb / 1e6:.0f} MB and {1e3 * wait:.0f} ms of waiting a token")
    print(f"streamed: {1 / each:.2f} tokens/s; {ratio:.2f} of the bound, median of {len(windows)} windows")
    print(f"  peak {peak:,} bytes, {peak / nbytes:.1%} of the limit; resident {memory['VmHWM'] / nbytes:.1%}")
    if given.their_tokens > 2:
        few = ids[: given.their_tokens]
        with running("llama.cpp", given.model, len(few) + 64, given.threads, nbytes, {}) as (process, group):
            theirs, peak = statistics.mean(process.ask("feed", few)[2:]), group.peak()
        print(f"llama.cpp: {1 / theirs:.3f} tokens/s, peak {peak:,} bytes; ratio {theirs / each:.1f}")


if __name__ == "__main__":
    main()
