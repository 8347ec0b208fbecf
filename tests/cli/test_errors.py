"""Whatever goes wrong ends in one line, a hint where there is one, and exit status 2."""

import io
import json
import os
import subprocess
import sys
from argparse import ArgumentTypeError

import pytest

from tests.tiny.alphabet import alphabet_parts, write_alphabet, write_ids_only
from tests.tiny.gguf_file import write_gguf
from turbospark.cli.arguments import bytes_or_auto
from turbospark.cli.main import main


def refused(capsys, argv, code):
    """Runs a command that must fail; returns its error line."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, *rest = err.splitlines()
    assert first.startswith("error: ")
    assert first.endswith(f" [{code}]")
    assert [line[:6] for line in rest] in ([], ["hint: "])
    return first


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "COMMAND"),
        (["frob"], "frob"),
        (["run"], "MODEL"),
        (["run", "m", "a", "b"], "b"),
        (["run", "m", "--frob"], "--frob"),
        (["run", "m", "--temp", "1"], "--temp"),
        (["run", "m", "--max-new", "few"], "--max-new"),
        (["run", "m", "--temperature", "hot"], "--temperature"),
        (["run", "m", "--prefill-chunk", "0"], "--prefill-chunk"),
        (["run", "m", "--prefill-chunk", "-4"], "--prefill-chunk"),
        (["run", "m", "--backend", "abacus"], "abacus"),
        (["run", "m", "--speculative", "some"], "--speculative"),
        (["run", "m", "not \udcff utf-8"], "PROMPT"),
        (["run", "m", "--stop", "\udcff"], "--stop"),
        (["run", "m", "--raw", "--system", "s"], "--system"),
        (["info"], "MODEL"),
        (["list", "extra"], "extra"),
    ],
)
def test_bad_arguments_are_named(capsys, argv, names):
    assert names in refused(capsys, argv, "bad_arguments")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--max-new", "-1"),
        ("--temperature", "-0.5"),
        ("--temperature", "nan"),
        ("--top-k", "-2"),
        ("--top-p", "1.5"),
        ("--min-p", "-1"),
        ("--repetition-penalty", "0"),
        ("--presence-penalty", "-3"),
        ("--frequency-penalty", "9"),
        ("--seed", "-1"),
        ("--stop", ""),
        ("--speculative", "16"),
    ],
)
def test_values_out_of_range_are_named(model, capsys, flag, value):
    line = refused(capsys, ["run", model, "x", flag, value], "invalid_parameter")
    assert flag.strip("-").replace("-", "_") in line


def test_bytes_have_the_units_that_are_shown():
    given = {"1000": 1000, "4GB": 4 * 10**9, "512MiB": 2**29, "1.5 kB": 1500, "auto": None}
    assert {text: bytes_or_auto(text) for text in given} == given
    for wrong in ("4 gb", "4XB", "0.1kBs", "-4GB", "0GB", "GB", ""):
        with pytest.raises(ArgumentTypeError):
            bytes_or_auto(wrong)


def test_two_measurements_at_once_are_refused(model, capsys):
    refused(capsys, ["bench", model, "--speculative", "--against", "llama.cpp"], "bad_arguments")


def test_no_proposals_is_spelled_off(model, capsys):
    main(["run", model, "x", "--speculative", "0"])
    assert '"off"' in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--speculative", "4"], ["--speculative-drafter", "mtp"]])
def test_what_needs_a_drafter_is_refused_by_its_flag(model, capsys, flags):
    assert " ".join(flags) in refused(capsys, ["run", model, "x", *flags], "no_drafter")


@pytest.mark.parametrize("context", ["0", "-5", "257"])
def test_a_context_outside_the_models_own_is_refused_with_both_numbers(model, capsys, context):
    line = refused(capsys, ["run", model, "x", "--max-context", context], "bad_context")
    assert context in line
    assert "256" in line


def test_a_prompt_longer_than_the_context_names_both_numbers(model, capsys):
    line = refused(capsys, ["run", model, "--raw", "x" * 65, "--max-context", "64"], "context_length_exceeded")
    assert "65" in line
    assert "64" in line


@pytest.mark.parametrize("command", ["run", "info", "probe"])
def test_a_model_that_is_not_there_is_named(capsys, tmp_path, command):
    assert "nowhere" in refused(capsys, [command, str(tmp_path / "nowhere")], "model_not_found")


def test_a_name_no_file_can_have_is_refused(capsys, tmp_path):
    refused(capsys, ["info", str(tmp_path / ("x" * 400))], "file_unreadable")


def test_a_folder_without_a_model_says_what_is_missing(capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    assert "config.json" in refused(capsys, ["run", str(tmp_path), "x"], "config_missing")


def test_a_cut_file_is_one_line(capsys, tmp_path):
    path = write_alphabet(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    refused(capsys, ["run", str(path), "x"], "file_cut")


def test_control_characters_of_a_file_do_not_reach_the_terminal(capsys, tmp_path):
    metadata, tensors = alphabet_parts()
    path = write_gguf(tmp_path / "m.gguf", {**metadata, "general.architecture": "x\x1b[2J\ny"}, tensors)
    assert main(["info", str(path)]) == 1
    assert main(["run", str(path), "x"]) == 2
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "[1]", '["x"]', '[{"content": "x"}]', "\udcff"])
def test_bad_messages_files_are_refused(model, capsys, tmp_path, text):
    path = tmp_path / "talk.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "talk.json" in refused(capsys, ["run", model, "--messages-file", str(path)], "bad_messages")


def test_a_missing_messages_file_is_refused(model, capsys, tmp_path):
    refused(capsys, ["run", model, "--messages-file", str(tmp_path / "none.json")], "file_unreadable")


def test_two_system_messages_are_refused(model, capsys, tmp_path):
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]))
    refused(capsys, ["run", model, "--system", "c", "--messages-file", str(path)], "bad_arguments")


def test_messages_for_a_model_without_a_template_are_refused(tmp_path, capsys):
    path = str(write_alphabet(tmp_path / "plain.gguf", template=None))
    refused(capsys, ["run", path, "x", "--system", "s"], "no_chat_template")


def test_text_for_a_model_without_a_tokenizer_is_refused(tmp_path, capsys):
    refused(capsys, ["run", str(write_ids_only(tmp_path)), "x"], "no_tokenizer")


def test_too_little_memory_is_an_error_of_ours(model, capsys, monkeypatch):
    def starved(*_, **__):
        raise MemoryError

    monkeypatch.setattr("turbospark.cli.run.load", starved)
    refused(capsys, ["run", model, "x"], "out_of_memory")


def test_a_failing_device_is_an_error_of_ours(model, capsys, monkeypatch):
    def broken(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("turbospark.cli.run.load", broken)
    refused(capsys, ["run", model, "x"], "system_error")


def test_stdin_that_is_not_utf8_is_refused(model, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff")))
    assert "byte 3" in refused(capsys, ["run", model, "-"], "not_utf8")


def test_a_reader_that_leaves_ends_the_program_quietly(model):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "turbospark", "run", model, "x"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
