"""`turbospark run` with a prompt, on a model that says the alphabet."""

import io
import json
import re
import signal
import sys

import pytest

from tests.tiny.alphabet import ALPHABET, write_alphabet
from turbospark.cli.main import main


def stdin(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


def test_a_prompt_goes_through_the_chat_template(model, capsys, prompts):
    assert main(["run", model, "hello", "--system", "be brief"]) == 0
    assert prompts == [[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]]
    assert capsys.readouterr().out == ALPHABET + "\n"


def test_raw_completes_the_prompt_as_it_is(model, capsys, prompts):
    assert main(["run", model, "--raw", "m"]) == 0
    assert prompts == ["m"]
    assert capsys.readouterr().out == "nopqrstuvwxyz\n"


def test_a_model_without_a_template_completes_and_says_so_once(tmp_path, capsys):
    path = str(write_alphabet(tmp_path / "plain.gguf", template=None))
    assert main(["run", path, "m"]) == 0
    out, err = capsys.readouterr()
    assert out == "nopqrstuvwxyz\n"
    assert err.count("no chat template") == 1


def test_the_answer_is_shown_as_it_is_made(model, monkeypatch):
    class Shown(io.StringIO):
        """What a reader sees after each flush."""

        seen = ()

        def flush(self):
            self.seen = (*self.seen, self.getvalue())

    out = Shown()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["run", model, "x", "--quiet"]) == 0
    assert out.seen[:26] == tuple(ALPHABET[:n] for n in range(1, 27))


def test_the_last_line_on_stderr_tells_the_facts(model, capsys):
    main(["run", model, "x", "--seed", "7"])
    facts = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"\[\d+ prompt tokens, 27 new, [\d.]+ tokens/s, first token after [\d.]+ s, peak memory [\d.]+ [MG]B, seed 7\]",
        facts,
    )


def test_quiet_leaves_nothing_but_the_answer(tmp_path, capsys):
    path = str(write_alphabet(tmp_path / "plain.gguf", template=None))
    main(["run", path, "x", "--quiet"])
    assert capsys.readouterr() == ("yz\n", "")


def test_the_reported_seed_repeats_the_answer(model, capsys):
    asked = ["run", model, "--raw", "m", "--temperature", "30", "--top-p", "1", "--ignore-eos", "--max-new", "20"]
    main(asked)
    first, err = capsys.readouterr()
    seed = re.search(r"seed (\d+)", err)[1]
    main([*asked, "--seed", seed])
    assert capsys.readouterr().out == first
    main([*asked, "--seed", str(int(seed) + 1)])
    assert capsys.readouterr().out != first


def test_max_new_ends_the_answer_and_the_facts_say_so(model, capsys):
    main(["run", model, "x", "--max-new", "3"])
    out, err = capsys.readouterr()
    assert out == "abc\n"
    assert "ended by length" in err


def test_stop_may_be_given_more_than_once(model, capsys):
    main(["run", model, "x", "--stop", "q", "--stop", "ef"])
    assert capsys.readouterr().out == "abcd\n"


def test_ignore_eos_goes_on_behind_the_end(model, capsys):
    main(["run", model, "x", "--ignore-eos", "--max-new", "30"])
    assert capsys.readouterr().out == ALPHABET + "abc\n"


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("--temperature", 0.5, "temperature"),
        ("--top-k", 3, "top_k"),
        ("--top-p", 0.5, "top_p"),
        ("--min-p", 0.1, "min_p"),
        ("--repetition-penalty", 1.1, "repetition_penalty"),
        ("--presence-penalty", -0.5, "presence_penalty"),
        ("--frequency-penalty", 0.5, "frequency_penalty"),
        ("--seed", 5, "seed"),
        ("--max-new", 2, "max_new"),
    ],
)
def test_sampling_flags_reach_the_sampler(model, monkeypatch, flag, value, field):
    seen = []
    monkeypatch.setattr("turbospark.cli.run.answer", lambda *given: seen.append(given[2]) or sys.exit())
    with pytest.raises(SystemExit):
        main(["run", model, "x", flag, str(value)])
    assert getattr(seen[0], field) == value


