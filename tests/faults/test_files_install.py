"""Installs that are wrong: faults 34 to 36, 43 and 44 where they meet the `.gturbo` format."""

from __future__ import annotations

import json
import shutil
import struct

import numpy as np
import pytest

import turbospark
from tests.tiny.install_file import change, layer_bytes, weights_bytes, write_install
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.store.repack import import_model

VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)
TENSORS = {"a": ("F32", VALUES), "b": ("F16", VALUES[0]), "c": ("Q8_0", np.ones((2, 32)))}
EXPERTS = [dict.fromkeys(("gate", "up", "down"), ("F32", VALUES + e)) for e in range(3)]
SIZE = len(weights_bytes(TENSORS))


@pytest.fixture
def install(tmp_path):
    return write_install(tmp_path / "tiny.gturbo", {}, TENSORS, [EXPERTS, EXPERTS])


def refusal(path, *words):
    with pytest.raises(TurbosparkError) as caught:
        open_checkpoint(path)
    message = caught.value.message
    assert all(word in message for word in (str(path), *words)), message
    return caught.value.code


def test_a_sound_one_opens_with_all_it_holds(install):
    checkpoint = open_checkpoint(install)
    assert {name: (i.format, i.shape) for name, i in checkpoint.tensors.items() if len(name) == 1} == {
        "a": ("F32", (4, 6)),
        "b": ("F16", (6,)),
        "c": ("Q8_0", (2, 32)),
    }
    np.testing.assert_array_equal(checkpoint.open("a").data.view(np.float32), VALUES)
    name = "language_model.model.layers.1.mlp.experts.2.up_proj.weight"
    np.testing.assert_array_equal(checkpoint.open(name).data.view(np.float32), VALUES + 2)
    assert len(checkpoint.tensors) == 3 + 2 * 3 * 3


# 34: what is missing


def test_missing_files_are_listed_before_anything_is_opened(install):
    (install / "packed_experts" / "layer_01.bin").unlink()
    (install / "model_weights.bin").unlink()
    code = refusal(install, "2 of its 4 files", "model_weights.bin is missing", "layer_01.bin is missing")
    assert code == "install_damaged"


def test_an_install_without_a_manifest_is_called_incomplete(install):
    (install / "manifest.json").unlink()
    assert refusal(install) == "install_incomplete"
    shutil.rmtree(install)
    install.mkdir()
    assert refusal(install) == "install_incomplete"


def test_a_manifest_that_lists_no_weights_is_refused(install):
    content = json.loads((install / "manifest.json").read_text())
    del content["files"]["model_weights.bin"]
    (install / "manifest.json").write_text(json.dumps(content))
    assert refusal(install, "model_weights.bin") == "bad_manifest"


# 35: what is stray or stale


def test_a_layer_that_only_the_layout_knows_is_refused(install):
    content = json.loads((install / "manifest.json").read_text())
    del content["files"]["packed_experts/layer_01.bin"]
    (install / "manifest.json").write_text(json.dumps(content))
    assert refusal(install, "packed_experts/layer_01.bin") == "bad_manifest"


def test_a_file_that_neither_knows_is_not_opened(install):
    (install / "packed_experts" / "layer_02.bin").write_bytes(b"stale")
    assert len(open_checkpoint(install).maps) == 3


def test_a_tensor_that_comes_twice_is_refused(install):
    twice = weights_bytes({"a": ("F32", VALUES), "b": ("F32", VALUES)}, name_length=1)
    at = twice.index(b"ab", 24 + 144)
    change(install, "model_weights.bin", twice[: at + 1] + b"a" + twice[at + 2 :])
    assert refusal(install, "'a' is there twice") == "bad_install"


def test_a_file_of_two_layers_is_refused(install):
    path = install / "packed_experts" / "layout.json"
    layout = json.loads(path.read_text())
    layout["layers"][1]["file"] = "layer_00.bin"
    change(install, "packed_experts/layout.json", json.dumps(layout).encode())
    assert refusal(install, "layer_00.bin is the file of two layers") == "bad_install"


# 36: a file that is cut, with a manifest that says what it says or one made to fit


