"""Safetensors files and Hugging Face folders that are right."""

from __future__ import annotations

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tests.tiny.safetensors_file import DTYPES, entries, write_hf_folder, write_safetensors
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.formats.safetensors import read_safetensors
from turbospark.formats.shards import read_folder

RNG = np.random.default_rng(2)
WEIGHTS = {
    "a.weight": RNG.standard_normal((4, 8)).astype(np.float32),
    "b.weight": RNG.standard_normal((2, 3, 4)).astype(ml_dtypes.bfloat16),
    "b.bias": RNG.standard_normal(5).astype(np.float16),
    "scale": np.array(2.5, np.float32),
    "none": np.zeros((0, 4), np.float32),
}


def test_a_file_of_the_package_reads_as_it_was_written(tmp_path):
    arrays = {name: array for name, array in WEIGHTS.items() if array.dtype != ml_dtypes.bfloat16}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors", metadata={"format": "np"})
    checkpoint = read_safetensors(tmp_path / "a.safetensors")
    assert checkpoint.metadata == {"format": "np"}
    assert set(checkpoint.tensors) == set(arrays)
    for name, array in arrays.items():
        opened = checkpoint.open(name)
        assert (opened.format, opened.shape) == (DTYPES[array.dtype], array.shape or (1,))
        assert opened.data.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_each_dtype_opens_as_its_bytes(tmp_path, dtype):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    checkpoint = read_safetensors(write_safetensors(tmp_path / "a.safetensors", {"first": array[0], "w": array}))
    opened = checkpoint.open("w")
    assert (opened.format, opened.shape) == (DTYPES[dtype], (2, 3))
    assert opened.data.shape == (2, 3 * dtype.itemsize)
    assert opened.data.tobytes() == array.tobytes()


def test_tensors_without_rows_or_dimensions_open(tmp_path):
    checkpoint = read_safetensors(write_safetensors(tmp_path / "a.safetensors", WEIGHTS))
    assert checkpoint.open("scale").shape == (1,)
    assert checkpoint.open("none").data.shape[0] == 0
    assert checkpoint.open("b.weight").data.shape == (2, 3, 8)


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F8_E4M3FNUZ", "C64"])
def test_a_dtype_that_nothing_decodes_is_refused_when_it_is_used(tmp_path, dtype):
    bits = {"F4": 4, "F6_E2M3": 6, "F8_E4M3FNUZ": 8, "C64": 64}[dtype]
    header = {"odd": {"dtype": dtype, "shape": [4], "data_offsets": [0, bits // 2]}}
    checkpoint = read_safetensors(write_safetensors(tmp_path / "a.safetensors", header=header, data=bytes(bits // 2)))
    assert checkpoint.tensors["odd"].nbytes == bits // 2
    with pytest.raises(TurbosparkError, match=f"'odd' of .* has format {dtype}, which is not supported") as caught:
        checkpoint.open("odd")
    assert caught.value.code == "unsupported_format"


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_folder_opens_with_its_config_and_all_tensors(tmp_path, shards):
    folder = write_hf_folder(tmp_path / "model", {"model_type": "llama"}, WEIGHTS, shards)
    for checkpoint in (read_folder(folder), open_checkpoint(str(folder))):
        assert (checkpoint.kind, checkpoint.path) == ("hf", folder)
        assert checkpoint.metadata == {"model_type": "llama"}
        assert len(checkpoint.files) == shards
        assert set(checkpoint.tensors) == set(WEIGHTS)
        for name, array in WEIGHTS.items():
            assert checkpoint.open(name).data.tobytes() == array.tobytes()


def test_companion_configs_are_read_where_they_are(tmp_path):
    plain = read_folder(write_hf_folder(tmp_path / "plain", {}, WEIGHTS))
    assert (plain.generation_config, plain.tokenizer_config) == (None, None)
    full = write_hf_folder(
        tmp_path / "full", {}, WEIGHTS, generation_config={"top_k": 3}, tokenizer_config={"bos_token": "<s>"}
    )
    checkpoint = read_folder(full)
    assert (checkpoint.generation_config, checkpoint.tokenizer_config) == ({"top_k": 3}, {"bos_token": "<s>"})


def test_numbers_python_writes_in_a_config_are_read(tmp_path):
    folder = write_hf_folder(tmp_path / "model", {"limits": [0.0, float("inf")]}, WEIGHTS)
    assert "Infinity" in (folder / "config.json").read_text()
    assert read_folder(folder).metadata == {"limits": [0.0, float("inf")]}


def test_the_index_decides_over_stray_files(tmp_path):
    folder = write_hf_folder(tmp_path / "model", {}, WEIGHTS, shards=2)
    stale = {name: array + array.dtype.type(1) for name, array in WEIGHTS.items()}
    write_safetensors(folder / "model.safetensors", stale)
    write_safetensors(folder / "model-00003-of-00003.safetensors", stale)
    (folder / "model-00001-of-00003.safetensors").write_bytes(b"no safetensors at all")
    checkpoint = read_folder(folder)
    assert [file.name for file in checkpoint.files] == [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for name, array in WEIGHTS.items():
        assert checkpoint.open(name).data.tobytes() == array.tobytes()


def test_a_tensor_the_index_does_not_name_is_not_listed(tmp_path):
    folder = write_hf_folder(tmp_path / "model", {}, WEIGHTS, shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["scale"]
    index.write_text(json.dumps(content))
    assert set(read_folder(folder).tensors) == set(WEIGHTS) - {"scale"}


def test_shards_may_be_links_as_in_a_download_cache(tmp_path):
    folder = write_hf_folder(tmp_path / "model", {}, WEIGHTS, shards=2)
    for number, shard in enumerate(sorted(folder.glob("*.safetensors"))):
        shutil.move(shard, tmp_path / f"blob{number}")
        shard.symlink_to(tmp_path / f"blob{number}")
    assert set(read_folder(folder).tensors) == set(WEIGHTS)


def test_the_header_may_list_tensors_in_any_order(tmp_path):
    header = dict(reversed(entries(WEIGHTS).items()))
    data = b"".join(array.tobytes() for array in WEIGHTS.values())
    checkpoint = read_safetensors(write_safetensors(tmp_path / "a.safetensors", header=header, data=data))
    for name, array in WEIGHTS.items():
        assert checkpoint.open(name).data.tobytes() == array.tobytes()
