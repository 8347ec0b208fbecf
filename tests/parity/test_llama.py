"""llama and mistral against transformers, as HF folders and as GGUF files, and GGUF files against llama.cpp."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turbospark
from tests.parity.harness import BACKENDS, check_groupings, check_sees_noise, difference, some_ids, with_noise
from tests.parity.llama_cpp import LlamaCpp, log_softmax, vocabulary
from tests.tiny import hf
from tests.tiny.dense import LAYER, gguf_arrays, write_dense_gguf
from tests.tiny.llama import CONTEXT, ROPES, TRAINED, VOCAB, tiny_llama, tiny_mistral
from tests.tiny.memory import Memory
from turbospark.config.registry import read_config
from turbospark.engine.loop import Engine
from turbospark.formats import open_checkpoint
from turbospark.kernels.reference import ReferenceKernels
from turbospark.models.llama import Llama

LENGTHS = (1, 2, 17, 64, 130)
MODELS = {
    **{rope: lambda rope=rope: tiny_llama(rope) for rope in ROPES},
    "tied": lambda: tiny_llama(tie_word_embeddings=True),
    "biases": lambda: tiny_llama(attention_bias=True),
    "a head for each key head": lambda: tiny_llama(num_key_value_heads=4),
    "wide heads": lambda: tiny_llama(head_dim=24),
    "mistral": lambda: tiny_mistral(None),
    "mistral with a window": lambda: tiny_mistral(16),
}
YARN = {"type": "yarn", "factor": 5.0, "original_context_length": TRAINED}
MAGNITUDE = 0.1 * math.log(5.0) + 1
# what a GGUF says of each rope, below llama.rope.scaling; llama.cpp does not read yarn_* in this architecture
SCALING: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"type": "linear", "factor": 4.0},
    "yarn": YARN,
    "yarn with attention_factor": {**YARN, "attn_factor": 0.8 / MAGNITUDE},
}
UNREAD_BY_LLAMA_CPP = {
    "yarn with betas": {**YARN, "yarn_beta_fast": 4.0, "yarn_beta_slow": 0.5},
    "yarn with attention_factor": {**YARN, "yarn_attn_factor": 0.8},
}


def load(path: Path, backend: str = "reference", exact: bool = False) -> turbospark.LanguageModel:
    return turbospark.load(path, backend, exact=exact)


def gguf(folder: Path, model: Any, scaling: dict[str, Any] | None = None, **tensors: np.ndarray) -> Path:
    keys = {f"llama.rope.scaling.{name}": value for name, value in (scaling or {}).items()}
    return write_dense_gguf(folder / "model.gguf", model, {**vocabulary(VOCAB), **keys}, tensors)


def llama3_factors(head_dim: int) -> np.ndarray:
    """What llama3's scaling divides each frequency by, as converters store it in rope_freqs."""
    rope = ROPES["llama3"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    factors = []
    for turns in rope["original_max_position_embeddings"] / waves:
        if turns > rope["high_freq_factor"]:
            factors.append(1.0)
        elif turns < rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - share) / rope["factor"] + share))
    return np.asarray(factors, np.float32)


@BACKENDS
@pytest.mark.parametrize("kind", MODELS)
def test_every_position_agrees_with_transformers(kind: str, backend: dict[str, Any], tmp_path: Path) -> None:
    theirs = MODELS[kind]()
    ours = load(hf.write(tmp_path, theirs), **backend)
    ids = some_ids(max(LENGTHS), VOCAB)
    for length in LENGTHS:
        assert difference(ours.logits(ids[:length]), hf.logits(theirs, ids[:length])) < 1e-4


@pytest.mark.parametrize("kind", [kind for kind in ROPES if kind != "default"])
def test_every_rope_kind_changes_the_logits(kind: str) -> None:
    ids = some_ids(130, VOCAB)
    assert difference(hf.logits(tiny_llama(kind), ids), hf.logits(tiny_llama(), ids)) > 0.1