@pytest.mark.parametrize("name", ["model_weights.bin", "packed_experts/layer_01.bin", "packed_experts/layout.json"])
def test_a_file_cut_at_any_byte_is_named_with_both_sizes(install, name):
    data = (install / name).read_bytes()
    for kept in sorted({0, 1, 23, 24, 100, len(data) // 2, len(data) - 1}):
        (install / name).write_bytes(data[:kept])
        short = name.rpartition("/")[2]
        assert refusal(install, f"{short} has {kept} bytes, must have {len(data)}") == "install_damaged"


def test_weights_cut_at_any_byte_are_refused_even_when_the_manifest_fits(install):
    data = (install / "model_weights.bin").read_bytes()
    for kept in [1, 23, 24, 95, 96, 1000, 4095, 4096, 4097, *range(4100, len(data), 7)]:
        change(install, "model_weights.bin", data[:kept])
        assert refusal(install, "model_weights.bin") in ("file_cut", "bad_install")


def test_a_layer_cut_at_any_byte_is_refused_even_when_the_manifest_fits(install):
    data, stride, _ = layer_bytes(EXPERTS)
    for kept in [1, 50, stride, stride + 200, 3 * stride - 1]:
        change(install, "packed_experts/layer_00.bin", data[:kept])
        assert refusal(install, "layer_00.bin", "expert") == "file_cut"


def test_a_file_cut_after_opening_is_refused_by_name(install):
    checkpoint = open_checkpoint(install)
    path = install / "model_weights.bin"
    with path.open("r+b") as file:
        file.truncate(SIZE - 8)
    with pytest.raises(TurbosparkError) as caught:
        checkpoint.open("a")
    assert (caught.value.code, str(path) in caught.value.message) == ("file_changed", True)


# headers, entry by entry


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"header": {2: 4}}, []),
        ({"header": {2: 1 << 62}}, ["entries"]),
        ({"header": {0: 100}}, ["100"]),
        ({"header": {0: 1 << 62}}, []),
        ({"header": {1: 1}}, ["end at byte 4097"]),
        ({"header": {1: 1 << 40}}, ["needs 1099511627776 bytes"]),
        ({"name_offset": 3}, ["the name of entry 0", "3"]),
        ({"name_offset": 4095, "name_length": 2}, ["the name of entry 0"]),
        ({"name_length": 65535}, ["the name of entry 0"]),
        ({"dtype": 0}, ["type 0"]),
        ({"dtype": 99}, ["type 99"]),
        ({"dtype": 2}, ["'a'", "needs 48 bytes, has 96"]),
        ({"dtype": 6}, ["'a'", "whole blocks"]),
        ({"dtype": 4}, ["'a'", "INT4"]),
        ({"size": 95}, ["'a'", "needs 96 bytes, has 95"]),
        ({"size": 1 << 63}, ["'a'"]),
        ({"offset": 0}, ["the data of tensor 'a'", "bytes 0 to 96"]),
        ({"offset": 4095}, ["the data of tensor 'a'"]),
        ({"offset": (1 << 64) - 1}, ["the data of tensor 'a'"]),
        ({"shape": (0, 0, 0, 0)}, ["'a'", "no values"]),
        ({"shape": (4, 0, 6, 0)}, ["'a'", "no values"]),
        ({"shape": (1 << 31, 1 << 31, 1 << 31, 1 << 31)}, ["'a'", "needs"]),
        ({"scale": (0, 8)}, ["the scales of tensor 'a'"]),
        ({"scale": (4096, 8)}, ["'a'", "needs 0 bytes of scales, has 8"]),
        ({"bias": (1 << 60, 8)}, ["the biases of tensor 'a'"]),
    ],
)
def test_a_wrong_number_in_the_index_is_refused_by_name(install, fields, words):
    change(install, "model_weights.bin", weights_bytes(TENSORS, **fields))
    assert refusal(install, "model_weights.bin", *words) in ("bad_install", "file_cut")


def test_names_that_are_no_text_are_refused(install):
    data = weights_bytes(TENSORS).replace(b"abc", b"\xffbc", 1)
    change(install, "model_weights.bin", data)
    assert refusal(install, "not UTF-8") == "bad_install"


