"""A file whose tensors are each valid and do not fit its declarations is refused with both numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turbospark
from tests.parity.llama_cpp import vocabulary
from tests.tiny import hf
from tests.tiny.dense import gguf_arrays, gguf_metadata
from tests.tiny.gemma3 import tiny_gemma3
from tests.tiny.gguf_file import write_gguf
from tests.tiny.llama import VOCAB, tiny_llama
from tests.tiny.safetensors_file import write_hf_folder
from turbospark.errors import TurbosparkError

MODELS = {"llama": tiny_llama, "gemma3": tiny_gemma3}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def refusal(path: Path) -> TurbosparkError:
    with pytest.raises(TurbosparkError) as caught:
        turbospark.load(path, backend="reference")
    return caught.value


@pytest.mark.parametrize(
    ("key", "value", "shapes"),
    [
        ("embedding_length", 40, ["[96, 48]", "[96, 40]"]),
        ("vocab_size", 90, ["[96, 48]", "[90, 48]"]),
        ("feed_forward_length", 60, ["[64, 48]", "[60, 48]"]),
        ("attention.head_count", 6, ["[64, 48]", "[96, 48]"]),
        ("attention.head_count_kv", 4, ["[32, 48]", "[64, 48]"]),
    ],
)
def test_a_gguf_names_the_tensor_and_both_shapes(
    model: Any, key: str, value: int, shapes: list[str], tmp_path: Path
) -> None:
    metadata = gguf_metadata(model.config)
    declared = {**metadata, f"{metadata['general.architecture']}.{key}": value, **vocabulary(VOCAB)}
    error = refusal(write_gguf(tmp_path / "m.gguf", declared, gguf_arrays(model)))
    assert error.code == "shape_mismatch"
    assert all(shape in error.message for shape in ["weight", *shapes]), error.message


@pytest.mark.parametrize("count", [4097, 2**31 - 1])
def test_billions_of_layers_are_refused_at_once(model: Any, count: int, tmp_path: Path) -> None:
    metadata = gguf_metadata(model.config)
    key = f"{metadata['general.architecture']}.block_count"
    declared = {**metadata, key: count, **vocabulary(VOCAB)}
    errors = [
        refusal(write_gguf(tmp_path / "m.gguf", declared, gguf_arrays(model))),
        refusal(hf.write(tmp_path / "folder", model, num_hidden_layers=count)),
    ]
    for name, error in zip((key, "num_hidden_layers"), errors, strict=True):
        assert error.code == "bad_config"
        assert f"{name} is {count}; it must be at most 4096" in error.message


@pytest.mark.parametrize(
    ("key", "value", "shapes"),
    [
        ("hidden_size", 40, ["[96, 48]", "[96, 40]"]),
        ("vocab_size", 90, ["[96, 48]", "[90, 48]"]),
        ("intermediate_size", 60, ["[64, 48]", "[60, 48]"]),
        ("head_dim", 24, ["[64, 48]", "[96, 48]"]),
    ],
)
def test_a_folder_names_the_tensor_and_both_shapes(
    model: Any, key: str, value: int, shapes: list[str], tmp_path: Path
) -> None:
    error = refusal(hf.write(tmp_path, model, **{key: value}))
    assert error.code == "shape_mismatch"
    assert all(shape in error.message for shape in ["weight", *shapes]), error.message


def test_a_layer_too_many_is_missing_and_one_too_few_is_unused(model: Any, tmp_path: Path) -> None:
    layers = model.config.num_hidden_layers
    more = {"num_hidden_layers": layers + 1, "layer_types": None}
    error = refusal(hf.write(tmp_path / "more", model, **more))
    assert error.code == "missing_tensor"
    assert f"layers.{layers}.input_layernorm.weight" in error.message
    error = refusal(hf.write(tmp_path / "fewer", model, **{**more, "num_hidden_layers": layers - 1}))
    assert error.code == "unused_tensor"
    assert f"layers.{layers - 1}." in error.message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.layers.1.self_attn.q_proj.bias", "q_proj.bias"),
        ("model.layers.1.mlp.up_proj.bias", "up_proj.bias"),
        ("model.layers.0.mlp.experts.0.up_proj.weight", "experts.0"),
    ],
)
def test_a_tensor_the_declarations_do_not_know_is_refused(model: Any, name: str, said: str, tmp_path: Path) -> None:
    arrays = {**hf.arrays(model), name: np.ones(64, np.float32)}
    error = refusal(write_hf_folder(tmp_path, model.config.to_dict(), arrays))
    assert error.code == "unused_tensor"
    assert said in error.message


def test_a_declared_bias_that_is_not_there_is_missing(model: Any, tmp_path: Path) -> None:
    error = refusal(hf.write(tmp_path, model, attention_bias=True))
    assert error.code == "missing_tensor"
    assert "q_proj.bias" in error.message


def test_an_untied_head_that_is_not_there_is_missing(model: Any, tmp_path: Path) -> None:
    arrays = {name: value for name, value in hf.arrays(model).items() if name != "lm_head.weight"}
    config = {**model.config.to_dict(), "tie_word_embeddings": False}
    error = refusal(write_hf_folder(tmp_path, config, arrays))
    assert error.code == "missing_tensor"
    assert "lm_head.weight" in error.message


def test_what_old_files_store_of_the_rotation_stays_unread(tmp_path: Path) -> None:
    model = tiny_llama()
    old = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32) for i in range(3)}
    folder = write_hf_folder(tmp_path, model.config.to_dict(), {**hf.arrays(model), **old})
    assert turbospark.load(folder, backend="reference").logits([1, 2]).shape == (2, VOCAB)


def test_a_head_beside_a_tied_embedding_is_the_one_used(tmp_path: Path) -> None:
    """As in transformers: the file knows better than its configuration."""
    model = tiny_llama(tie_word_embeddings=False)
    plain = turbospark.load(hf.write(tmp_path / "plain", model), backend="reference").logits([1, 2, 3])
    tied = turbospark.load(hf.write(tmp_path / "tied", model, tie_word_embeddings=True), backend="reference")
    np.testing.assert_array_equal(tied.logits([1, 2, 3]), plain)
