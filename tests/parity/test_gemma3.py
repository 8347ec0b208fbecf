"""gemma3 against transformers, as HF folders and as GGUF files, and GGUF files against llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turbospark
from tests.parity.harness import BACKENDS, check_groupings, check_sees_noise, difference, some_ids, with_noise
from tests.parity.llama_cpp import LlamaCpp, log_softmax, vocabulary
from tests.tiny import hf
from tests.tiny.dense import write_dense_gguf
from tests.tiny.gemma3 import CONTEXT, GLOBAL, LOCAL, SHAPE, VOCAB, WINDOW, tiny_gemma3
from tests.tiny.memory import Memory
from tests.tiny.safetensors_file import write_hf_folder
from turbospark.config.registry import read_config
from turbospark.engine.loop import Engine
from turbospark.formats import open_checkpoint
from turbospark.kernels.reference import ReferenceKernels, moe
from turbospark.models.gemma3 import Gemma3

LENGTHS = (1, 2, 17, 64, 130)
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "capped logits": {"final_logit_softcapping": 2.0},
    "a head of its own": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True},
    "one key head": {"num_key_value_heads": 1},
}
SCALING = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
PATTERN = "gemma3.attention.sliding_window_pattern"
FLAGS = [True, True, False, True]  # as SHAPE's layer_types
KINDS = {True: "sliding_attention", False: "full_attention"}


def load(path: Path, backend: str = "reference", exact: bool = False) -> turbospark.LanguageModel:
    return turbospark.load(path, backend, exact=exact)


def gguf(folder: Path, model: Any, **keys: Any) -> Path:
    """A GGUF has no key for query_pre_attn_scalar that llama.cpp reads, so the model's should be its head's width."""
    return write_dense_gguf(folder / "model.gguf", model, {**vocabulary(VOCAB), **SCALING, PATTERN: FLAGS, **keys})


@BACKENDS
@pytest.mark.parametrize("kind", MODELS)
def test_every_position_agrees_with_transformers(kind: str, backend: dict[str, Any], tmp_path: Path) -> None:
    theirs = tiny_gemma3(**MODELS[kind])
    ours = load(hf.write(tmp_path, theirs), **backend)
    ids = some_ids(max(LENGTHS), VOCAB)
    for length in LENGTHS:
        assert difference(ours.logits(ids[:length]), hf.logits(theirs, ids[:length])) < 1e-4


def test_a_declared_cap_on_the_scores_acts(tmp_path: Path) -> None:
    """transformers keeps the declaration and applies a cap only when the call names it."""
    theirs, ids = tiny_gemma3(attn_logit_softcapping=1.5), some_ids(130, VOCAB)
    ours = load(hf.write(tmp_path, theirs)).logits(ids)
    assert difference(ours, hf.logits(theirs, ids, softcap=1.5)) < 1e-4
    assert difference(ours, hf.logits(theirs, ids)) > 0.1


@pytest.mark.parametrize(
    "changed",
    [
        {"query_pre_attn_scalar": 16},
        {"sliding_window": WINDOW + 1},
        {"layer_types": [KINDS[flag] for flag in (True, False, True, True)]},
        {"rope_parameters": {KINDS[True]: {"rope_theta": GLOBAL}, KINDS[False]: {"rope_theta": GLOBAL}}},
        {"rope_parameters": {KINDS[True]: {"rope_theta": LOCAL}, KINDS[False]: {"rope_theta": GLOBAL}}},
        {"final_logit_softcapping": 8.0},
    ],
    ids=["scale", "window", "kinds", "local theta", "global scaling", "cap"],
)
def test_every_declaration_changes_the_logits(changed: dict[str, Any]) -> None:
    ids = some_ids(130, VOCAB)
    assert difference(hf.logits(tiny_gemma3(**changed), ids), hf.logits(tiny_gemma3(), ids)) > 0.05


def test_noise_of_3_percent_on_any_tensor_is_seen(tmp_path: Path) -> None:
    model = tiny_gemma3(attention_bias=True, tie_word_embeddings=False)
    config = read_config(open_checkpoint(hf.write(tmp_path, model)))
    arrays, ids = hf.arrays(model), some_ids(40, VOCAB)

    def logits(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return Engine(Gemma3(config, Memory(arrays), "hf", ReferenceKernels(), CONTEXT)).logits(ids)

    theirs = hf.logits(model, ids)
    assert difference(logits(arrays), theirs) < 1e-4
    check_sees_noise(list(arrays), lambda name: logits({**arrays, name: with_noise(arrays[name])}), theirs)


def test_rows_are_bit_equal_whatever_the_grouping(tmp_path: Path) -> None:
    check_groupings(load(hf.write(tmp_path, tiny_gemma3())).engine.model)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_multimodal_checkpoint_is_the_same_model(prefix: str, tmp_path: Path) -> None:
    """Older and newer wrappers; what belongs to images stays unread."""
    theirs, ids = tiny_gemma3(tie_word_embeddings=False), some_ids(40, VOCAB)
    arrays = {name.replace("model.", prefix, 1): value for name, value in hf.arrays(theirs).items()}
    outside = prefix.removesuffix("language_model.") if prefix.startswith("model.") else ""
    arrays[f"{outside}vision_tower.vision_model.post_layernorm.weight"] = np.ones(8, np.float32)
    arrays[f"{outside}multi_modal_projector.mm_soft_emb_norm.weight"] = np.ones(8, np.float32)
    text = {**theirs.config.to_dict(), "tie_word_embeddings": True}
    config = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model"},
        "tie_word_embeddings": False,
    }
    ours = load(write_hf_folder(tmp_path, config, arrays))
    assert difference(ours.logits(ids), hf.logits(theirs, ids)) < 1e-4


@pytest.mark.parametrize("kind", MODELS)
def test_a_gguf_gives_the_logits_of_the_folder(kind: str, tmp_path: Path) -> None:
    theirs = tiny_gemma3(**{**MODELS[kind], "query_pre_attn_scalar": SHAPE["head_dim"]})
    cap = MODELS[kind].get("final_logit_softcapping")
    check_gguf(gguf(tmp_path, theirs, **({"gemma3.final_logit_softcapping": cap} if cap else {})), theirs)


def test_without_a_window_every_layer_of_a_gguf_sees_everything(tmp_path: Path) -> None:
    full = {"layer_types": [KINDS[False]] * 4, "query_pre_attn_scalar": SHAPE["head_dim"]}
    theirs = tiny_gemma3(**full)
    path = gguf(tmp_path, theirs, **{"gemma3.attention.sliding_window": 0})
    check_gguf(path, theirs)
    check_llama_cpp(path)


@pytest.mark.parametrize("period", [0, 1, 3])
def test_the_pattern_of_a_gguf_may_be_a_period(period: int, tmp_path: Path) -> None:
    kinds = [KINDS[period == 0 or (i + 1) % period != 0] for i in range(4)]
    theirs = tiny_gemma3(layer_types=kinds, query_pre_attn_scalar=SHAPE["head_dim"])
    path = gguf(tmp_path, theirs, **{PATTERN: period})
    check_gguf(path, theirs)
    if period != 1:  # there llama.cpp aborts, as no layer uses the window it made room for
        check_llama_cpp(path)


def test_every_sixth_layer_of_a_gguf_sees_everything_where_it_does_not_say(tmp_path: Path) -> None:
    kinds = [KINDS[i != 5] for i in range(7)]
    theirs = tiny_gemma3(num_hidden_layers=7, layer_types=kinds, query_pre_attn_scalar=SHAPE["head_dim"])
    path = write_dense_gguf(tmp_path / "model.gguf", theirs, {**vocabulary(VOCAB), **SCALING})
    check_gguf(path, theirs)
    check_llama_cpp(path)


def test_a_gguf_of_62_layers_scales_scores_by_hidden_over_heads(tmp_path: Path) -> None:
    """Gemma 3 27B: there query_pre_attn_scalar is not the head's width, and the file has no key for it."""
    theirs = tiny_gemma3(
        num_hidden_layers=62,
        layer_types=[KINDS[i % 6 != 5] for i in range(62)],
        hidden_size=32,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        query_pre_attn_scalar=16,
    )
    path = write_dense_gguf(tmp_path / "model.gguf", theirs, {**vocabulary(VOCAB), **SCALING})
    check_gguf(path, theirs, 17)
    check_llama_cpp(path, lengths=(17,))


