"""qwen3_5, dense and MoE: against transformers from HF folders and GGUF files, GGUF files against llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turbospark
from tests.parity.harness import (
    BACKENDS,
    check_groupings,
    check_sees_noise,
    difference,
    in_pieces,
    some_ids,
    with_noise,
)
from tests.parity.llama_cpp import LlamaCpp, log_softmax, vocabulary
from tests.tiny import hf, mtp
from tests.tiny.gguf_file import write_gguf
from tests.tiny.memory import Memory
from tests.tiny.qwen3_5 import SHARED, VOCAB, gguf_arrays, gguf_metadata, hf_model, in_memory, tiny_qwen
from tests.tiny.safetensors_file import write_hf_folder
from turbospark.config.model import Attention, GatedDelta, ModelConfig, MoE
from turbospark.kernels.reference import ReferenceKernels
from turbospark.models.qwen3_5 import Qwen35

LENGTHS = (1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 130)  # transformers works in chunks of 64
EQUAL_WIDTHS = {"linear_value_head_dim": 8}  # of key and value heads, as llama.cpp wants them
KINDS = pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])


def our_logits(path: Path, ids: list[int]) -> np.ndarray:
    return turbospark.load(path, backend="reference").logits(ids)


def write(path: Path, model: Any, extra: dict[str, np.ndarray] | None = None, **keys: Any) -> Path:
    """The model as a GGUF file that llama.cpp accepts."""
    return write_gguf(
        path, {**gguf_metadata(model.config), **vocabulary(VOCAB), **keys}, gguf_arrays(model) | (extra or {})
    )


@KINDS
@BACKENDS
def test_every_position_agrees_with_transformers(moe: bool, backend: dict[str, Any], tmp_path: Path) -> None:
    theirs, ids = hf_model(moe), some_ids(max(LENGTHS), VOCAB)
    ours = turbospark.load(hf.write(tmp_path, theirs), **backend)
    for length in LENGTHS:
        assert difference(ours.logits(ids[:length]), hf.logits(theirs, ids[:length])) < 2e-4


@KINDS
def test_noise_of_3_percent_on_any_tensor_is_seen(moe: bool) -> None:
    theirs, ids = hf_model(moe), some_ids(40, VOCAB)
    arrays = hf.arrays(theirs)
    noisy = lambda name: in_memory(theirs.config, {**arrays, name: with_noise(arrays[name])})
    check_sees_noise(list(arrays), lambda name: in_pieces(noisy(name), ids, []), hf.logits(theirs, ids))


def reread(config: ModelConfig, kind: type, **changes: Any) -> ModelConfig:
    """The config with fields of one kind of mixer or feed-forward changed."""
    change = lambda part: replace(part, **changes) if isinstance(part, kind) else part
    layers = tuple(replace(layer, mixer=change(layer.mixer), ffn=change(layer.ffn)) for layer in config.layers)
    return replace(config, layers=layers)


def turned(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The config with another rotation."""
    (mixer,) = {layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention)}
    return reread(config, Attention, rope=replace(mixer.rope, **changes))


MISREADINGS: dict[str, Any] = {
    "key heads tiled": lambda c: reread(c, GatedDelta, tiled=True),
    "norms without their one": lambda c: replace(c, norm_offset=False),
    "consecutive pairs": lambda c: turned(c, interleaved=True),
    "the whole head rotated": lambda c: turned(c, dim=16),
    "scores not scaled": lambda c: reread(c, Attention, scale=1.0),
    "weights not renormalised": lambda c: reread(c, MoE, renormalise=False),
    "one expert fewer": lambda c: reread(c, MoE, used=2),
}


@pytest.mark.parametrize("name", MISREADINGS)
def test_a_misreading_is_seen(name: str) -> None:
    theirs, ids = hf_model(True), some_ids(40, VOCAB)
    config = MISREADINGS[name](in_memory(theirs.config, hf.arrays(theirs)).config)
    model = Qwen35(config, Memory(hf.arrays(theirs)), "hf", ReferenceKernels(), config.context)
    assert difference(in_pieces(model, ids, []), hf.logits(theirs, ids)) > 0.02


def test_a_dense_trunk_gives_the_same_bits_whatever_the_grouping() -> None:
    check_groupings(tiny_qwen())


def test_a_trunk_with_experts_gives_the_same_bits_whatever_the_grouping() -> None:
    check_groupings(tiny_qwen(True, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2))


@KINDS
def test_a_gguf_gives_the_logits_of_the_folder(moe: bool, tmp_path: Path) -> None:
    model, ids = hf_model(moe), some_ids(130, VOCAB)
    folder = our_logits(hf.write(tmp_path / "hf", model), ids)
    assert difference(our_logits(write(tmp_path / "a.gguf", model), ids), folder) < 1e-4


