"""Flags and variables of speculation, and the lines that say what it did."""

import re

import pytest

from tests.tiny.dflash import dflash_config, write_dflash
from turbospark.cli.main import main
from turbospark.cli.speculation import told
from turbospark.config.registry import read_config
from turbospark.engine.request import Stats
from turbospark.formats import open_checkpoint

LONG = ["--raw", "m", "--max-new", "90", "--ignore-eos", "--temperature", "0"]
LAST = re.compile(
    r"\[speculation [\d.]+ tokens a round, accepted (\d+ )+% by position, \d+ rounds, draft [\d.]+ s, verify [\d.]+ s, "
    r"commit [\d.]+ s, (no plain step measured|[\d.]+x its plain step of [\d.]+ ms)\]"
)


@pytest.fixture
def drafter(model, tmp_path):
    """A DFlash drafter for the model, with random weights."""
    return str(
        write_dflash(tmp_path / "random", dflash_config(read_config(open_checkpoint(model)), target_layer_ids=[0]))
    )


def answered(capsys, *args):
    assert main(["run", *args]) == 0
    return capsys.readouterr()


@pytest.mark.parametrize("asked", ["auto", "1", "4", "15"])
def test_the_last_line_says_what_speculation_did_and_the_text_is_the_same(model, capsys, asked):
    plain, _ = answered(capsys, model, *LONG)
    text, err = answered(capsys, model, *LONG, "--speculative", asked, "--speculative-drafter", "ngram")
    assert text == plain
    assert LAST.fullmatch(err.splitlines()[-1])


def test_auto_measures_its_own_plain_step(model, capsys):
    _, err = answered(capsys, model, *LONG, "--speculative-drafter", "ngram")
    assert "x its plain step of" in err.splitlines()[-1]


def test_a_drafter_is_named_by_its_path(model, drafter, capsys):
    plain, _ = answered(capsys, model, *LONG)
    text, err = answered(capsys, model, *LONG, "--speculative", "3", "--speculative-drafter", drafter)
    assert text == plain
    assert LAST.fullmatch(err.splitlines()[-1])


def test_quiet_and_off_say_nothing(model, drafter, capsys):
    assert answered(capsys, model, *LONG, "--speculative-drafter", "ngram", "--quiet")[1] == ""
    _, err = answered(capsys, model, *LONG, "--speculative", "off")
    assert "speculation" not in err


def test_off_opens_no_drafter_and_says_so_of_one_that_was_named(model, capsys):
    _, err = answered(capsys, model, *LONG, "--speculative", "off", "--speculative-drafter", "nowhere")
    assert err.startswith("the drafter nowhere is not opened: speculation is off\n")
    named = ["--speculative", "off", "--speculative-drafter", "nowhere", "--quiet"]
    assert answered(capsys, model, *LONG, *named)[1] == ""
    assert main(["run", model, "x", "--speculative-drafter", "nowhere"]) == 2
    assert "drafter 'nowhere' is neither a file, a folder nor one of" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["-3", "16"])
def test_a_number_that_cannot_be_names_what_can(model, capsys, wrong):
    assert main(["run", model, "x", "--speculative", wrong]) == 2
    says = f'--speculative {wrong}: speculative must be "off", "auto" or an integer in [1, 15], has {wrong}'
    assert says in capsys.readouterr().err


def test_more_proposals_than_the_drafter_was_made_for_are_served_and_said_once(model, drafter, capsys):
    _, err = answered(capsys, model, *LONG, "--speculative", "9", "--speculative-drafter", drafter)
    assert err.count("9 proposals of a drafter that was made for 7") == 1
    _, err = answered(capsys, model, *LONG, "--speculative", "7", "--speculative-drafter", drafter)
    assert "served all the same" not in err


def test_a_drafter_that_does_not_fit_ends_in_what_blocker_says(model, tmp_path, capsys):
    config = dflash_config(read_config(open_checkpoint(model)), target_layer_ids=[0], vocab_size=3)
    path = str(write_dflash(tmp_path / "other", config))
    assert main(["run", model, "x", "--speculative-drafter", path]) == 2
    assert capsys.readouterr().err.startswith("error: drafter other: the drafter's vocabulary is 3, the model's is")


def test_a_found_drafter_that_does_not_fit_is_passed_over_with_a_word(model, tmp_path, capsys):
    config = dflash_config(read_config(open_checkpoint(model)), target_layer_ids=[0], vocab_size=3)
    write_dflash(tmp_path / "alphabet-DFlash2", config)
    _, err = answered(capsys, model, *LONG)
    assert "passed over: drafter alphabet-DFlash2" in err
    assert "speculation" not in err


def test_a_variable_fixes_the_block_of_its_kind(model, tmp_path, capsys, monkeypatch):
    config = dflash_config(read_config(open_checkpoint(model)), target_layer_ids=[0])
    write_dflash(tmp_path / "alphabet-DFlash2", config)
    monkeypatch.setenv("TURBOSPARK_DFLASH_DRAFT", "2")
    _, err = answered(capsys, model, *LONG)
    assert re.search(r"accepted \d+ \d+ % by position", err.splitlines()[-1])
    monkeypatch.setenv("TURBOSPARK_DFLASH_DRAFT", "0")
    assert "speculation" not in answered(capsys, model, *LONG)[1]
    monkeypatch.setenv("TURBOSPARK_MTP_DRAFT", "2")
    assert main(["run", model, "x"]) == 2
    assert "TURBOSPARK_MTP_DRAFT=2 needs a drafter: alphabet.gguf has no mtp drafter" in capsys.readouterr().err
    monkeypatch.setenv("TURBOSPARK_MTP_DRAFT", "many")  # no number: auto
    monkeypatch.delenv("TURBOSPARK_DFLASH_DRAFT")
    assert main(["run", model, *LONG]) == 0
    # the flag goes before the variable
    monkeypatch.setenv("TURBOSPARK_MTP_DRAFT", "2")
    assert answered(capsys, model, *LONG, "--speculative", "off")[0]


def test_spec_stats_adds_acceptance_by_position_and_rollbacks(model, drafter, capsys, monkeypatch):
    monkeypatch.setenv("TURBOSPARK_SPEC_STATS", "1")
    asked = [model, *LONG, "--speculative", "2", "--speculative-drafter", drafter]
    _, err = answered(capsys, *asked)
    assert re.search(r"\[rounds \d+, rollbacks \d+, proposed \d+, accepted \d+\]", err)
    assert re.search(r"\[accepted by position \d+/\d+, \d+/\d+\]", err)
    assert "rollbacks" in answered(capsys, *asked, "--quiet")[1]


def test_collapsed_acceptance_is_warned_of():
    """Fault 29: a drafter of another model costs time and changes nothing else, so nobody would notice."""
    bad, good = Stats(), Stats()
    for _ in range(20):
        bad.round(4, 0, 0.1, 0.1, 0.0)
        good.round(4, 1, 0.1, 0.1, 0.0)
    assert bad.collapsed
    assert not good.collapsed
    assert not Stats().collapsed
    lines = list(told(bad, quiet=False))
    assert lines[-2] == "warning: 0 of 20 first proposals were right: is the drafter made for this model?"
    assert LAST.fullmatch(lines[-1])
    assert not any("warning" in line for line in told(good, quiet=False))
    assert list(told(Stats(), quiet=False)) == []
