"""The backend as a whole: how it is chosen, what it tells, what it keeps, and what it leaves alone."""

from __future__ import annotations

import gc
import io

import numpy as np
import pytest

from tests.parity.harness import feed, new_session, some_ids
from tests.tiny.memory import VOCAB, Memory, llama_arrays, llama_config, tiny_llama
from turbospark.engine.loop import Engine
from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.about import about
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.cpu.levels import level
from turbospark.kernels.cpu.memory import Scratch, cached
from turbospark.kernels.cpu.progress import LONG, TEXT, Progress
from turbospark.kernels.registry import make_kernels
from turbospark.models.registry import model_class
from turbospark.quant.formats import FORMATS


def tiny(kernels, context: int = 128, window: int | None = None):
    config = llama_config(context, window)
    return model_class("llama")(config, Memory(llama_arrays(config)), "gguf", kernels, context)


def test_it_is_what_a_machine_with_numba_uses():
    assert make_kernels().name == "cpu"
    assert make_kernels("cpu", exact=True).exact
    assert make_kernels("reference").name == "reference"


def test_the_number_of_threads_can_be_asked_for():
    before = threads.count()
    try:
        make_kernels("cpu", threads=3)
        assert threads.count() == 3
        make_kernels("cpu")
        assert threads.count() == 3
    finally:
        threads.set_count(before)
    with pytest.raises(TurbosparkError, match="between 1 and 256, 0 asked"):
        make_kernels("cpu", threads=0)


def test_it_says_what_it_uses():
    found = about()
    assert found["level"] == level()
    assert found["threads"] == threads.count()
    assert found["kernels"].keys() == FORMATS.keys()
    assert found["kernels"]["Q4_K"] == "8-bit activations"
    assert found["kernels"]["BF16"] == about(exact=True)["kernels"]["Q4_K"] == "float32 activations"
    assert found["kernels"]["IQ2_XS"] == "decoded by tiles"
    assert about(exact=True)["cache"] == "float32"
    assert found["cache"] == str(CpuKernels().cached((1, 1, 64, 8)).dtype)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_of_compilation_once():
    said = Terminal()
    progress = Progress(stream=said)
    progress.begins(0.0)
    progress.begins(100.0)
    assert said.getvalue() == TEXT + "\n"


def test_another_stream_is_told_when_it_takes_long():
    said = io.StringIO()
    progress = Progress(stream=said)
    progress.begins(0.0)
    progress.begins(LONG - 0.1)
    assert not said.getvalue()
    progress.begins(LONG + 0.1)
    assert said.getvalue() == TEXT + "\n"


def test_a_quiet_run_is_told_nothing():
    said = Terminal()
    progress = Progress(quiet=True, stream=said)
    progress.begins(0.0)
    progress.begins(100.0)
    assert not said.getvalue()


def test_scratch_grows_to_the_largest_need_and_stays():
    scratch = Scratch()
    scratch.reserve(1000)
    first = scratch.address
    assert first % 64 == 0
    assert scratch.size >= 1000
    scratch.reserve(500)
    assert scratch.address == first
    scratch.reserve(100_000)
    assert scratch.size >= 100_000


def test_decoding_allocates_nothing_that_stays():
    """Scratch grows with the positions attention splits, at most by one doubling in 100 tokens; nothing else grows."""
    model = tiny(CpuKernels(), 512)
    session = new_session(model)
    feed(model, session, [(0, some_ids(200, VOCAB))])
    for token in some_ids(30, VOCAB, 1):
        feed(model, session, [(0, [token])])
    gc.collect()
    arrays, size = _arrays(), model.kernels.scratch.size
    for token in some_ids(100, VOCAB, 2):
        feed(model, session, [(0, [token])])
    gc.collect()
    assert _arrays() <= arrays + 2
    assert model.kernels.scratch.size <= 2 * size


def _arrays() -> int:
    return sum(type(thing).__name__ in ("Record", "Memory", "Group", "Part") for thing in gc.get_objects())


def test_cached_rows_have_zeros_behind_them_up_to_whole_vectors():
    for halves in (False, True):
        memory = cached((2, 3, 64, 13), halves)
        assert memory.shape == (2, 3, 64, 13)
        assert memory.strides[2] == 16 * memory.itemsize
        assert not np.lib.stride_tricks.as_strided(memory, (2, 3, 64, 16)).any()


def test_a_snapshot_of_a_ring_keeps_the_cache_s_own_numbers():
    model = tiny(CpuKernels(), 256, window=16)
    session = new_session(model, chunk=32)
    feed(model, session, [(0, some_ids(30, VOCAB))])
    k, v = session.layers[0].snapshot(0, 30)
    cache = session.layers[0]
    assert k.dtype == v.dtype == cache.k.dtype
    session.layers[0].restore(1, 0, 30, (k, v))
    np.testing.assert_array_equal(cache.k[1], cache.k[0])
    assert cache.k[1].any()


def test_answers_do_not_change_when_threads_do_in_between():
    model, before, ids = tiny(CpuKernels()), threads.count(), some_ids(40, VOCAB)
    want = Engine(model).logits(ids)
    try:
        for count in (1, 4, 2):
            threads.set_count(count)
            np.testing.assert_array_equal(Engine(model).logits(ids), want)
    finally:
        threads.set_count(before)


def test_many_engines_of_one_model_leave_nothing_behind():
    model = tiny(CpuKernels())
    Engine(model).logits(some_ids(5, VOCAB))
    gc.collect()
    before = _arrays()
    for _ in range(5):
        Engine(model).logits(some_ids(5, VOCAB))
    gc.collect()
    assert _arrays() <= before


def test_both_backends_have_one_answer_in_f32():
    ids = some_ids(60, VOCAB)
    ours, theirs = Engine(tiny(CpuKernels(exact=True))).logits(ids), Engine(tiny_llama()).logits(ids)
    assert np.abs(ours - theirs).max() < 1e-4 * np.std(theirs)