def test_the_chunk_flag_reaches_the_engine(model, monkeypatch):
    seen = []
    monkeypatch.setattr("turbospark.cli.run.answer", lambda *given: seen.append(given[0]) or sys.exit())
    with pytest.raises(SystemExit):
        main(["run", model, "x", "--prefill-chunk", "5", "--max-context", "64"])
    assert (seen[0].engine.scheduler.chunk, seen[0].engine.max_context) == (5, 64)


def test_a_dash_reads_the_prompt_from_stdin(model, capsys, monkeypatch, prompts):
    stdin(monkeypatch, "grün\n".encode())
    assert main(["run", model, "-"]) == 0
    assert prompts[0][-1]["content"] == "grün"


def test_a_prompt_may_stand_behind_flags_and_begin_with_a_dash(model, capsys, prompts):
    assert main(["run", model, "--raw", "--quiet", "--", "-x"]) == 0
    assert prompts == ["-x"]


def test_messages_come_from_a_file_and_the_prompt_after_them(model, tmp_path, capsys, prompts):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    main(["run", model, "c", "--messages-file", str(tmp_path / "talk.json")])
    assert prompts == [[*talk, {"role": "user", "content": "c"}]]


def test_a_messages_file_alone_is_answered(model, tmp_path, capsys, prompts):
    talk = [{"role": "user", "content": "a"}]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    assert main(["run", model, "--messages-file", str(tmp_path / "talk.json")]) == 0
    assert prompts == [talk]


def test_without_a_drafter_auto_and_off_decode_plainly(model, capsys):
    for asked in ([], ["--speculative", "auto"], ["--speculative", "off"]):
        assert main(["run", model, "x", "--quiet", *asked]) == 0
        assert capsys.readouterr() == (ALPHABET + "\n", "")


@pytest.mark.parametrize("variable", ["TURBOSPARK_DFLASH_DRAFT", "TURBOSPARK_MTP_DRAFT"])
def test_a_variable_that_fixes_a_block_is_refused_by_name(model, capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "4")
    assert main(["run", model, "x"]) == 2
    assert f"{variable}=4 needs a drafter" in capsys.readouterr().err
    assert main(["run", model, "x", "--speculative", "off"]) == 0


def test_a_variable_over_the_largest_block_is_refused_by_name(model, capsys, monkeypatch):
    monkeypatch.setenv("TURBOSPARK_MTP_DRAFT", "16")
    assert main(["run", model, "x"]) == 2
    assert "TURBOSPARK_MTP_DRAFT=16" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "0", "many", "-3"])
def test_a_variable_that_fixes_no_block_changes_nothing(model, capsys, monkeypatch, value):
    monkeypatch.setenv("TURBOSPARK_DFLASH_DRAFT", value)
    assert main(["run", model, "x"]) == 0


def test_ctrl_c_stops_the_answer_and_exits_with_130(model, monkeypatch, capsys):
    class Interrupting(io.StringIO):
        def write(self, text):
            if text == "e":
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    out = Interrupting()
    monkeypatch.setattr(sys, "stdout", out)
    before = signal.getsignal(signal.SIGINT)
    assert main(["run", model, "x"]) == 130
    assert out.getvalue() == "abcde\n"
    assert "stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_leaves_at_once(model, monkeypatch, capsys):
    class Interrupting(io.StringIO):
        def write(self, text):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            return super().write(text)

    out = Interrupting()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["run", model, "x"]) == 130
    assert out.getvalue() == ""


def test_ctrl_c_while_loading_exits_with_130(model, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("turbospark.cli.run.load", interrupted)
    assert main(["run", model, "x"]) == 130
    assert "Traceback" not in capsys.readouterr().err