def spoiled_layout(install, spoil):
    path = install / "packed_experts" / "layout.json"
    layout = json.loads(path.read_text())
    spoil(layout, layout["layers"][1], layout["layers"][1]["experts"][2], layout["layers"][1]["experts"][2]["tensors"])
    change(install, "packed_experts/layout.json", json.dumps(layout).encode())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda whole, layer, e, t: whole.pop("layers"), ["layers"]),
        (lambda whole, layer, e, t: whole.update(layers=[1]), ["layers"]),
        (lambda whole, layer, e, t: layer.update(file="../layer_00.bin"), ["layer_00.bin"]),
        (lambda whole, layer, e, t: layer.update(file=".."), ["'..'"]),
        (lambda whole, layer, e, t: layer.update(file=7), ["7"]),
        (lambda whole, layer, e, t: layer.pop("experts"), ["experts"]),
        (lambda whole, layer, e, t: layer["experts"].reverse(), ["expert 2 stands in the place of 0"]),
        (lambda whole, layer, e, t: e.pop("offset"), ["expert 2", "offset"]),
        (lambda whole, layer, e, t: e.update(offset=-1), ["expert 2", "-1"]),
        (lambda whole, layer, e, t: e.update(offset=1 << 40), ["expert 2"]),
        (lambda whole, layer, e, t: e.update(size=1e9), ["expert 2", "size"]),
        (lambda whole, layer, e, t: t.pop("up"), ["expert 2", "lacks up"]),
        (lambda whole, layer, e, t: t.update(side=t["up"]), ["expert 2", "'side'"]),
        (lambda whole, layer, e, t: t["up"].update(offset=4090), ["expert 2", "up", "4186 of 4096"]),
        (lambda whole, layer, e, t: t["up"].update(size=95), ["expert 2: up", "needs 96 bytes, has 95"]),
        (lambda whole, layer, e, t: t["up"].update(shape=[4]), ["expert 2: up", "[4]"]),
        (lambda whole, layer, e, t: t["up"].update(shape=[4, True]), ["expert 2: up"]),
        (lambda whole, layer, e, t: t["up"].update(dtype="q9"), ["expert 2: up", "'q9'"]),
        (lambda whole, layer, e, t: t["up"].pop("dtype"), ["expert 2: up", "None"]),
        (lambda whole, layer, e, t: t.update(up_scales={"offset": 0, "size": 4, "dtype": "BF16"}), ["expert 2: up"]),
        (
            lambda whole, layer, e, t: t.update(up_scales={"offset": 0, "size": 4, "dtype": "f16"}),
            ["up_scales", "'f16'"],
        ),
    ],
)
def test_a_wrong_entry_of_the_layout_is_refused_by_name(install, spoil, words):
    spoiled_layout(install, spoil)
    assert refusal(install, *words) in ("bad_install", "file_cut")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"magic": "GTURBP"}, "bad_manifest"),
        ({"versionMajor": 2}, "unsupported_install"),
        ({"versionMajor": "1"}, "unsupported_install"),
        ({"arch": None}, "bad_manifest"),
        ({"arch": {"numDenseLeadingLayers": -1}}, "bad_manifest"),
        ({"files": []}, "bad_manifest"),
        ({"files": {"model_weights.bin": 5}}, "bad_manifest"),
        ({"files": {"model_weights.bin": {"size": -1, "sha256": "0" * 64}}}, "bad_manifest"),
        ({"files": {"model_weights.bin": {"size": 1, "sha256": "x"}}}, "bad_manifest"),
        ({"files": {"../../etc/passwd": {"size": 1, "sha256": "0" * 64}}}, "bad_manifest"),
        ({"files": {"/etc/passwd": {"size": 1, "sha256": "0" * 64}}}, "bad_manifest"),
        ({"files": {"a\ud800": {"size": 0, "sha256": "0" * 64}}}, "bad_manifest"),
        ({"source": {"kind": "zip"}}, "bad_manifest"),
        ({"source": {"kind": "gguf"}}, "bad_manifest"),
        ({"source": {"kind": "hf", "experts": "{layer}"}}, "bad_manifest"),
        ({"drafter": {"kind": "hf", "prefix": ""}}, "bad_manifest"),
        ({"drafter": {"kind": "hf", "prefix": "dflash."}}, "bad_install"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path, fields, code):
    path = write_install(tmp_path / "tiny.gturbo", {}, TENSORS, [EXPERTS])
    content = {**json.loads((path / "manifest.json").read_text()), **fields}
    (path / "manifest.json").write_text(json.dumps(content))
    assert refusal(path) == code


def test_parts_that_contradict_each_other_are_refused_with_both_numbers(tmp_path, monkeypatch):
    """44: a sound file of another shape than the configuration asks for."""
    from tests.store.sources import GGUFS

    monkeypatch.setenv("TURBOSPARK_HOME", str(tmp_path / "home"))
    install = import_model(GGUFS["dense"](tmp_path), "mine").path
    data = bytearray((install / "source.gguf").read_bytes())
    at = data.index(b"llama.feed_forward_length") + len(b"llama.feed_forward_length") + 4
    assert struct.unpack_from("<I", data, at) == (64,)
    struct.pack_into("<I", data, at, 80)
    change(install, "source.gguf", bytes(data))
    with pytest.raises(TurbosparkError) as caught:
        turbospark.load(install)
    assert caught.value.code == "shape_mismatch"
    assert "64" in caught.value.message
    assert "80" in caught.value.message