def test_a_window_changes_the_logits_from_its_end_on() -> None:
    ids = some_ids(40, VOCAB)
    windowed, whole = hf.logits(tiny_mistral(16), ids), hf.logits(tiny_mistral(None), ids)
    assert difference(windowed[:16], whole[:16]) < 1e-4 < 0.1 < difference(windowed[16:], whole[16:])


def test_noise_of_3_percent_on_any_tensor_is_seen(tmp_path: Path) -> None:
    model = tiny_llama(attention_bias=True)
    config = read_config(open_checkpoint(hf.write(tmp_path, model)))
    arrays, ids = hf.arrays(model), some_ids(40, VOCAB)

    def logits(arrays: dict[str, np.ndarray]) -> np.ndarray:
        ours = Llama(config, Memory(arrays), "hf", ReferenceKernels(), CONTEXT)
        return Engine(ours).logits(ids)

    theirs = hf.logits(model, ids)
    assert difference(logits(arrays), theirs) < 1e-4
    check_sees_noise(list(arrays), lambda name: logits({**arrays, name: with_noise(arrays[name])}), theirs)


@pytest.mark.parametrize("window", [None, 16])
def test_rows_are_bit_equal_whatever_the_grouping(window: int | None, tmp_path: Path) -> None:
    check_groupings(load(hf.write(tmp_path, tiny_mistral(window, num_hidden_layers=2))).engine.model)


@pytest.mark.parametrize("kind", [*SCALING, "tied", "biases", "wide heads"])
def test_a_gguf_gives_the_logits_of_the_folder_and_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    theirs = MODELS[kind]()
    path = gguf(tmp_path, theirs, SCALING.get(kind))
    check_gguf(path, theirs)
    check_llama_cpp(path)


def test_rope_freqs_are_llama3_scaling(tmp_path: Path) -> None:
    theirs = tiny_llama("llama3")
    path = gguf(tmp_path, theirs, **{"rope_freqs.weight": llama3_factors(theirs.config.head_dim)})
    check_gguf(path, theirs)
    check_llama_cpp(path)


@pytest.mark.parametrize("kind", UNREAD_BY_LLAMA_CPP)
def test_yarn_keys_that_converters_write_count(kind: str, tmp_path: Path) -> None:
    theirs = tiny_llama(kind)
    check_gguf(gguf(tmp_path, theirs, UNREAD_BY_LLAMA_CPP[kind]), theirs)


def test_the_old_name_of_the_linear_factor_counts(tmp_path: Path) -> None:
    theirs = tiny_llama("linear")
    path = write_dense_gguf(tmp_path / "old.gguf", theirs, {**vocabulary(VOCAB), "llama.rope.scale_linear": 4.0})
    check_gguf(path, theirs)
    check_llama_cpp(path)


def test_a_gguf_with_rows_in_the_order_of_the_folder_is_another_model(tmp_path: Path) -> None:
    theirs, ids = tiny_llama(), some_ids(40, VOCAB)
    plain = {f"{LAYER[part]}.weight": f"{part}.weight" for part in ("self_attn.q_proj", "self_attn.k_proj")}
    unpermuted = {
        f"blk.{i}.{name}": hf.arrays(theirs)[f"model.layers.{i}.{part}"]
        for i in range(3)
        for name, part in plain.items()
    }
    assert unpermuted.keys() <= gguf_arrays(theirs).keys()
    assert difference(load(gguf(tmp_path, theirs, **unpermuted)).logits(ids), hf.logits(theirs, ids)) > 0.1


def check_gguf(path: Path, theirs: Any) -> None:
    ids = some_ids(130, VOCAB)
    assert difference(load(path).logits(ids), hf.logits(theirs, ids)) < 1e-4


def check_llama_cpp(path: Path, limit: float = 1e-4) -> None:
    """Log-probabilities at the ends of prompts, in standard deviations of ours."""
    ids, oracle = some_ids(130, VOCAB), LlamaCpp(path)
    ours = log_softmax(load(path).logits(ids))
    for length in (1, 17, 64, 130):
        found = oracle.logprobs(ids[:length], VOCAB)
        assert np.abs(ours[length - 1] - found).max() / np.std(ours) < limit
