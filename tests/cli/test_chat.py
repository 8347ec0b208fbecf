"""`turbospark run MODEL` without a prompt: the chat."""

import io
import signal
import sys

import pytest

from tests.tiny.alphabet import ALPHABET, write_alphabet
from turbospark.cli.main import main


@pytest.fixture
def say(monkeypatch):
    """Sets the lines typed; an exception among them is raised in place of a line."""

    def typed(*lines):
        left = list(lines)

        def read(prompt=""):
            line = left.pop(0) if left else EOFError()
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        return left

    return typed


def roles(prompt):
    return [message["role"] for message in prompt]


def test_each_prompt_carries_the_conversation(model, say, prompts, capsys):
    say("one", "", "two")
    assert main(["run", model, "--system", "s"]) == 0
    assert roles(prompts[0]) == ["system", "user"]
    assert roles(prompts[1]) == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in prompts[1]] == ["s", "one", ALPHABET, "two"]
    assert capsys.readouterr().out == (ALPHABET + "\n") * 2


def test_the_second_prompt_reuses_the_first_ones_rows(model, say, capsys):
    say("one", "two")
    main(["run", model])
    facts = [line for line in capsys.readouterr().err.splitlines() if "tokens/s" in line]
    assert "reused" not in facts[0]
    assert "reused" in facts[1]


def test_clear_forgets_all_but_the_opening(model, say, prompts, capsys):
    say("one", "/clear", "two")
    main(["run", model, "--system", "s"])
    assert [m["content"] for m in prompts[1]] == ["s", "two"]


def test_help_and_unknown_commands_are_no_prompts(model, say, prompts, capsys):
    say("/help", "/frob", "/etc/passwd what is this?")
    main(["run", model])
    assert [m["content"] for m in prompts[0]] == ["/etc/passwd what is this?"]
    err = capsys.readouterr().err
    assert "/clear" in err
    assert "/frob is no command" in err


def test_exit_leaves(model, say, prompts, capsys):
    left = say("/exit", "one")
    assert main(["run", model]) == 0
    assert left == ["one"]
    assert prompts == []


def test_ctrl_c_stops_the_answer_and_keeps_the_session(model, say, prompts, monkeypatch, capsys):
    class Interrupting(io.StringIO):
        armed = True

        def write(self, text):
            if text == "c" and self.armed:
                self.armed = False
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    out = Interrupting()
    monkeypatch.setattr(sys, "stdout", out)
    say("one", KeyboardInterrupt(), "two")
    assert main(["run", model]) == 0
    assert out.getvalue() == f"abc\n{ALPHABET}\n"
    assert [m["content"] for m in prompts[1]] == ["one", "abc", "two"]


def test_an_error_keeps_the_session_and_the_conversation_before_it(tmp_path, say, prompts, capsys):
    path = str(write_alphabet(tmp_path / "short.gguf", context=90))
    say("x", "y" * 200, "z")
    assert main(["run", path, "--max-new", "3"]) == 0
    out, err = capsys.readouterr()
    assert out == "abc\nabc\n"
    assert "[context_length_exceeded]" in err
    assert [m["content"] for m in prompts[2]] == ["x", "abc", "z"]


def test_a_line_that_is_not_utf8_is_refused_and_the_next_one_answered(model, say, prompts, capsys):
    say("a\udcff", "b")
    assert main(["run", model, "--max-new", "1"]) == 0
    out, err = capsys.readouterr()
    assert out == "a\n"
    assert "[not_utf8]" in err
    assert len(prompts) == 1


def test_without_a_template_each_line_is_completed_by_itself(tmp_path, say, prompts, capsys):
    path = str(write_alphabet(tmp_path / "plain.gguf", template=None))
    say("x", "w")
    main(["run", path])
    assert prompts == ["x", "w"]
    out, err = capsys.readouterr()
    assert out == "yz\nxyz\n"
    assert err.count("no chat template") == 1
