"""A model beside another runtime: who takes turns, what is counted, and what is refused."""

import json

import numpy as np
import pytest

import turbospark
from tests.tiny.alphabet import write_alphabet
from turbospark.bench import against, random_model
from turbospark.bench.against import Comparison, Plan, Process, Side, compare, ratios, table
from turbospark.cli.main import main
from turbospark.errors import TurbosparkError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_alphabet(tmp_path_factory.mktemp("bench") / "alphabet.gguf"))


def test_every_round_reads_a_prompt_and_answers_one_and_the_first_is_not_counted(model, monkeypatch):
    asked = []
    ask = Process.ask
    monkeypatch.setattr(Process, "ask", lambda self, *what: asked.append(what) or ask(self, *what))
    monkeypatch.setattr(against, "READ_BYTES", 1 << 20)
    found = compare(model, 1, Plan(prompt=20, tokens=5, rounds=2, short=4), None)
    prompts, answers = ([what for what in asked if what[0] == verb] for verb in ("begin", "decode"))
    assert len(found.ours.prompts) == len(found.ours.answers) == 2
    assert all(len(answer) == 5 and min(answer) > 0 for answer in found.ours.answers)
    assert [len(what[1]) for what in prompts] == [20] * 3
    assert [len(what[1]) for what in answers] == [4] * 3
    assert len({tuple(what[1]) for what in prompts}) == 3  # nothing is found in the cache
    assert found.theirs is None
    assert found.read > 0
    assert found.ours.peak > found.nbytes


def test_ratios_are_medians_over_pairs_of_rounds():
    ours = Side(prompts=[1.0, 2.0, 4.0], answers=[[0.1, 0.1], [0.2, 0.2], [0.1, 0.3]])
    theirs = Side(prompts=[2.0, 3.0, 20.0], answers=[[0.2, 0.2], [0.2, 0.2], [0.4, 0.8]])
    assert ratios(ours, theirs) == (pytest.approx(2.0), pytest.approx(2.0))
    assert ours.decode() == pytest.approx(5.0)
    assert ours.prefill(10) == pytest.approx(5.0)
    assert ours.step(0.5) == pytest.approx(150)


def test_the_table_has_both_sides_and_their_ratio():
    ours, theirs = Side([1.0], [[0.1]], 5_000_000), Side([2.0], [[0.3]], 6_000_000)
    lines = table([Comparison("m", 1_000_000, 2, Plan(prompt=8), ours, theirs, 30.0)]).splitlines()
    assert "| turbospark | 10.0 | 100.00 / 100.00 | 8.0 | 5 |" in lines[2]
    assert "| llama.cpp | 3.3 |" in lines[3]
    assert "**3.00** | | **2.00**" in lines[4]
    assert "30.0 GB/s" in lines[-1]


def test_json_carries_every_time(model, capsys, monkeypatch):
    monkeypatch.setattr(against, "READ_BYTES", 1 << 20)
    assert main(["bench", model, "--threads", "1", "--prompt", "8", "--tokens", "3", "--rounds", "2", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [len(answer) for answer in found["ours"]["answers"]] == [3, 3]
    assert found["threads"] == 1


def test_a_missing_llama_cpp_is_named_with_the_way_to_get_it(model, monkeypatch):
    monkeypatch.setattr(against, "find_spec", lambda name: None)
    with pytest.raises(TurbosparkError, match="llama-cpp-python") as refused:
        compare(model, 1, Plan(), "llama.cpp")
    assert refused.value.code == "peer_missing"
    assert "pip install" in refused.value.hint


def test_a_process_that_ends_is_told():
    with pytest.raises(TurbosparkError, match="'turbospark' ended"):
        Process("turbospark", "no-such-model", 1, 64)


@pytest.mark.parametrize(("flag", "value"), [("--threads", "0"), ("--threads", "two"), ("--rounds", "0")])
def test_numbers_that_measure_nothing_are_refused(model, flag, value, capsys):
    assert main(["bench", model, flag, value]) == 2
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize("shapes", ["llama-8b", "deepseek-v2-lite"])
def test_a_random_model_runs(shapes, tmp_path, monkeypatch):
    of = random_model.MODELS[shapes]

    def few_layers(format, experts):
        family, numbers, vocab, tensors = of(format, experts)
        kept = [t for t in tensors if not t[0].startswith("blk.") or t[0].startswith(("blk.0.", "blk.1."))]
        return (
            family,
            {**numbers, "block_count": 2, "vocab_size": 512},
            512,
            ((name, (512, shape[1]) if shape[0] == vocab else shape, kind) for name, shape, kind in kept),
        )

    monkeypatch.setitem(random_model.MODELS, shapes, few_layers)
    random_model.write(str(tmp_path / "m.gguf"), shapes, "Q4_0", experts=6)
    model = turbospark.load(tmp_path / "m.gguf", max_context=16)
    assert len(model.generate("abc", turbospark.SamplingParams(max_new=2, ignore_eos=True)).token_ids) == 2
    logits = model.logits([3, 1, 4])
    assert logits.shape == (3, 512)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.01
