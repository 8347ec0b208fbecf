"""Drafters over streamed experts: no token changes, and their weights are held as the trunk's are."""

from __future__ import annotations

import pytest

import turbospark
from tests.tiny.dflash import dflash_config, write_dflash
from tests.tiny.trunks import write_trunk
from turbospark.experts.resident import InMemory
from turbospark.runtime import SamplingParams
from turbospark.store.repack import import_model

PROMPT = [2, 9, 4, 2, 9, 4, 2, 9]
DRAFTERS = ("dflash2", "dflash", "mtp", "ngram")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafted")
    config = turbospark.load(write_trunk(folder, "deepseek2"), "reference").config
    for name in ("dflash2", "dflash"):
        write_dflash(folder / name, dflash_config(config, name == "dflash2"))
    return folder


def named(folder, drafter):
    return folder / drafter if drafter.startswith("dflash") else drafter


def answer(path, drafter=None, temperature=0.7, proposals=3, **held):
    model = turbospark.load(path, "cpu", drafter=drafter, slots=1, chunk=8, threads=1, **held)
    speculative = "off" if drafter is None else proposals
    params = SamplingParams(temperature=temperature, seed=5, max_new=24, ignore_eos=True, speculative=speculative)
    return model.generate(PROMPT, params)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_tokens_are_those_of_plain_decoding_with_all_in_memory(folder, drafter, temperature):
    plain = answer(folder / "deepseek2", temperature=temperature, expert_residency="resident")
    for slots, proposals in ((3, 1), (5, 3), (12, 7)):
        drafted = answer(folder / "deepseek2", named(folder, drafter), temperature, proposals, expert_cache_slots=slots)
        assert drafted.token_ids == plain.token_ids, f"{slots} slots, {proposals} proposals"
        assert drafted.stats.proposed > 0
        assert drafted.stats.experts.misses > 0


def test_an_install_with_its_drafter_streams_the_same_tokens(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TURBOSPARK_HOME", str(tmp_path))
    install = import_model(folder / "deepseek2", "mine", folder / "dflash2").path
    plain = answer(folder / "deepseek2", expert_residency="resident")
    drafted = answer(install, "dflash", expert_cache_slots=4)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.proposed > 0


@pytest.mark.parametrize("drafter", ["dflash2", "mtp"])
def test_a_drafters_weights_are_in_memory_where_the_trunks_are(folder, drafter, monkeypatch):
    read, core = [], InMemory.core
    monkeypatch.setattr(InMemory, "core", lambda self, tensor: read.append(tensor.name) or core(self, tensor))
    told = {}
    for residency in ("streamed", "resident", "mapped"):
        read.clear()
        turbospark.load(folder / "deepseek2", "cpu", expert_residency=residency, drafter=named(folder, drafter))
        told[residency] = {name for name in read if "fc" in name or "eh_proj" in name}
    assert len(told["streamed"]) == 1
    assert told["streamed"] == told["resident"]
    assert told["mapped"] == set()


def test_a_separate_drafter_counts_in_the_budget(folder):
    path, drafter = folder / "deepseek2", folder / "dflash2"
    alone, beside = (turbospark.load(path, "cpu", drafter=d).placement.footprint for d in (None, drafter))
    size = sum(file.stat().st_size for file in drafter.glob("*.safetensors"))
    assert alone.drafter == 0
    assert 0.5 * size < beside.drafter <= size
    assert beside.total - alone.total == beside.drafter + beside.cache - alone.cache


@pytest.mark.parametrize("drafter", ["dflash2", "dflash", "mtp"])
def test_a_drafters_caches_count_in_the_budget(folder, drafter):
    path, options = folder / "deepseek2", {"slots": 2, "chunk": 8, "max_context": 64}
    alone = turbospark.load(path, "reference", **options).placement.footprint
    model = turbospark.load(path, "reference", drafter=named(folder, drafter), **options)
    made = model.engine.drafter
    caches = [made.cache] if drafter == "mtp" else made.context.caches
    assert model.placement.footprint.cache - alone.cache == sum(cache.nbytes for cache in caches) > 0
