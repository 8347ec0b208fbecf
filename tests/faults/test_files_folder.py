"""Model folders that are wrong: faults 34 and 35, and JSON that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny.gguf_file import write_gguf
from tests.tiny.safetensors_file import write_hf_folder, write_safetensors
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint

WEIGHTS = {name: np.full((2, 4), value, np.float32) for value, name in enumerate("abcdef")}
INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]  # hold a d, b e, c f


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_hf_folder(tmp_path / "model", {"model_type": "llama"}, WEIGHTS, shards=3)


def refusal(path: Path) -> TurbosparkError:
    with pytest.raises(TurbosparkError) as caught:
        open_checkpoint(path)
    assert str(path) in caught.value.message
    return caught.value


def change_index(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"] |= changes
    (folder / INDEX).write_text(json.dumps(content))


# 34: what is missing


def test_missing_shards_are_listed(folder):
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[2]).unlink()
    error = refusal(folder)
    assert error.code == "shards_missing"
    assert f"lacks 2 of the 3 shards in its index: {SHARDS[0]}, {SHARDS[2]}" in error.message


def test_a_link_to_nowhere_is_a_missing_shard(folder):
    (folder / SHARDS[1]).unlink()
    (folder / SHARDS[1]).symlink_to(folder / "blob")
    assert refusal(folder).code == "shards_missing"


def test_missing_tensors_are_listed_with_their_shard(folder):
    change_index(folder, g=SHARDS[0], h=SHARDS[2])
    error = refusal(folder)
    assert error.code == "tensors_missing"
    assert f"lacks 2 of the 8 tensors in its index: g ({SHARDS[0]}), h ({SHARDS[2]})" in error.message


def test_a_long_list_of_missing_names_is_cut(folder):
    change_index(folder, **{f"layer.{index}": SHARDS[0] for index in range(1000)})
    message = refusal(folder).message
    assert "lacks 1000 of the 1006" in message
    assert message.endswith("and 960 more")


def test_an_empty_folder_is_called_empty(tmp_path):
    assert refusal(tmp_path).code == "folder_empty"


def test_a_path_that_does_not_exist_is_named(tmp_path):
    assert refusal(tmp_path / "none").code == "file_missing"


def test_a_folder_without_config_says_what_it_has(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", WEIGHTS)
    error = refusal(tmp_path)
    assert (error.code, "model.safetensors" in error.hint) == ("config_missing", True)


def test_a_folder_of_gguf_files_points_to_them(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", {}, {"a": WEIGHTS["a"]})
    error = refusal(tmp_path)
    assert (error.code, "tiny.gguf" in error.hint) == ("config_missing", True)
    (tmp_path / "config.json").write_text("{}")
    error = refusal(tmp_path)
    assert (error.code, "tiny.gguf" in error.hint) == ("weights_missing", True)


def test_a_folder_without_weights_names_what_it_needs(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    error = refusal(tmp_path)
    assert (error.code, "model.safetensors" in error.message) == ("weights_missing", True)


def test_shards_without_an_index_are_refused(folder):
    (folder / INDEX).unlink()
    error = refusal(folder)
    assert (error.code, ", ".join(SHARDS) in error.message) == ("weights_missing", True)
    assert INDEX in error.hint


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickled_weights_are_refused_by_name(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\2}q\0.")
    error = refusal(tmp_path)
    assert error.code == "weights_unsupported"
    assert name in error.message
    assert "model.safetensors" in error.hint


@pytest.mark.parametrize("lost", [1, 32, 64, 200])
def test_a_cut_shard_names_its_file(folder, lost):
    path = folder / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-lost])
    error = refusal(folder)
    assert (error.code, str(path) in error.message) == ("file_cut", True)


# 35: what is there twice or elsewhere


def test_a_tensor_in_two_shards_is_refused(folder):
    write_safetensors(folder / SHARDS[1], {name: WEIGHTS[name] for name in "bea"})
    error = refusal(folder)
    assert error.code == "bad_index"
    assert SHARDS[1] in error.message
    assert "in other shards: a" in error.message


def test_a_tensor_in_another_shard_than_the_index_says_is_missing(folder):
    change_index(folder, a=SHARDS[1])
    error = refusal(folder)
    assert (error.code, f"a ({SHARDS[1]})" in error.message) == ("tensors_missing", True)


def test_shards_of_an_older_version_are_refused(folder):
    write_safetensors(folder / SHARDS[1], {"b": WEIGHTS["b"], "old": WEIGHTS["e"]})
    error = refusal(folder)
    assert (error.code, f"e ({SHARDS[1]})" in error.message) == ("tensors_missing", True)


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "nul\0.safetensors",
        "model.bin",
        "config.json",
        ".safetensors",
        "",
        "..",
        "x" * 5000 + ".safetensors",
        5,
        None,
        ["a.safetensors"],
    ],
)
def test_a_shard_that_is_no_file_of_the_folder_is_refused(folder, shard):
    write_safetensors(folder.parent / "model.safetensors", {"a": WEIGHTS["a"]})
    change_index(folder, a=shard)
    error = refusal(folder)
    assert (error.code, "tensor 'a'" in error.message) == ("bad_index", True)
    assert len(error.message) < 1000


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": null}'])
def test_an_index_of_nothing_is_refused(folder, content):
    (folder / INDEX).write_text(content)
    assert refusal(folder).code == "bad_index"


def test_an_index_with_two_shards_for_a_tensor_is_refused(folder):
    text = (folder / INDEX).read_text().replace('"weight_map": {', f'"weight_map": {{"a": "{SHARDS[2]}", ')
    (folder / INDEX).write_text(text)
    error = refusal(folder)
    assert (error.code, "the key 'a' twice" in error.message) == ("bad_json", True)


# JSON that is not


@pytest.mark.parametrize("name", ["config.json", INDEX, "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1,\n "b": }', "is not JSON at line 2, column 7"),
        (b'{"a": 1', "is not JSON at line 1"),
        (b'{"a": 1} x', "is not JSON at line 1, column 10"),
        (b'{"a": "\xff"}', "is not UTF-8 at byte 7"),
        (b"[1]", "must be a JSON object, is list"),
        (b"null", "must be a JSON object"),
        (b'{"a": 1, "a": 2}', "has the key 'a' twice"),
        (b'{"a": {"b": 1, "b": 2}}', "has the key 'b' twice"),
        (b'{"a": ' + b"[" * 100_000, "cannot be read as JSON"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "cannot be read as JSON"),
        (b"", "is empty"),
    ],
)
def test_json_with_errors_is_refused_by_name_and_position(folder, name, content, words):
    (folder / name).write_bytes(content)
    error = refusal(folder)
    assert str(folder / name) in error.message
    assert words in error.message


def test_a_key_twice_with_one_value_is_one_key(folder):
    (folder / "config.json").write_text('{"use_cache": true, "use_cache": true}')
    assert open_checkpoint(folder).metadata == {"use_cache": True}


def test_a_folder_in_place_of_a_file_is_refused(folder):
    for name in ("generation_config.json", SHARDS[0]):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()
        error = refusal(folder)
        assert (error.code, str(folder / name) in error.message) == ("not_a_file", True)
        (folder / name).rmdir()
