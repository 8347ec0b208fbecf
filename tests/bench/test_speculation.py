"""What a drafter does for a model, as `turbospark bench --speculative` tells it."""

import json
import re

import pytest

import turbospark
from tests.tiny.alphabet import write_alphabet
from turbospark.bench import speculation
from turbospark.bench.speculation import Outcome, Plan, Report
from turbospark.cli.main import main
from turbospark.errors import TurbosparkError

FEW = ["--speculative-drafter", "ngram", "--kinds", "code", "--prompts", "1", "--tokens", "20", "--threads", "1"]


@pytest.fixture
def model(tmp_path):
    return str(write_alphabet(tmp_path / "alphabet.gguf", context=2048))


def told(capsys, *args):
    assert main(["bench", *args]) == 0
    return capsys.readouterr().out


def refused(capsys, *args):
    assert main(["bench", *args]) != 0
    return capsys.readouterr().err


def report(**outcomes):
    costs = {1: 0.010, 2: 0.012, 4: 0.018}
    return Report("m", "d", 1, Plan(kinds=("code",)), costs, [*outcomes.values()])


def test_a_model_without_a_chat_template_continues_the_prompts(tmp_path, capsys):
    plain = str(write_alphabet(tmp_path / "plain.gguf", template=None, context=2048))
    assert "| code | off | 1.00 |" in told(capsys, plain, "--speculative", *FEW, "--proposals", "1")


def test_the_table_has_a_line_for_every_setting_and_the_plot_is_a_png(model, capsys, tmp_path):
    plot = tmp_path / "plot.png"
    out = told(capsys, model, "--speculative", *FEW, "--proposals", "1,3,auto", "--plot", str(plot))
    assert re.search(r"^\| rows M \| 1 \| 2 \| 4 \|$", out, re.MULTILINE)
    assert re.findall(r"^\| code \| (\w+) \|", out, re.MULTILINE) == ["off", "1", "3", "auto"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_has_what_the_table_has(model, capsys):
    out = json.loads(told(capsys, model, "--speculative", *FEW, "--proposals", "2", "--json"))
    (two,) = out["outcomes"]
    assert sorted(out["costs"]) == ["1", "3"]
    assert (two["setting"], two["tokens"]) == (2, 19)
    assert two["gain"] == pytest.approx(two["plain_seconds"] / two["seconds"])
    assert two["rounds"] > 0
    assert two["predicted"] > 0


def test_tokens_a_round_and_acceptance_are_of_all_answers_together():
    outcome = Outcome("code", 3, tokens=30, seconds=0.2, rounds=10, proposed=[10, 10, 8], accepted=[9, 5, 2])
    outcome.plain_seconds = 0.3
    assert outcome.tokens_per_round == pytest.approx(2.6)
    assert outcome.acceptance == pytest.approx([0.9, 0.5, 0.25])
    assert outcome.gain == pytest.approx(1.5)
    assert report(outcome=outcome).plain("code") == pytest.approx(100)


def test_the_prediction_is_tokens_a_round_over_the_cost_of_a_round():
    outcome = Outcome("code", 3, rounds=10, proposed=[10, 10, 10], accepted=[9, 6, 2], draft_s=0.04, commit_s=0.01)
    outcome.tokens, outcome.plain_seconds = 27, 0.27
    # a plain step takes 10 ms: c(4) = 1.8, draft and commit are 5 ms a round, half a step
    assert report(outcome=outcome).predicted(outcome) == pytest.approx(2.7 / (1.8 + 0.5))
    auto = Outcome("code", "auto", rounds=10)
    assert report(auto=auto).predicted(auto) is None


def test_an_answer_that_differs_from_plain_decoding_ends_the_measurement(model, monkeypatch):
    lm = turbospark.load(model, "reference", 1024, slots=1, drafter="ngram")
    race = speculation.race

    def wrong(model, prompt, setting, plan, tokens):
        plain, other = race(model, prompt, setting, plan, tokens)
        if setting == 2:
            other.request.context[other.request.prompt_length + 3] += 1
        return plain, other

    monkeypatch.setattr(speculation, "race", wrong)
    plan = Plan(("prose",), (1, 2), prompts=1, tokens=8, rounds=1)
    with pytest.raises(TurbosparkError, match="2 proposals: token 3 of the answer"):
        speculation.measure(lm, "m", 1, plan)


def test_costs_are_taken_at_every_size_and_the_slot_is_given_back(model):
    lm = turbospark.load(model, "reference", 1024, slots=1, drafter="ngram")
    costs = speculation.forward_costs(lm, [1, 4], 2)
    assert sorted(costs) == [1, 4]
    assert all(seconds > 0 for seconds in costs.values())
    assert lm.generate("a", turbospark.SamplingParams(max_new=3, temperature=0)).text == "bcd"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--proposals", "16"], "16 proposals: the drafter ngram makes 1 to 15"),
        (["--proposals", "0"], "0 proposals: the drafter ngram makes 1 to 15"),
        (["--proposals", "1,many"], "has '1,many'"),
        (["--kinds", "code,verse"], "'verse' is not known; known: code, arithmetic, prose"),
        (["--prompts", "0"], "--prompts must be at least 1, has 0"),
        (["--tokens", "0"], "--tokens must be at least 1, has 0"),
        (["--threads", "1,2", "--plot", "p.png"], "--plot takes one --threads, has 2"),
        (["--speculative-drafter", "auto"], "needs a drafter"),
    ],
)
def test_what_cannot_be_measured_is_refused(model, capsys, flags, says):
    assert says in refused(capsys, model, "--speculative", *FEW, *flags)
