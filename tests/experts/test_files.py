"""Files that change, end early, or know no direct reads, while a model has them open."""

from __future__ import annotations

import os

import numpy as np
import pytest

import turbospark
from tests.experts.disks import build, write_mixture
from turbospark.engine.loop import Engine
from turbospark.errors import TurbosparkError
from turbospark.experts import reader as reading
from turbospark.experts.mapped import Mapped
from turbospark.experts.reader import Disk, Read, Reader
from turbospark.experts.resident import InMemory
from turbospark.experts.streamed import Streamed
from turbospark.formats.mapped import MappedFile
from turbospark.kernels.cpu.backend import CpuKernels

IDS = [3, 14, 15, 9, 26, 5]


@pytest.fixture
def path(tmp_path):
    return write_mixture(tmp_path)


def logits(model) -> np.ndarray:
    return Engine(model, 1, 4).logits(IDS)


def touch(path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 5_000_000))


def test_a_file_that_changes_under_streamed_experts_is_named_with_the_tensor(path):
    model = build(path, CpuKernels(), Streamed, 6, Reader())
    touch(path)
    with pytest.raises(TurbosparkError, match=r"tiny\.gguf changed while open.*ffn_\w+_exps") as caught:
        logits(model)
    assert caught.value.code == "file_changed"


def test_a_file_cut_under_streamed_experts_is_named_with_the_tensor_and_both_numbers(path):
    model = build(path, CpuKernels(), Streamed, 6, Reader())
    os.truncate(path, 8192)
    with pytest.raises(TurbosparkError, match=r"tensor blk\.1\.ffn_\w+_exps\S* needs \d+ bytes at byte \d+, has \d+"):
        logits(model)


def test_a_model_in_memory_outlives_its_file(path):
    model = build(path, CpuKernels(), InMemory, Reader())
    wanted = logits(model)
    os.truncate(path, 10)
    np.testing.assert_array_equal(logits(model), wanted)


def test_a_file_that_changes_before_it_was_read_is_refused(path):
    from turbospark.config.registry import read_config
    from turbospark.formats import open_checkpoint
    from turbospark.models.registry import model_class

    checkpoint = open_checkpoint(path)
    touch(path)
    with pytest.raises(TurbosparkError, match="changed while open"):
        model_class("deepseek2")(
            read_config(checkpoint),
            checkpoint,
            "gguf",
            CpuKernels(),
            64,
            InMemory(checkpoint.maps.values(), Reader()),
        )


def test_mapped_weights_are_looked_at_before_each_step(path):
    model = build(path, CpuKernels(), Mapped)
    logits(model)
    touch(path)
    with pytest.raises(TurbosparkError) as caught:
        logits(model)
    assert caught.value.code == "file_changed"


def test_an_error_leaves_a_model_that_goes_on_when_the_file_is_back(path):
    wanted = logits(build(path, CpuKernels()))
    model, before = build(path, CpuKernels(), Streamed, 4, Reader()), path.stat().st_mtime_ns
    touch(path)
    with pytest.raises(TurbosparkError):
        logits(model)
    os.utime(path, ns=(0, before))
    np.testing.assert_array_equal(logits(model), wanted)


@pytest.mark.parametrize("fails", ["open", "read"])
def test_without_direct_reads_the_bytes_are_the_same_and_it_is_said_once(path, monkeypatch, fails):
    wanted, told = logits(build(path, CpuKernels())), []
    if fails == "open":
        monkeypatch.setattr(reading, "DIRECT", 0)
    else:
        # a descriptor that cannot be read from: the file system opens, and then refuses
        real_open = os.open
        monkeypatch.setattr(reading.os, "open", lambda name, flags: real_open(os.devnull, os.O_WRONLY))
    model = build(path, CpuKernels(), Streamed, 4, Reader(Disk(told.append)))
    np.testing.assert_array_equal(logits(model), wanted)
    assert len(told) == 1
    assert "page cache" in told[0]


def test_of_several_files_without_direct_reads_it_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "DIRECT", 0)
    told = []
    disk = Disk(told.append)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 100)
        memory = np.empty(100, np.uint8)
        disk.read(Read(MappedFile(tmp_path / name), 0, memory, 100, name))
        assert memory.tobytes() == name.encode() * 100
    assert len(told) == 1


def test_short_reads_are_gone_on_with(path, monkeypatch):
    wanted, real = logits(build(path, CpuKernels())), os.preadv
    monkeypatch.setattr(reading.os, "preadv", lambda fd, buffers, at: real(fd, [buffers[0][:1000]], at))
    model = build(path, CpuKernels(), Streamed, 4, Reader(Disk(lambda text: None)))
    np.testing.assert_array_equal(logits(model), wanted)


def test_a_number_of_slots_below_one_is_refused(path):
    with pytest.raises(TurbosparkError) as caught:
        build(path, CpuKernels(), Streamed, 0, Reader())
    assert caught.value.code == "bad_slots"


@pytest.mark.parametrize("asked", [{"expert_cache_slots": 5}, {"expert_residency": "mapped"}, {}])
def test_a_loaded_model_says_where_its_experts_are(path, asked):
    model = turbospark.load(path, **asked)
    wanted = {"expert_cache_slots": "streamed", "expert_residency": "mapped"}.get(next(iter(asked), ""), "resident")
    assert model.placement.residency == model.residency.name == wanted
    assert wanted in model.placement.why
    reference = turbospark.load(path, "reference", expert_residency="mapped").logits(IDS)
    np.testing.assert_allclose(model.logits(IDS), reference, atol=0.2)


def test_a_drafter_changes_no_token_over_streamed_experts(path):
    params = turbospark.SamplingParams(temperature=0.0, max_new=24, speculative=3)
    outputs = [
        turbospark.load(path, drafter=drafter, **held).generate(IDS, given).token_ids
        for drafter, given in ((None, turbospark.SamplingParams(temperature=0.0, max_new=24)), ("ngram", params))
        for held in ({"expert_residency": "resident"}, {"expert_cache_slots": 3})
    ]
    assert outputs == outputs[:1] * 4
    assert len(outputs[0]) == 24
