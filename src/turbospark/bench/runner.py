"""A process that runs one model on request, so that two of them can take turns without sharing a thread or a heap.

    python -m turbospark.bench.runner turbospark|llama.cpp MODEL THREADS CONTEXT [OPTIONS]

OPTIONS, a JSON object, are those of `turbospark.load`. Reads a JSON list a line, [verb, arguments ...], and answers
each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np


class Runner(ABC):
    """Greedy, one sequence at a time."""

    @abstractmethod
    def begin(self, ids: list[int]) -> float:
        """Reads a prompt and draws a token. Returns seconds."""

    @abstractmethod
    def go_on(self) -> float:
        """Draws one more token. Returns seconds."""

    @abstractmethod
    def feed(self, ids: list[int]) -> list[float]:
        """Given tokens one at a time, from an empty cache. Returns seconds of each."""

    def decode(self, ids: list[int], tokens: int) -> list[float]:
        """Seconds of each of `tokens` steps behind a prompt."""
        self.begin(ids)
        return [self.go_on() for _ in range(tokens)]

    def memory(self) -> dict[str, int]:
        """Bytes: the most that was resident, and what is resident now and in no file."""
        return {name: 1024 * int(_status(name)) for name in ("VmHWM", "RssAnon")}


class Turbospark(Runner):
    def __init__(self, model: str, threads: int, context: int, **options: Any):
        import turbospark

        options = {"backend": "cpu", "slots": 1, "chunk": 512, **options}
        self.model = turbospark.load(model, threads=threads, max_context=context, **options)
        self.request: Any = None
        self.disk: Any = None  # that of streamed experts, while another records what is read of it
        self.recorded: Any = None

    def begin(self, ids: list[int]) -> float:
        from turbospark import SamplingParams

        if self.request is not None:
            self.model.engine.cancel(self.request)
        params = SamplingParams(temperature=0, ignore_eos=True, max_new=self.model.engine.max_context - len(ids))
        start = time.perf_counter()
        self.request = self.model.submit(ids, params)
        while not self.request.output:
            self.model.engine.step()
        return time.perf_counter() - start

    def go_on(self) -> float:
        start = time.perf_counter()
        self.model.engine.step()
        return time.perf_counter() - start

    def feed(self, ids: list[int], behind: int = 0) -> list[float]:
        """Given tokens one at a time, from an empty cache or `behind` so many. Returns seconds of each."""
        from turbospark.kernels.rows import Rows

        engine, taken = self.model.engine, []
        if not behind:
            engine.session.reset(0)
        for position, token in enumerate(ids, behind):
            start = time.perf_counter()
            rows = Rows.of([(0, position, [token], 1)])
            engine.session.begin(rows)
            engine.model.logits(engine.model(rows, engine.session.layers).hidden)
            engine.session.commit(0, 1)
            taken.append(time.perf_counter() - start)
        return taken

    def traffic(self) -> dict[str, float]:
        """What experts have cost so far."""
        return vars(self.model.residency.traffic)

    def ahead(self, count: int) -> None:
        """From now on so many experts a row are read ahead, whether it pays or not."""
        from turbospark.experts.ahead import Ahead

        residency: Any = self.model.residency
        residency.ahead = Ahead(count, trial=1 << 40)

    def record(self) -> None:
        """Remembers the reads of streamed experts from now on."""
        from turbospark.bench.replay import Recorded

        reader = self._reader()
        self.disk = self.disk or reader.disk
        reader.disk = self.recorded = Recorded(self.disk)

    def replay(self) -> tuple[int, float, float]:
        """Bytes read since, seconds in which a read was under way, and seconds of the same reads by themselves."""
        from turbospark.bench.replay import busy, replay

        seen, self._reader().disk = self.recorded.seen, self.disk
        nbytes = sum(one.read.memory.nbytes for one in seen)
        return nbytes, busy(seen), replay(seen, self.disk)

    def _reader(self) -> Any:
        residency: Any = self.model.residency
        return residency.reader

    def chosen(self, ids: list[int]) -> list[list[list[int]]]:
        """The experts that given tokens went to: [layer][token][used]."""
        found: dict[str, list[list[int]]] = {}
        trace = self.model.engine.model.trace
        trace.sink = lambda name, value: (
            found.setdefault(name, []).extend(value.tolist()) if "experts" in name else None
        )
        self.feed(ids)
        trace.sink = None
        return list(found.values())

    def read_speed(self, nbytes: int, rounds: int) -> list[float]:
        """GB/s at which the same threads read memory, a figure a round."""
        from turbospark.bench.kernels import read

        memory = np.ones(nbytes, np.uint8)
        taken = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            read(memory)
            taken.append(nbytes / (time.perf_counter() - start) / 1e9)
        return taken[1:]


class LlamaCpp(Runner):
    """Through the C functions that llama-cpp-python binds: its own Python layer would only slow it."""

    def __init__(self, model: str, threads: int, context: int, **options: Any):
        import llama_cpp

        from turbospark.catalog import resolve

        self.lib = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        path = str(resolve(model)).encode()
        loaded = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
        if not loaded:
            raise RuntimeError(f"llama.cpp cannot load {path.decode()}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, 512, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(loaded, params)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(loaded))
        self.next = 0

    def begin(self, ids: list[int]) -> float:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        return self._run(ids)

    def go_on(self) -> float:
        return self._run([self.next])

    def feed(self, ids: list[int]) -> list[float]:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        return [self._run([token]) for token in ids]

    def _run(self, ids: list[int]) -> float:
        start = time.perf_counter()
        tokens = (self.lib.llama_token * len(ids))(*ids)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(tokens, len(ids))) != 0:
            raise RuntimeError(f"llama.cpp refused a batch of {len(ids)}")
        logits = np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, -1), (self.vocab,))
        self.next = int(logits.argmax())
        return time.perf_counter() - start


RUNNERS: dict[str, type[Turbospark] | type[LlamaCpp]] = {"turbospark": Turbospark, "llama.cpp": LlamaCpp}


def _status(name: str) -> str:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found[1] if found else "0"


def main() -> None:
    kind, model, threads, context, *options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # what a library prints goes elsewhere
    os.dup2(2, 1)
    runner = RUNNERS[kind](model, int(threads), int(context), **json.loads("".join(options) or "{}"))
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(runner, verb)(*arguments)), file=answers)


if __name__ == "__main__":
    main()
