"""Streamed experts of installs: the bits of the source on any number of threads, and files that change meanwhile."""

from __future__ import annotations

import os

import numpy as np
import pytest

import turbospark
from tests.store.sources import IDS, SOURCES
from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu import threads
from turbospark.store.repack import import_model

MIXTURES = [name for name in SOURCES if "mixture" in name or "deepseek2" in name]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("TURBOSPARK_HOME", str(tmp_path / "home"))
    before = threads.count()
    yield
    threads.set_count(before)


@pytest.fixture
def install(tmp_path):
    return import_model(SOURCES["GGUF, deepseek2"](tmp_path), "copy").path


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", MIXTURES)
def test_streamed_installs_give_the_bits_of_their_source(tmp_path, name, backend):
    source = SOURCES[name](tmp_path)
    wanted = turbospark.load(source, backend, expert_residency="mapped").logits(IDS)
    install = import_model(source, "copy").path
    for path in (source, install):
        for chunk, slots in ((256, 1), (1, 5), (4, 11)):
            model = turbospark.load(path, backend, chunk=chunk, expert_cache_slots=slots)
            assert model.residency.name == "streamed"
            np.testing.assert_array_equal(model.logits(IDS), wanted, f"{path.name}, {slots} slots")
    resident = turbospark.load(install, backend, expert_residency="resident")
    np.testing.assert_array_equal(resident.logits(IDS), wanted)


def test_the_bits_are_the_same_on_any_number_of_threads(install):
    outputs = [
        turbospark.load(install, "cpu", threads=count, **held).logits(IDS)
        for count in (1, 2, 3)
        for held in ({"expert_residency": "resident"}, {"expert_cache_slots": 4}, {"expert_residency": "mapped"})
    ]
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])


def test_an_expert_of_an_install_is_one_read(install):
    model = turbospark.load(install, "cpu", expert_cache_slots=24)
    for store in model.residency.stores:
        assert {len(place.extents) for place in store._places} == {1}


CHANGES = {
    "changed": lambda path: os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9)),
    "cut": lambda path: os.truncate(path, 4096),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layers_file_that_changes_under_streamed_experts_is_named(install, change):
    model = turbospark.load(install, "cpu", expert_cache_slots=4)
    CHANGES[change](install / "packed_experts" / "layer_01.bin")
    with pytest.raises(TurbosparkError, match=r"layer_01\.bin.*ffn_(gate|up|down)_exps") as caught:
        model.logits(IDS)
    assert caught.value.code == f"file_{change}"


@pytest.mark.parametrize("change", CHANGES)
def test_a_layers_file_that_changes_under_mapped_experts_is_named_before_the_next_step(install, change):
    model = turbospark.load(install, "cpu", expert_residency="mapped")
    model.logits(IDS)
    CHANGES[change](install / "packed_experts" / "layer_01.bin")
    with pytest.raises(TurbosparkError, match=r"layer_01\.bin changed while open") as caught:
        model.logits(IDS)
    assert caught.value.code == "file_changed"


@pytest.mark.parametrize("change", CHANGES)
def test_an_install_in_memory_outlives_its_files(install, change):
    model = turbospark.load(install, "cpu", expert_residency="resident")
    wanted = model.logits(IDS)
    for path in [install / "model_weights.bin", *(install / "packed_experts").glob("*.bin")]:
        CHANGES[change](path)
    np.testing.assert_array_equal(model.logits(IDS), wanted)


@pytest.mark.parametrize("change", CHANGES)
def test_the_core_under_streamed_experts_outlives_its_file(install, change):
    wanted = turbospark.load(install, "cpu").logits(IDS)
    model = turbospark.load(install, "cpu", expert_cache_slots=4)
    CHANGES[change](install / "model_weights.bin")
    np.testing.assert_array_equal(model.logits(IDS), wanted)
