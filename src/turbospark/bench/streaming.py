"""A mixture larger than the memory it may use: streamed experts beside llama.cpp's mapped file, under the same limit.

    python -m turbospark.bench.random_model deepseek-v2-lite dsv2lite.gguf --format Q8_0 --skew 0.5
    python -m turbospark.bench.streaming dsv2lite.gguf

Needs root for a memory cgroup (v1 or v2). Both are given the same tokens one at a time, behind some that fill what they
keep; nothing of the file is in the page cache before. The limit is a share of the experts' bytes, for everything.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
PIECE = 3 << 20  # of the reads that the disk's speed is measured with, about a matrix of an expert


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


def disk_speed(path: Path, seconds: float = 3.0, threads: int = 4) -> float:
    """Bytes a second of direct reads of PIECE at random places."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    pieces = os.fstat(file).st_size // PIECE
    end = time.perf_counter() + seconds

    def read(seed: int) -> int:
        memory, rng, done = mmap.mmap(-1, PIECE), np.random.default_rng(seed), 0
        while time.perf_counter() < end:
            done += os.preadv(file, [memory], int(rng.integers(pieces)) * PIECE)
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, range(threads)))
    os.close(file)
    return total / (time.perf_counter() - start)


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


def run(kind: str, path: Path, ids: list[int], warm: int, threads: int, nbytes: int | None, **options: Any) -> Any:
    """Seconds a token behind the first `warm`, the cgroup's peak, and what experts cost in that span."""
    forget(path)
    with limit(nbytes or 1 << 40) as group:
        process = Process(kind, str(path), threads, len(ids) + 64, group.before, **options)
        try:
            process.ask("feed", ids[:warm])
            earlier = process.ask("traffic") if kind == "turbospark" else {}
            taken = process.ask("feed", ids[warm:])
            traffic = {k: v - earlier[k] for k, v in process.ask("traffic").items()} if earlier else {}
            chosen = process.ask("chosen", ids[warm:]) if nbytes is None else []
            return taken, group.peak(), traffic, chosen
        finally:
            process.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Streamed experts beside llama.cpp under a memory limit")
    parser.add_argument("model", type=Path)
    parser.add_argument("--share", type=float, default=0.25, help="of the experts' bytes that all may take")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--warm", type=int, default=32)
    parser.add_argument("--their-tokens", type=int, default=6, help="of llama.cpp, the first two not counted; 0: none")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    checkpoint = open_checkpoint(given.model)
    experts = {name: info for name, info in checkpoint.tensors.items() if "_exps" in name}
    nbytes = int(given.share * sum(info.nbytes for info in experts.values()))
    count = max(info.shape[0] for info in experts.values())
    ids = tokens(given.warm + given.tokens, checkpoint.tensors["token_embd.weight"].shape[0])
    every = nbytes / given.share
    print(f"{checkpoint.nbytes / 1e9:.2f} GB, of them {every / 1e9:.2f} of experts; all in {nbytes:,} bytes")
    print(f"the disk reads {disk_speed(given.model) / 1e9:.2f} GB/s")
    plan = (given.model, ids, given.warm, given.threads)
    compute, _, _, chosen = run("turbospark", *plan, None, expert_residency="mapped")
    entropy, reuse = routing(chosen, count)
    print(f"experts: {entropy:.2f} bits of {log2(count):.2f}, {reuse:.0%} of a token's were the last token's")
    print(f"all in memory: {1e3 * statistics.median(compute):.1f} ms a token")
    disk = disk_speed(given.model)
    ours, peak, traffic, _ = run("turbospark", *plan, nbytes, expert_residency="streamed", memory=nbytes)
    n = len(ours)
    read = traffic["bytes_read"] / n
    bound = max(statistics.mean(compute), read / disk)
    hits = traffic["hits"] / max(1, traffic["hits"] + traffic["misses"])
    print(f"streamed: {n / sum(ours):.2f} tokens/s, peak {peak:,} bytes ({peak / nbytes:.1%} of the limit)")
    print(f"  hit rate {hits:.1%}, {read / 1e6:.1f} MB read and {1e3 * traffic['wait_s'] / n:.1f} ms waited a token")
    took = sum(ours) / n
    print(f"  disk {disk / 1e9:.2f} GB/s: bound {1e3 * bound:.1f} ms, took {1e3 * took:.1f} ({took / bound:.2f})")
    if given.their_tokens > 2:
        few = (given.model, ids[: given.their_tokens], 2, given.threads)
        theirs, peak, _, _ = run("llama.cpp", *few, nbytes)
        each = statistics.mean(theirs)
        print(f"llama.cpp: {1 / each:.3f} tokens/s, peak {peak:,} bytes; ratio {each / took:.1f}")


if __name__ == "__main__":
    main()
