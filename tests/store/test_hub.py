"""`pull`, from a hub on loopback: whole models, downloads that break, wrong bytes, refusals, redirects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import turbospark
from tests.store.hub_server import COMMIT, Hub, serving
from tests.store.sources import FOLDERS, GGUFS, IDS
from tests.tiny.dense import write_dense_gguf
from tests.tiny.llama import tiny_llama
from turbospark.errors import TurbosparkError
from turbospark.store import home as homes
from turbospark.store import hub as hubs
from turbospark.store.verify import verify

ROOT = Path(__file__).parents[2]


def files_of(path):
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {entry.name: entry.read_bytes() for entry in path.rglob("*") if entry.is_file()}


@pytest.fixture
def pull(tmp_path, home):
    """Runs the command in a process of its own, against a hub."""

    def run(address, *argv, token=None):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"TURBOSPARK_HOME": str(home), "PYTHONPATH": str(ROOT / "src"), "HF_ENDPOINT": address}
        environment |= {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
        environment |= {} if token is None else {"HF_TOKEN": token}
        command = [sys.executable, "-m", "turbospark", *argv]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def check_same(source, alias="model"):
    install = homes.place(alias)
    theirs, ours = (turbospark.load(path, "reference").logits(IDS) for path in (source, install))
    np.testing.assert_array_equal(ours, theirs)
    assert verify(install) == []


@pytest.mark.parametrize("write", [GGUFS["dense"], FOLDERS["deepseek2"]], ids=["gguf", "folder"])
def test_a_model_is_fetched_imported_and_its_download_cleared(tmp_path, pull, home, write):
    source = write(tmp_path)
    extra = {"README.md": b"hello", "original/consolidated.pth": b"no", "consolidated.safetensors": b"again"}
    hub = Hub(files_of(source) | extra)
    with serving(hub) as address:
        done = pull(address, "pull", "tiny/model")
    assert not any(path.rpartition("/")[2] in extra for _, path, _ in hub.asked)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"of tiny/model at {COMMIT[:12]}" in done.stderr
    check_same(source)
    assert sorted(path.name for path in home.iterdir()) == [".model.gturbo.lock", "model.gturbo"]
    assert not {"README.md", "consolidated.safetensors"} & set(files_of(homes.place("model")))


def test_import_takes_a_name_on_the_hub_as_well(tmp_path, pull):
    source = GGUFS["dense"](tmp_path)
    with serving(Hub(files_of(source))) as address:
        assert pull(address, "import", "tiny/model", "--alias", "mine", "--quiet").stderr == ""
    check_same(source, "mine")


def test_a_download_that_breaks_goes_on_where_it_broke(tmp_path, pull):
    # larger than the pieces in which the library writes
    long = {"general.description": "x" * 24_000_000}
    source = write_dense_gguf(tmp_path / "long.gguf", tiny_llama(), long)
    hub = Hub(files_of(source))
    hub.cut = {source.name: 22_000_000}
    with serving(hub) as address:
        done = pull(address, "pull", "tiny/model")
        if done.returncode:  # where the library itself does not try again
            assert "[hub_unreachable]" in done.stderr
            assert pull(address, "pull", "tiny/model").returncode == 0
    starts = [asked for method, path, asked in hub.asked if method == "GET" and path.endswith(source.name)]
    assert starts[0] is None
    assert any(asked and int(asked.removeprefix("bytes=").partition("-")[0]) > 0 for asked in starts[1:]), starts
    check_same(source)


def test_a_file_with_another_hash_than_the_hub_says_is_thrown_away(tmp_path, pull, home):
    source = GGUFS["dense"](tmp_path)
    hub = Hub(files_of(source))
    hub.lie = {source.name: "f" * 64}
    with serving(hub) as address:
        done = pull(address, "pull", "tiny/model")
        assert done.returncode == 2
        assert f"{source.name} did not arrive whole" in done.stderr
        assert "ffffffffffffffff" in done.stderr
        assert "[bad_download]" in done.stderr
        assert homes.installed("model") is None
        assert not (homes.staging("model") / source.name).exists()
        hub.lie = {}
        assert pull(address, "pull", "tiny/model").returncode == 0
    check_same(source)


def test_a_repository_that_is_not_there_is_404_by_name(pull):
    with serving(Hub({})) as address:
        done = pull(address, "pull", "tiny/other")
    assert done.returncode == 2
    assert "tiny/other: the hub answers 404" in done.stderr
    assert "[hub_refused]" in done.stderr
    assert "HF_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_repository_that_asks_for_a_token_takes_the_right_one(tmp_path, pull):
    source = GGUFS["dense"](tmp_path)
    hub = Hub(files_of(source))
    hub.token = "hf_right"
    with serving(hub) as address:
        for token in (None, "hf_wrong"):
            done = pull(address, "pull", "tiny/model", token=token)
            assert done.returncode == 2
            assert "tiny/model: the hub answers 401" in done.stderr
            assert "HF_TOKEN" in done.stderr
            assert "hf_wrong" not in done.stderr
        assert pull(address, "pull", "tiny/model", token="hf_right").returncode == 0
    check_same(source)


def test_a_repository_that_moved_is_followed(tmp_path, pull):
    source = GGUFS["dense"](tmp_path)
    with serving(Hub(files_of(source))) as address:
        assert pull(address, "pull", "old/model").returncode == 0
    check_same(source)


def test_where_there_are_several_models_they_are_listed_and_one_is_chosen(tmp_path, pull):
    sources = [GGUFS[name](tmp_path) for name in ("dense", "mixture")]
    parts = sorted(GGUFS["mixture in parts"](tmp_path).parent.glob("split-*"))
    hub = Hub({path.name: path.read_bytes() for path in [*sources, *parts]})
    with serving(hub) as address:
        done = pull(address, "pull", "tiny/model")
        assert done.returncode == 2
        assert "has 3 models: llama.gguf, qwen-True.gguf, split-00001-of-00003.gguf" in done.stderr
        assert pull(address, "pull", "tiny/model", "--file", "nothing.gguf").returncode == 2
        hub.asked.clear()
        assert pull(address, "pull", "tiny/model", "--file", parts[1].name).returncode == 0
    assert not any("llama.gguf" in path for _, path, _ in hub.asked)
    check_same(parts[0])


def test_a_hub_that_does_not_answer_is_one_line(pull):
    done = pull("http://127.0.0.1:9", "pull", "tiny/model")
    assert done.returncode == 2
    assert "[hub_unreachable]" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_hubs_library_its_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(TurbosparkError) as caught:
        hubs.look_up("tiny/model")
    assert (caught.value.code, "pip install huggingface_hub" in caught.value.hint) == ("no_hub", True)


@pytest.mark.parametrize("name", ["model", "a/b/c", "a/", "../x", "a/b c", ""])
def test_what_is_no_name_of_a_repository_is_refused(name):
    with pytest.raises(TurbosparkError) as caught:
        hubs.look_up(name)
    assert caught.value.code == "bad_repository"


def test_too_little_room_is_said_before_the_first_byte(tmp_path, monkeypatch, home):
    remote = hubs.Remote("tiny/model", COMMIT, {"model.gguf": (1 << 60, None)})
    with pytest.raises(TurbosparkError) as caught:
        hubs.fetch(remote, "mine")
    assert caught.value.code == "disk_full"
    assert "needs" in caught.value.message
