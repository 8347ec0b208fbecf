"""Whole tiny models of every family on this backend: exact ones against the reference, quantised ones within noise."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.parity.harness import check_groupings, difference, feed, new_session, some_ids
from tests.tiny import hf
from tests.tiny.deepseek2 import V2, V3, weights
from tests.tiny.gemma3 import tiny_gemma3
from tests.tiny.llama import tiny_llama
from tests.tiny.memory import Memory
from tests.tiny.qwen3_5 import hf_arrays, hf_model
from turbospark import quant
from turbospark.config import deepseek2, qwen3_5
from turbospark.config.keys import Keys
from turbospark.config.registry import read_config
from turbospark.engine.loop import Engine
from turbospark.formats import open_checkpoint
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows
from turbospark.models.base import Model
from turbospark.models.registry import model_class

VOCAB, CONTEXT = 96, 160
WIDE = {"hidden_size": 64, "intermediate_size": 96}
# family: what 8-bit activations may cost, about twice what was seen; the hybrids' recurrence amplifies it
NOISE = {
    "llama": 0.004,
    "gemma3": 0.0003,
    "qwen3_5": 0.02,
    "qwen3_5 with experts": 0.03,
    "deepseek v2": 0.001,
    "deepseek v3": 0.005,
}
FAMILIES = tuple(NOISE)
SHIFTED = ("self_attn.q", "self_attn.o_proj", "kv_b_proj", "linear_attn.in_proj_qkv", "shared_experts.down", "mlp.down")


@cache
def arrays_of(family: str, folder: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The config of a tiny model and its weights under HF's names, of widths that block formats divide."""
    if family.startswith("qwen"):
        model = hf_model(family.endswith("experts"), **({"hidden_size": 64} if "experts" in family else WIDE))
        return qwen3_5.from_hf(Keys(model.config.to_dict(), "tiny")), hf_arrays(model)
    if family.startswith("deepseek"):
        declared = {**(V2 if family.endswith("v2") else V3), "hidden_size": 64, "kv_lora_rank": 32}
        return deepseek2.from_hf(Keys(declared, "tiny")), weights(declared)
    model = tiny_llama(attention_bias=True, **WIDE) if family == "llama" else tiny_gemma3(**WIDE)
    return read_config(open_checkpoint(hf.write(folder, model))), hf.arrays(model)


class Quantised(Memory):
    """Matrices in a block format where their rows allow it."""

    def __init__(self, arrays: dict[str, np.ndarray], format: str | None):
        super().__init__(arrays)
        self.format = format
        self.tensors = {name: SimpleNamespace(shape=a.shape, format="F32") for name, a in arrays.items()}

    def open(self, name: str):
        values = self.arrays[name]
        block = self.format and quant.get_format(self.format).block
        if not block or values.ndim < 2 or "conv" in name or values.shape[-1] % block:
            return super().open(name)
        return quant.encode(values, self.format, name)


def make(family: str, folder: Any, kernels: Any, format: str | None = None, **changed: np.ndarray) -> Model:
    config, arrays = arrays_of(family, folder)
    return model_class(config.family)(config, Quantised({**arrays, **changed}, format), "hf", kernels, CONTEXT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def divergence(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The mean Kullback-Leibler divergence of the distributions at all positions, in nats."""
    ours, theirs = log_softmax(ours), log_softmax(theirs)
    return float((np.exp(theirs) * (theirs - ours)).sum(-1).mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exact_model_gives_the_logits_of_the_reference(family, folder):
    ids = some_ids(130, VOCAB)
    theirs = Engine(make(family, folder, ReferenceKernels())).logits(ids)
    # the recurrence of this tiny hybrid amplifies a rounding of the last bit to 2e-4
    limit = 5e-4 if family == "qwen3_5 with experts" else 1e-4
    assert difference(Engine(make(family, folder, CpuKernels(exact=True))).logits(ids), theirs) < limit


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("format", ["Q8_0", "Q4_1"])
def test_a_quantised_model_stays_within_the_noise_of_its_activations(family, format, folder):
    ids = some_ids(130, VOCAB)
    theirs = Engine(make(family, folder, ReferenceKernels(), format)).logits(ids)
    ours = Engine(make(family, folder, CpuKernels(), format)).logits(ids)
    assert divergence(ours, theirs) < NOISE[family]
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() > 0.85


@pytest.mark.parametrize("family", FAMILIES)
def test_a_matrix_shifted_by_a_row_is_far_beyond_that_noise(family, folder):
    ids = some_ids(130, VOCAB)
    theirs = Engine(make(family, folder, ReferenceKernels(), "Q8_0")).logits(ids)
    _, arrays = arrays_of(family, folder)
    names = [
        name for name in arrays if "layers.1." in name and any(k in name for k in SHIFTED) and arrays[name].ndim > 1
    ]
    assert len(names) >= 2
    for name in names:
        wrong = make(family, folder, CpuKernels(), "Q8_0", **{name: np.roll(arrays[name], 1, axis=0)})
        assert divergence(Engine(wrong).logits(ids), theirs) > 4 * NOISE[family], name


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_bit_equal_whatever_the_grouping(family, folder):
    check_groupings(make(family, folder, CpuKernels(), "Q8_0"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_of_threads_changes_no_bit(family, folder):
    model, ids, before = make(family, folder, CpuKernels(), "Q4_1"), some_ids(90, VOCAB), threads.count()
    found = []
    try:
        for count in (1, 2, 3):
            threads.set_count(count)
            session = new_session(model)
            parts = (ids[:70], ids[70:71], ids[71:])
            found.append(np.concatenate([feed(model, session, [(0, part)]) for part in parts]))
    finally:
        threads.set_count(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_all_layers_in_one_region_give_the_bits_of_one_at_a_time(family, folder):
    model, ids = make(family, folder, CpuKernels(), "Q8_0"), some_ids(40, VOCAB)
    found = []
    for sink in (None, lambda name, value: None):  # what is traced goes layer by layer
        model.trace.sink = sink
        session = new_session(model)
        rows = Rows.of([(0, 0, ids, len(ids))])
        session.begin(rows)
        found.append(model(rows, session.layers, (0, 1)))
    whole, single = found
    assert np.array_equal(whole.hidden, single.hidden)
    assert set(whole.taps) == {0, 1}
    assert not np.array_equal(whole.taps[0], whole.taps[1])
    for layer, tap in single.taps.items():
        assert np.array_equal(whole.taps[layer], tap)
