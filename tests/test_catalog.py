"""Names to paths: packages, the hub's cache and the hub, none of them the real ones."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from turbospark import catalog
from turbospark.errors import TurbosparkError


@pytest.fixture
def hub(monkeypatch):
    """A hub whose cache is empty and whose network is down; a test sets what it needs."""
    module, utils = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.utils")
    module.cached, module.fetched = None, OSError("no route\nto the host")
    module.try_to_load_from_cache = lambda repository, file: module.cached

    def download(repository, file):
        if isinstance(module.fetched, Exception):
            raise module.fetched
        return module.fetched

    module.hf_hub_download = download
    utils.disable_progress_bars = utils.enable_progress_bars = lambda: None
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", utils)
    return module


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a package that the only alias, "small", names."""
    folder = tmp_path / "small_model"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    small = replace(catalog.ALIASES["smollm2"], name="small", package="small_model", file="small.gguf")
    monkeypatch.setattr(catalog, "ALIASES", {"small": small})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_path_is_taken_as_it_is(tmp_path):
    assert catalog.resolve(tmp_path) == tmp_path


def test_an_alias_is_the_file_in_its_package_which_is_not_imported(package, hub):
    (package / "small.gguf").write_bytes(b"x")
    assert catalog.resolve("small") == package / "small.gguf"


def test_an_alias_is_else_the_file_in_the_hubs_cache(package, hub, tmp_path):
    hub.cached = str(tmp_path / "cached.gguf")
    assert catalog.resolve("small") == tmp_path / "cached.gguf"


def test_an_alias_is_else_fetched_after_a_line_that_says_so(package, hub, tmp_path):
    hub.fetched = str(tmp_path / "fetched.gguf")
    notes = []
    assert catalog.resolve("small", notes.append) == tmp_path / "fetched.gguf"
    assert len(notes) == 1
    assert "small" in notes[0]
    assert "98.4 MB" in notes[0]


def test_offline_the_error_says_what_was_tried_and_what_helps(package, hub):
    with pytest.raises(TurbosparkError) as caught:
        catalog.resolve("small")
    assert caught.value.code == "hub_unreachable"
    assert "no route" in caught.value.message
    assert "\n" not in caught.value.message
    assert "small-model" in caught.value.hint


def test_without_the_hubs_library_the_error_is_the_same(package, hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(TurbosparkError, match="could not be fetched"):
        catalog.resolve("small")


def test_an_unknown_name_lists_the_known_ones(package, hub):
    with pytest.raises(TurbosparkError) as caught:
        catalog.resolve("nothing")
    assert caught.value.code == "model_not_found"
    assert "small" in caught.value.hint
