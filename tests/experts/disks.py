"""A reader whose reads end in an order of the test's choosing, and the models that are read through it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tests.tiny import deepseek2
from turbospark.config.registry import read_config
from turbospark.experts.base import Residency
from turbospark.experts.reader import Disk, Job, Read
from turbospark.formats import open_checkpoint
from turbospark.kernels.api import Kernels
from turbospark.models.base import Model
from turbospark.models.registry import model_class


class AnyOrder:
    """Nothing is read until somebody waits, and then one job, drawn at random, whoever it is that waits."""

    def __init__(self, seed: int, disk: Disk | None = None):
        self.random, self.disk = np.random.default_rng(seed), disk or Disk()
        self.open: list[tuple[Job, Sequence[Read]]] = []
        self.reads = 0

    def submit(self, reads: Sequence[Read], urgent: bool = True) -> Job:
        job = Job(1, sum(read.memory.nbytes for read in reads), urgent)
        for read in reads:  # what was there is gone as soon as a slot is given to another
            read.memory[:] = 0xFF
        self.open.append((job, reads))
        return job

    def hurry(self, job: Job) -> None:
        job.urgent = True

    def cancel(self, job: Job) -> bool:
        waits = not job.urgent and any(other is job for other, _ in self.open)
        self.open = [pair for pair in self.open if pair[0] is not job or not waits]
        return waits

    def wait(self, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        while jobs and not any(job.done for job in jobs):
            job, reads = self.open.pop(int(self.random.integers(len(self.open))))
            for read in reads:
                self.disk.read(read)
                self.reads += 1
            job.left = 0


def write_mixture(folder: Path, kind: str = "gguf", **more) -> Path:
    """A tiny deepseek2, its experts stacked in a GGUF or a tensor each in a folder."""
    config = {**deepseek2.V3, **more}
    made = deepseek2.weights(config)
    if kind == "hf":
        return deepseek2.write_hf(folder / "hf", config, made)
    return deepseek2.write_deepseek2_gguf(folder / "tiny.gguf", config, made)


def build(path: Path, kernels: Kernels, make: type[Residency] | None = None, *arguments) -> Model:
    """The model with its weights held by `make(files, *arguments)`."""
    checkpoint = open_checkpoint(path)
    config = read_config(checkpoint)
    residency = None if make is None else make(checkpoint.maps.values(), *arguments)
    return model_class(config.family)(config, checkpoint, checkpoint.kind, kernels, 640, residency)
