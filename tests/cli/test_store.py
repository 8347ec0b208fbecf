"""`import`, `rm`, and what the other commands make of installs."""

from __future__ import annotations

import json
import sys

import pytest

from tests.tiny.alphabet import alphabet_parts, write_alphabet, write_ids_only
from tests.tiny.gguf_file import split_gguf
from turbospark.catalog import resolve
from turbospark.cli import output
from turbospark.cli.main import main
from turbospark.cli.output import Transfer
from turbospark.errors import TurbosparkError
from turbospark.store import home


def ran(capsys, *argv, status=0):
    assert main([str(word) for word in argv]) == status
    return capsys.readouterr()


def test_an_import_is_a_model_by_name(model, capsys):
    told = ran(capsys, "import", model, "--alias", "mine")
    assert told.out == ""
    assert told.err.startswith("mine: ")
    assert str(home.place("mine")) in told.err
    ran(capsys, "run", "mine", "abc", "--raw", "--temperature", "0", "--max-new", "4", "--backend", "reference")
    said = ran(capsys, "run", "mine", "abc", "--raw", "--temperature", "0", "--max-new", "4", "--backend", "reference")
    assert said.out == "defg\n"
    assert "would run      yes" in ran(capsys, "info", "mine").out
    assert ran(capsys, "probe", "mine").out.endswith("would run\n")


def test_list_shows_installs_with_what_they_were_made_of(model, capsys):
    ran(capsys, "import", model, "--alias", "mine", "--quiet")
    out = ran(capsys, "list").out
    assert "mine        install of alphabet.gguf, " in out
    assert str(home.place("mine")) in out
    told = {entry["name"]: entry for entry in json.loads(ran(capsys, "list", "--json").out)}
    assert told["mine"]["present"] is True
    assert told["mine"]["nbytes"] == home.size_of(home.place("mine"))
    assert "smollm2" in told


def test_a_stopped_import_tells_how_it_goes_on(model, capsys, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("turbospark.store.repack.import_model", stopped)
    told = ran(capsys, "import", model, "--alias", "mine", status=130)
    assert "stopped; the same import of mine goes on from here, turbospark rm mine forgets it" in told.err


def test_a_name_that_a_broken_link_bears_is_taken_before_anything_is_copied(model, capsys, tmp_path):
    home.home().mkdir()
    home.place("mine").symlink_to(tmp_path / "nowhere")
    assert "[alias_taken]" in ran(capsys, "import", model, "--alias", "mine", status=2).err


def test_an_install_that_is_a_link_goes_without_what_it_points_to(model, capsys, tmp_path):
    ran(capsys, "import", model, "--alias", "mine", "--quiet")
    home.place("linked").symlink_to(home.place("mine"))
    home.place("astray").symlink_to(tmp_path / "nowhere")
    for name in ("linked", "astray"):
        assert f"removed {name}, 0 bytes freed" in ran(capsys, "rm", name).err
        assert "[not_installed]" in ran(capsys, "rm", name, status=2).err
    assert [name for name, _ in home.installs()] == ["mine"]
    assert ran(capsys, "verify", "mine").out.endswith(": sound\n")


def test_an_install_goes_before_an_alias_of_the_same_name(model, capsys):
    said = ran(capsys, "import", model, "--alias", "smollm2").err
    assert "from now on smollm2 is this install, not SmolLM2 135M Instruct, Q4_1" in said
    assert resolve("smollm2") == home.place("smollm2")
    assert ran(capsys, "list").out.count("smollm2") == 2  # its line, and its folder below
    ran(capsys, "rm", "smollm2")
    assert resolve("smollm2") != home.place("smollm2")


@pytest.mark.parametrize("text", ["{", "[" * 200_000, "[]", "{}"])
def test_an_install_whose_manifest_is_broken_is_listed_as_damaged(model, capsys, text):
    ran(capsys, "import", model, "--alias", "mine", "--quiet")
    (home.place("mine") / "manifest.json").write_text(text)
    assert "a damaged install (`turbospark verify` tells more)" in ran(capsys, "list").out


def test_without_an_alias_an_install_is_called_after_its_source(tmp_path, capsys):
    ran(capsys, "import", write_alphabet(tmp_path / "letters.Q4_1.gguf"), "--quiet")
    ran(capsys, "import", write_ids_only(tmp_path / "folder"), "--quiet")
    metadata, tensors = alphabet_parts()
    parts = split_gguf(tmp_path, "parts", metadata, [{n: tensors[n]} for n in tensors])
    ran(capsys, "import", parts[0], "--quiet")
    ran(capsys, "import", home.place("folder"), "--quiet", status=2)
    assert [name for name, _ in home.installs()] == ["folder", "letters.Q4_1", "parts"]


def test_rm_frees_an_install_and_says_how_much(model, capsys):
    ran(capsys, "import", model, "--alias", "mine", "--quiet")
    assert ran(capsys, "rm", "mine").err.startswith("removed mine, ")
    assert "[not_installed]" in ran(capsys, "rm", "mine", status=2).err
    with pytest.raises(TurbosparkError, match="neither a file"):
        resolve("mine")


def test_rm_leaves_what_is_no_install_alone(model, capsys):
    assert "[bad_alias]" in ran(capsys, "rm", model, status=2).err
    assert "[not_installed]" in ran(capsys, "rm", "smollm2", status=2).err


def test_an_import_of_what_is_not_there_says_so(capsys):
    assert "[model_not_found]" in ran(capsys, "import", "nothing", status=2).err
    assert "[bad_arguments]" in ran(capsys, "import", "x", "--quantize", "q9", status=2).err


def test_an_unfinished_install_is_refused_with_what_helps(model, capsys):
    ran(capsys, "import", model, "--alias", "mine", "--quiet")
    (home.place("mine") / "manifest.json").unlink()
    told = ran(capsys, "run", "mine", "abc", status=2).err
    assert "[install_incomplete]" in told
    assert "run the same import again" in told


def test_progress_tells_bytes_speed_and_the_time_left(capsys, monkeypatch):
    clock = iter([0.0, 0.1, 10.0, 10.1])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    transfer = Transfer("importing x")
    for done in (0, 2_000_000_000, 2_010_000_000):
        transfer(done, 5_000_000_000)
    transfer.close()
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert lines[2:] == ["importing x: 2.0 GB of 5.0 GB, 200 MB/s, 15 s left", ""]


def test_progress_is_silent_where_no_one_watches(capsys):
    transfer = Transfer("importing x")
    transfer(1, 2)
    transfer.close()
    assert capsys.readouterr().err == ""