def test_llama_cpp_agrees_but_for_its_rounding_of_gelu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks gelu up in a table of half-precision numbers; with the same rounding here the agreement is close."""
    theirs = tiny_gemma3(query_pre_attn_scalar=SHAPE["head_dim"], final_logit_softcapping=2.0)
    path = gguf(tmp_path, theirs, **{"gemma3.final_logit_softcapping": 2.0})
    check_llama_cpp(path)
    half = lambda x: x.astype(np.float16).astype(np.float32)
    monkeypatch.setitem(moe.ACTIVATIONS, "gelu_tanh", lambda x: half(moe.gelu_tanh(half(x))))
    check_llama_cpp(path, 1e-4)


def check_gguf(path: Path, theirs: Any, length: int = 130) -> None:
    ids = some_ids(length, VOCAB)
    assert difference(load(path).logits(ids), hf.logits(theirs, ids)) < 1e-4


def check_llama_cpp(path: Path, limit: float = 4e-3, lengths: tuple[int, ...] = (1, 17, 64, 130)) -> None:
    """Log-probabilities at the ends of prompts, in standard deviations of ours."""
    ids, oracle = some_ids(max(lengths), VOCAB), LlamaCpp(path)
    ours = log_softmax(load(path).logits(ids))
    for length in lengths:
        found = oracle.logprobs(ids[:length], VOCAB)
        assert np.abs(ours[length - 1] - found).max() / np.std(ours) < limit
