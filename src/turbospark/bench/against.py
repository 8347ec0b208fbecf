"""This runtime beside llama.cpp on the same file with the same threads, in pairs that take turns.

    turbospark bench MODEL --against llama.cpp --threads 1,2

Each runs in a process of its own that sleeps while the other works. A round is a prompt and some tokens by one and then
by the other, the order alternating; medians over all, and the median of the rounds' ratios, are reported.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from turbospark.catalog import resolve
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint

READ_BYTES = 256_000_000  # of the plain read that speeds are held against


@dataclass(frozen=True)
class Plan:
    """Tokens of the long prompt and of the answer to a short one; how many rounds of both."""

    prompt: int = 512
    tokens: int = 64
    rounds: int = 5
    short: int = 16

    @property
    def context(self) -> int:
        return max(self.prompt, self.short + self.tokens) + 64


@dataclass
class Side:
    """What one runner took: seconds of each prompt, and of each token of each answer. Memory in bytes."""

    prompts: list[float] = field(default_factory=list)
    answers: list[list[float]] = field(default_factory=list)
    peak: int = 0
    growth: int = 0  # of anonymous memory over the answers behind the first round

    def decode(self) -> float:
        """Tokens a second: the median over the rounds."""
        return statistics.median(len(answer) / sum(answer) for answer in self.answers)

    def step(self, share: float) -> float:
        """Milliseconds of a token below which that share of them lies."""
        return 1e3 * float(np.quantile([s for answer in self.answers for s in answer], share))

    def prefill(self, tokens: int) -> float:
        """Tokens a second: the median over the rounds."""
        return tokens / statistics.median(self.prompts)


@dataclass
class Comparison:
    """Of one model with one number of threads. read: GB/s of a plain read, by the same threads in the same run."""

    model: str
    nbytes: int
    threads: int
    plan: Plan
    ours: Side
    theirs: Side | None
    read: float


def ratios(ours: Side, theirs: Side) -> tuple[float, float]:
    """Median over the rounds of their time over ours: to answer, and to read the prompt."""
    answers = zip(ours.answers, theirs.answers, strict=True)
    prompts = zip(ours.prompts, theirs.prompts, strict=True)
    return statistics.median(sum(b) / sum(a) for a, b in answers), statistics.median(b / a for a, b in prompts)


class Process:
    """A runner in a process of its own. before: a shell command that runs in it first, `$$` being its number."""

    def __init__(self, kind: str, model: str, threads: int, context: int, before: str = "true", **options: Any):
        runner = (sys.executable, "-m", "turbospark.bench.runner")
        given = (kind, model, str(threads), str(context), json.dumps(options))
        command = ["sh", "-c", f'{before} && exec "$@"', "sh", *runner, *given]
        environment = {**os.environ, "NUMBA_NUM_THREADS": str(max(threads, os.cpu_count() or 1))}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True, bufsize=1)
        self._answer(kind)

    def ask(self, verb: str, *arguments: Any) -> Any:
        print(json.dumps([verb, *arguments]), file=self._process.stdin, flush=True)
        return self._answer(verb)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self, what: str) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise TurbosparkError("bench_failed", f"the process asked for {what!r} ended; its message is above")
        return json.loads(line)


def compare(model: str, threads: int, plan: Plan, against: str | None) -> Comparison:
    """Raises `peer_missing` where llama-cpp-python is not installed, `bench_failed`."""
    if against is not None and find_spec("llama_cpp") is None:
        hint = "a developer tool: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python"
        raise TurbosparkError("peer_missing", "--against llama.cpp needs the package llama-cpp-python", hint)
    path = resolve(model)
    checkpoint = open_checkpoint(path)
    vocab = _vocab(checkpoint.tensors)
    sides = {kind: Side() for kind in ("turbospark", against) if kind is not None}
    running: dict[str, Process] = {}
    try:
        for kind in sides:
            running[kind] = Process(kind, str(path), threads, plan.context)
        anonymous: dict[str, int] = {}
        for turn in range(-1, plan.rounds):  # the first compiles and touches the weights
            rng = np.random.default_rng(turn + 1)
            long, short = (rng.integers(2, vocab, n).tolist() for n in (plan.prompt, plan.short))
            for kind in list(running)[:: 1 if turn % 2 else -1]:
                prompt, answer = running[kind].ask("begin", long), running[kind].ask("decode", short, plan.tokens)
                if turn < 0:
                    anonymous[kind] = running[kind].ask("memory")["RssAnon"]
                else:
                    sides[kind].prompts.append(prompt)
                    sides[kind].answers.append(answer)
        for kind, side in sides.items():
            memory = running[kind].ask("memory")
            side.peak, side.growth = memory["VmHWM"], memory["RssAnon"] - anonymous[kind]
        read = statistics.median(running["turbospark"].ask("read_speed", READ_BYTES, 9))
    finally:
        for process in running.values():
            process.close()
    theirs = None if against is None else sides[against]
    return Comparison(Path(path).name, checkpoint.nbytes, threads, plan, sides["turbospark"], theirs, read)


def table(results: Sequence[Comparison]) -> str:
    """Markdown."""
    lines = [
        "| model | threads | | decode tok/s | ms a token, median / 90 % | prefill tok/s | peak MB | growth KB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        for name, side in (("turbospark", r.ours), ("llama.cpp", r.theirs)):
            if side is None:
                continue
            cells = (
                f"{r.model} ({r.nbytes / 1e6:.0f} MB)",
                str(r.threads),
                name,
                f"{side.decode():.1f}",
                f"{side.step(0.5):.2f} / {side.step(0.9):.2f}",
                f"{side.prefill(r.plan.prompt):.1f}",
                f"{side.peak / 1e6:.0f}",
                f"{side.growth / 1e3:.0f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
        if r.theirs is not None:
            decode, prefill = ratios(r.ours, r.theirs)
            lines.append(f"| | | **ratio** | **{decode:.2f}** | | **{prefill:.2f}** | | |")
    reads = ", ".join(f"{r.read:.1f} GB/s ({r.model}, {r.threads})" for r in results)
    return "\n".join([*lines, "", f"A plain read of memory by the same threads: {reads}."])


def as_json(results: Sequence[Comparison]) -> str:
    return json.dumps([asdict(r) for r in results])


def _vocab(tensors: Any) -> int:
    return int(next(info.shape[0] for name, info in tensors.items() if "embd" in name or "embed_tokens" in name))