@KINDS
def test_llama_cpp_agrees(moe: bool, tmp_path: Path) -> None:
    model, ids = hf_model(moe, **EQUAL_WIDTHS), some_ids(130, VOCAB)
    path = write(tmp_path / "a.gguf", model)
    ours, oracle = log_softmax(our_logits(path, ids)), LlamaCpp(path)
    for length in LENGTHS:
        found = oracle.logprobs(ids[:length], VOCAB)
        assert np.abs(ours[length - 1] - found).max() / np.std(ours) < 1e-4


def test_experts_with_gate_and_up_in_one_are_the_same_in_a_gguf(tmp_path: Path) -> None:
    model, ids = hf_model(True, **EQUAL_WIDTHS), some_ids(20, VOCAB)
    apart = gguf_arrays(model)
    joint = {name: value for name, value in apart.items() if "_up_exps" not in name and "_gate_exps" not in name}
    for name in [name for name in apart if "_gate_exps" in name]:
        up = apart[name.replace("_gate_exps", "_up_exps")]
        joint[name.replace("_gate_exps", "_gate_up_exps")] = np.concatenate([apart[name], up], axis=1)
    path = write_gguf(tmp_path / "joint.gguf", {**gguf_metadata(model.config), **vocabulary(VOCAB)}, joint)
    ours = our_logits(path, ids)
    np.testing.assert_array_equal(ours, our_logits(write(tmp_path / "apart.gguf", model), ids))
    assert np.abs(log_softmax(ours)[-1] - LlamaCpp(path).logprobs(ids, VOCAB)).max() / np.std(ours) < 1e-4


def test_a_gguf_may_list_its_recurrent_layers(tmp_path: Path) -> None:
    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    model, ids = hf_model(False, layer_types=kinds, **EQUAL_WIDTHS), some_ids(20, VOCAB)
    listed = {"qwen35.attention.recurrent_layers": [kind == "linear_attention" for kind in kinds]}
    path = write(tmp_path / "a.gguf", model, **listed)
    ours = our_logits(path, ids)
    assert difference(ours, hf.logits(model, ids)) < 2e-4
    assert np.abs(log_softmax(ours)[-1] - LlamaCpp(path).logprobs(ids, VOCAB)).max() / np.std(ours) < 1e-4


def test_the_trunk_of_a_gguf_ends_before_its_mtp_layer(tmp_path: Path) -> None:
    model, ids = hf_model(False, **EQUAL_WIDTHS), some_ids(20, VOCAB)
    head = mtp.qwen_mtp_gguf(mtp.qwen_mtp(model.config), 4)
    keys = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    path = write(tmp_path / "mtp.gguf", model, head, **keys)
    ours = our_logits(path, ids)
    np.testing.assert_array_equal(ours, our_logits(write(tmp_path / "plain.gguf", model), ids))
    assert np.abs(log_softmax(ours)[-1] - LlamaCpp(path).logprobs(ids, VOCAB)).max() / np.std(ours) < 1e-4


@KINDS
def test_the_text_of_a_multimodal_checkpoint_is_the_same_model(moe: bool, tmp_path: Path) -> None:
    """Wrapped names and config; what belongs to images and to the MTP head stays unread."""
    model, ids = hf_model(moe), some_ids(20, VOCAB)
    plain = hf.arrays(model)
    wrapped = {name.replace("model.", "model.language_model.", 1): value for name, value in plain.items()}
    wrapped |= {"model.visual.merger.norm.weight": np.ones(8, np.float32), "mtp.norm.weight": np.ones(48, np.float32)}
    config = {
        "model_type": "qwen3_5_moe" if moe else "qwen3_5",
        "text_config": {**model.config.to_dict(), "mtp_num_hidden_layers": 1},
        "vision_config": {"depth": 2},
        "tie_word_embeddings": False,
    }
    folder = write_hf_folder(tmp_path / "wrapped", config, wrapped)
    np.testing.assert_array_equal(our_logits(folder, ids), our_logits(hf.write(tmp_path / "plain", model), ids))


@KINDS
def test_a_folder_that_transformers_saved_is_the_same_model(moe: bool, tmp_path: Path) -> None:
    """It saves the experts of a MoE trunk one by one."""
    model, ids = hf_model(moe), some_ids(20, VOCAB)
    model.save_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(
        our_logits(tmp_path / "saved", ids), our_logits(hf.write(tmp_path / "plain", model), ids)
    )


def test_a_stretched_context_agrees_with_transformers(tmp_path: Path) -> None:
    """YaRN over the rotated part of a head."""
    stretch = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40}
    model = hf_model(False, rope_parameters={**SHARED["rope_parameters"], **stretch})
    ids = some_ids(130, VOCAB)
    theirs = hf.logits(model, ids)
    assert difference(our_logits(hf.write(tmp_path, model), ids), theirs) < 2e-4
    assert difference(hf.logits(hf_model(False), ids), theirs) > 0.02


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    model, ids = hf_model(False, tie_word_embeddings=True, **EQUAL_WIDTHS), some_ids(20, VOCAB)
    theirs = hf.logits(model, ids)
    assert difference(our_logits(hf.write(tmp_path / "hf", model), ids), theirs) < 2e-4
    assert difference(our_logits(write(tmp_path / "a.gguf", model), ids), theirs) < 2e-4
