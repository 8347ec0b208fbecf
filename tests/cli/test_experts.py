"""Where experts are held, by flags: run, chat, info and `load`, and what they say of it."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

import turbospark
from tests.tiny import deepseek2
from tests.tiny.tokenizers import JOINS, write_tokenizer_json
from turbospark import placement
from turbospark.cli.main import main
from turbospark.errors import TurbosparkError
from turbospark.memory import GUARDS

VOCAB = 261 + len(JOINS)
GENERATE = ("--raw", "--temperature", "0", "--max-new", "6", "--ignore-eos", "--max-context", "64")
COST = re.compile(r"\[experts [\d.]+% there, [\d.]+ ([kM]?B|bytes) read, [\d.]+ ms waited a token.*\]")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A mixture of 16 experts that reads text."""
    config = {**deepseek2.V3, "vocab_size": VOCAB}
    folder = tmp_path_factory.mktemp("text")
    path = deepseek2.write_hf(folder / "mixture", config, deepseek2.weights(config))
    return str(write_tokenizer_json(path, template=None))


def ran(capsys, *argv, status=0):
    assert main([str(word) for word in argv]) == status
    return capsys.readouterr()


def test_the_answer_is_the_same_wherever_experts_are_and_run_says_where(mixture, capsys):
    told = {
        held: ran(capsys, "run", mixture, "hello", *GENERATE, *flags)
        for held, flags in {
            "resident": ["--expert-residency", "resident"],
            "streamed": ["--expert-residency", "streamed"],
            "5 of 16": ["--expert-cache-slots", "5"],
            "mapped": ["--expert-residency", "mapped"],
        }.items()
    }
    assert len({one.out for one in told.values()}) == 1
    assert all(held in told[held].err for held in ("resident", "streamed", "5 of 16"))
    assert "experts" not in told["mapped"].err
    for held in ("streamed", "5 of 16"):
        assert COST.fullmatch(told[held].err.splitlines()[-1])
    assert "there" not in told["resident"].err


def test_quiet_tells_nothing_of_it(mixture, capsys):
    assert ran(capsys, "run", mixture, "hello", *GENERATE, "--expert-cache-slots", "3", "--quiet").err == ""


def test_a_chat_tells_behind_each_answer_what_its_experts_cost(mixture, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nhello\n"))
    err = ran(capsys, "run", mixture, *GENERATE, "--expert-cache-slots", "16").err
    costs = [line for line in err.splitlines() if COST.fullmatch(line)]
    assert len(costs) == 2
    assert costs[1].startswith("[experts 100.0% there, 0 bytes read")


def test_a_memory_that_is_too_small_is_refused_with_the_parts_of_the_sum(mixture, capsys):
    for command in (["run", mixture, "hello", *GENERATE], ["run", mixture, *GENERATE]):
        err = ran(capsys, *command, "--memory", "1000000", status=2).err
        assert "[not_enough_memory]" in err
        assert re.search(r"core \+ .* experts \+ .* cache \+ .* to work\), 1.0 MB may be used", err)
    told = ran(capsys, "info", mixture, "--memory", "1000000", status=1).out
    assert "would run      no" in told
    assert "to work), 1.0 MB may be used [not_enough_memory]" in told


def test_flags_that_contradict_each_other_are_refused(mixture, capsys, model):
    flags = ["--expert-residency", "mapped", "--expert-cache-slots", "3"]
    for command in (["run", mixture, "hello"], ["info", mixture]):
        assert "[invalid_parameter]" in ran(capsys, *command, *flags, status=2).err
    assert "[no_experts]" in ran(capsys, "run", model, "x", "--expert-cache-slots", "3", status=2).err
    for flag, value in (("--memory", "0"), ("--expert-cache-slots", "x"), ("--load-guard", "none")):
        assert "[bad_arguments]" in ran(capsys, "run", mixture, "x", flag, value, status=2).err


def test_info_says_what_would_be_decided_and_why(mixture, capsys):
    assert "experts resident: " in ran(capsys, "info", mixture).out
    streamed = ran(capsys, "info", mixture, "--expert-cache-slots", "5").out
    assert "experts streamed: 5 of 16 in memory" in streamed
    told = json.loads(ran(capsys, "info", mixture, "--json", "--expert-residency", "mapped").out)
    assert told["placement"]["residency"] == "mapped"
    assert told["footprint"]["total"] > 0


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_reaches_the_decision(mixture, capsys, monkeypatch, guard):
    asked = []
    monkeypatch.setattr(placement.Asked, "__post_init__", lambda self: asked.append(self.guard))
    ran(capsys, "run", mixture, "hello", *GENERATE, "--load-guard", guard)
    ran(capsys, "info", mixture, "--load-guard", guard)
    assert asked == [guard, guard]


def test_load_takes_the_same_and_refuses_the_same(mixture):
    held = turbospark.load(mixture, expert_residency="streamed", memory=4 * 10**9, max_context=64)
    assert held.placement.residency == "streamed"
    assert held.placement.footprint.total <= 4 * 10**9
    for code, asked in {
        "not_enough_memory": {"memory": 10**6},
        "invalid_parameter": {"load_guard": "most"},
        "bad_context": {"max_context": 10**9, "expert_cache_slots": 3},
    }.items():
        with pytest.raises(TurbosparkError) as caught:
            turbospark.load(mixture, **asked)
        assert caught.value.code == code


def test_an_answer_carries_what_its_experts_cost(mixture):
    model = turbospark.load(mixture, expert_cache_slots=16, max_context=64)
    params = turbospark.SamplingParams(temperature=0.0, max_new=5, ignore_eos=True)
    cold, warm = (model.generate("hello", params).stats for _ in range(2))
    assert cold.experts.bytes_read > 0
    assert cold.experts.misses > 0
    assert cold.experts.tokens == cold.prompt_tokens - cold.reused_tokens + 4
    assert (warm.experts.bytes_read, warm.experts.hit_rate, warm.experts.wait_per_token_s) == (0, 1.0, 0.0)
    whole = model.residency.traffic
    assert whole.hits == cold.experts.hits + warm.experts.hits
