"""Reading ahead switches itself off where it does not pay, and tries again."""

from __future__ import annotations

import numpy as np

from tests.experts.disks import build, write_mixture
from turbospark.engine.loop import Engine
from turbospark.experts.ahead import PAUSE, TRIAL, Ahead
from turbospark.experts.reader import Disk, Reader
from turbospark.experts.streamed import Streamed
from turbospark.kernels.cpu.backend import CpuKernels


def trial(saved_s: float, vain: int) -> Ahead:
    """A disk that takes 2 s for 1000 bytes, seen for one token less than a trial."""
    ahead = Ahead(3)
    ahead.begin(TRIAL - 1)
    ahead.measured(1000, 2.0)
    ahead.useful(saved_s)
    ahead.wasted(vain)
    assert ahead.wanted == 3
    return ahead


def test_it_goes_on_while_bytes_in_vain_cost_less_than_the_wait_they_save():
    ahead = trial(0.5, 250)
    ahead.begin(1)
    assert ahead.wanted == 3


def test_it_ends_where_they_cost_more_and_is_tried_again_after_a_pause():
    ahead = trial(0.5, 251)
    ahead.begin(1)
    assert ahead.wanted == 0
    ahead.begin(PAUSE - 1)
    assert ahead.wanted == 0
    ahead.begin(1)
    assert ahead.wanted == 3
    ahead.begin(TRIAL)  # nothing was guessed: nothing speaks against it
    assert ahead.wanted == 3


def decoded(path, wrong: bool):
    """A streamed model that has run long enough for a trial, one row at a time; its guesses may all be wrong."""
    model = build(path, CpuKernels(), Streamed, 4, Reader(Disk()), 64.0, 2)
    for store in model.residency.stores:
        guess = store.guess
        if wrong:  # the experts that the row will not want
            store.guess = lambda x, guess=guess: np.array([[e for e in range(8) if e not in guess(x)[0]][:3]])
    Engine(model, 1, 1).logits([i % 50 for i in range(TRIAL + 2)])
    return model.residency


def test_guesses_that_never_come_true_end_it_in_a_model_and_are_counted(tmp_path):
    residency = decoded(write_mixture(tmp_path), wrong=True)
    assert residency.ahead.wanted == 0
    assert residency.traffic.vain > 0
    assert residency.traffic.useful < residency.traffic.guesses


def test_what_useful_guesses_saved_is_counted(tmp_path):
    residency = decoded(write_mixture(tmp_path), wrong=False)
    assert residency.traffic.useful > 0
    assert residency.traffic.saved_s > 0
