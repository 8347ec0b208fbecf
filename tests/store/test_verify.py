"""`verify` finds every changed byte, and every part that contradicts another."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests.store.sources import GGUFS
from tests.store.test_round_trip import contents
from tests.tiny.install_file import change
from turbospark.cli.main import main
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.store.repack import import_model
from turbospark.store.verify import verify
from turbospark.store.writer import render


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURBOSPARK_HOME", str(folder))
        return import_model(GGUFS["mixture"](folder), "sound").path


@pytest.fixture
def install(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy.gturbo")


def sealed(folder, **fields):
    """The manifest with other fields and a checksum that fits them."""
    path = folder / "manifest.json"
    path.write_bytes(render({**json.loads(path.read_bytes()), **fields}))


def test_a_sound_install_has_no_faults_and_every_byte_was_read(install):
    told = []
    assert verify(install, lambda done, total: told.append((done, total))) == []
    sizes = sum(len(data) for name, data in contents(install).items() if name != "manifest.json")
    assert told[-1] == (sizes, sizes)


def flips(install):
    """(file, byte) in headers, middles and ends of all files."""
    for name, data in contents(install).items():
        for share in (0, 0.001, 0.2, 0.5, 0.77, 0.999):
            yield name, int(share * len(data))
        yield name, len(data) - 1


def test_every_flipped_byte_is_found_in_the_file_it_is_in(install):
    for name, at in flips(install):
        path = install / name
        data = bytearray(path.read_bytes())
        data[at] ^= 0x10
        path.write_bytes(data)
        try:
            faults = verify(install)
        except TurbosparkError as error:
            assert name == "manifest.json", f"{name}, byte {at}"
            faults = [error.message]
        assert faults, f"{name}, byte {at}"
        assert name.rpartition("/")[2] in faults[0], f"{name}, byte {at}: {faults}"
        data[at] ^= 0x10
        path.write_bytes(data)
    assert verify(install) == []


def test_wrong_sizes_and_missing_and_surplus_files_are_all_named(install):
    (install / "packed_experts" / "layer_00.bin").unlink()
    (install / "packed_experts" / "layer_09.bin").write_bytes(b"more")
    (install / "notes.txt").write_text("mine")
    weights = install / "model_weights.bin"
    weights.write_bytes(weights.read_bytes()[:-5])
    faults = "\n".join(verify(install))
    size = weights.stat().st_size
    for words in (
        "packed_experts/layer_00.bin: it is missing",
        f"model_weights.bin: it has {size} bytes, must have {size + 5}",
        "packed_experts/layer_09.bin: it is not in the manifest",
        "notes.txt: it is not in the manifest",
    ):
        assert words in faults


def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(install):
    content = json.loads((install / "manifest.json").read_bytes())
    os.mkfifo(install / "pipe")
    sealed(install, files={**content["files"], "pipe": {"size": 0, "sha256": "0" * 64}})
    assert verify(install)[0] == "pipe: it is no file"
    with pytest.raises(TurbosparkError, match="pipe is no file"):
        open_checkpoint(install)


def test_a_manifest_whose_hashes_were_made_to_fit_still_has_its_own(install):
    change(install, "model_weights.bin", (install / "model_weights.bin").read_bytes()[:-1] + b"\1")
    faults = verify(install)
    assert len(faults) == 1
    assert "manifest.json: its checksum" in faults[0]


def test_numbers_that_contradict_the_sources_declarations_are_named(install):
    arch = json.loads((install / "manifest.json").read_bytes())["arch"]
    sealed(install, arch={**arch, "topKExperts": 2, "rmsNormEps": 0.5})
    faults = verify(install)
    assert [fault.partition(",")[0] for fault in faults] == [
        "manifest.json: arch.rmsNormEps is 0.5",
        "manifest.json: arch.topKExperts is 2",
    ]
    assert "makes it 3" in faults[1]


def test_a_layout_that_contradicts_its_files_is_named(install):
    path = install / "packed_experts" / "layout.json"
    layout = json.loads(path.read_bytes())
    layout["layers"][1]["experts"][2]["tensors"]["up"]["size"] -= 4
    change(install, "packed_experts/layout.json", json.dumps(layout).encode())
    sealed(install)
    assert [f for f in verify(install) if "layer_01.bin, expert 2: up" in f and "4604" in f and "4608" in f]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda whole, layer: whole.update(expertStride=8192), "expertStride is 8192, in manifest.json it is 16384"),
        (lambda whole, layer: whole.update(expertsPerLayer=9), "expertsPerLayer is 9, in manifest.json it is 8"),
        (lambda whole, layer: layer.update(expertStride=4096), "expert 1 of layer_01.bin begins at byte 16384"),
        (lambda whole, layer: layer.update(expertStride="16384"), "expertStride of layer_01.bin is '16384'"),
        (lambda whole, layer: layer["experts"].append({**layer["experts"][0], "expert": 8}), "has 9 experts, not 8"),
    ],
)
def test_a_layout_that_contradicts_the_manifest_or_its_stride_is_named(install, spoil, words):
    layout = json.loads((install / "packed_experts" / "layout.json").read_bytes())
    spoil(layout, layout["layers"][1])
    change(install, "packed_experts/layout.json", json.dumps(layout).encode())
    sealed(install)
    assert any(words in fault for fault in verify(install)), verify(install)


def test_experts_of_another_model_are_named(install):
    """Individually sound files that contradict the configuration."""
    manifest = json.loads((install / "manifest.json").read_bytes())
    layout = json.loads((install / "packed_experts" / "layout.json").read_bytes())
    layout["layers"] = layout["layers"][:-1]
    change(install, "packed_experts/layout.json", json.dumps(layout).encode())
    files = json.loads((install / "manifest.json").read_bytes())["files"]
    assert manifest["files"].keys() == files.keys()
    sealed(install)
    assert any("missing: blk.3.ffn_gate_exps" in fault for fault in verify(install))


def test_the_command_says_sound_or_lists_the_faults(install, capsys):
    assert main(["verify", str(install)]) == 0
    assert capsys.readouterr().out == f"{install}: sound\n"
    (install / "source.gguf").unlink()
    assert main(["verify", str(install)]) == 1
    assert "1 faults\n  source.gguf: it is missing\n" in capsys.readouterr().out
    assert main(["verify", str(install), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["sound"], told["faults"]) == (False, ["source.gguf: it is missing"])


def test_what_is_no_install_is_not_verified(tmp_path, capsys):
    assert main(["verify", str(GGUFS["dense"](tmp_path))]) == 2
    assert "[not_installed]" in capsys.readouterr().err
