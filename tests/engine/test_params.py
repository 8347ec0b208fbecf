"""Sampling parameters: refused when wrong, completed from the model's own settings."""

import math

import numpy as np
import pytest

from turbospark.engine.params import SamplingParams
from turbospark.errors import TurbosparkError

BAD = {
    "max_new": [-1, 1.5, True, "8"],
    "temperature": [-0.1, math.nan, math.inf, True, "1"],
    "top_k": [-2, 1.0, False],
    "top_p": [-0.01, 1.01, math.nan, None.__class__],
    "min_p": [-0.01, 1.01, math.nan, True],
    "repetition_penalty": [0, -1.0, math.inf, math.nan],
    "presence_penalty": [-2.1, 2.1, math.nan],
    "frequency_penalty": [-2.1, 2.1, math.nan, "0"],
    "logit_bias": [[1], {"1": 0.0}, {True: 0.0}, {-1: 0.0}, {1: math.nan}, {1: math.inf}, {1: None}],
    "seed": [-1, 2**64, 1.0, True],
    "stop": ["", [""], ["a", ""], [1], 7, b"a", "\ud800"],
    "stop_token_ids": ["12", 12, [-1], [True], [1.0]],
    "ignore_eos": [None, 0, "no"],
    "logprobs": [-1, True, 1.0],
    "speculative": [None, "on", True, -1, 16, 1.0],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD.items() for v in values])
def test_a_bad_value_is_refused_with_its_field_and_its_value(field, value):
    with pytest.raises(TurbosparkError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.code == "invalid_parameter"
    assert field in caught.value.message
    assert "must be" in caught.value.message
    assert "has " in caught.value.message


def test_a_refusal_names_value_and_range():
    with pytest.raises(TurbosparkError, match=r"top_p must be a number in \[0, 1\], has 1\.5"):
        SamplingParams(top_p=1.5)


@pytest.mark.parametrize("field", ["temperature", "seed", "top_k", "max_new"])
def test_a_number_too_long_to_print_is_refused_like_any_other(field):
    digits = -(10**5000) if field != "temperature" else 10**5000
    with pytest.raises(TurbosparkError, match=f"{field} must be"):
        SamplingParams(**{field: digits})


def test_zero_proposals_point_to_the_right_spelling():
    with pytest.raises(TurbosparkError) as caught:
        SamplingParams(speculative=0)
    assert '"off"' in caught.value.hint


def test_the_borders_of_every_range_are_allowed():
    SamplingParams(max_new=0, temperature=0, top_k=-1, top_p=0, min_p=1, seed=0, logprobs=0, speculative=1)
    SamplingParams(top_k=0, top_p=1, min_p=0, seed=2**64 - 1, presence_penalty=-2, frequency_penalty=2)
    SamplingParams(logit_bias={0: -math.inf, 5: 1e308}, stop=[], stop_token_ids=(), speculative=15)


def test_numpy_scalars_become_plain_numbers():
    params = SamplingParams(top_k=np.int32(4), temperature=np.float32(0.5), stop_token_ids=[np.int64(3)])
    assert (type(params.top_k), type(params.temperature)) == (int, float)
    assert type(params.stop_token_ids[0]) is int


def test_later_changes_of_the_callers_lists_change_nothing():
    stop, bias = ["a"], {1: 2.0}
    params = SamplingParams(stop=stop, logit_bias=bias)
    stop.append("b")
    bias[2] = 1.0
    assert params.stops == (b"a",)
    assert params.logit_bias == {1: 2.0}


def test_one_stop_string_and_a_list_of_one_are_the_same():
    assert SamplingParams(stop="né") == SamplingParams(stop=["né"])
    assert SamplingParams(stop="né").stops == ("né".encode(),)
    assert SamplingParams().stops == ()


def test_without_anything_the_defaults_apply():
    params = SamplingParams().resolve({}, 10)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.95, 0, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.logit_bias, params.stop, params.stop_token_ids) == ({}, (), ())
    assert (params.max_new, params.logprobs) == (None, None)


def test_the_request_wins_over_the_model_and_the_model_over_the_defaults():
    config = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.8,
        "min_p": 0.01,
        "repetition_penalty": 1.05,
        "do_sample": True,
    }
    params = SamplingParams(top_k=3, top_p=1.0).resolve(config, 10)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 3, 1.0)
    assert (params.min_p, params.repetition_penalty) == (0.01, 1.05)
    assert SamplingParams().resolve({"top_k": None}, 10).top_k == 0


def test_a_model_that_does_not_sample_is_greedy_unless_asked():
    config = {"do_sample": False, "temperature": 0.6}
    assert SamplingParams().resolve(config, 10).greedy
    assert SamplingParams(temperature=1.0).resolve(config, 10).temperature == 1.0


@pytest.mark.parametrize(
    "config", [{"top_p": 2.0}, {"temperature": "warm"}, {"do_sample": 0}, {"repetition_penalty": math.nan}]
)
def test_a_bad_generation_config_is_named(config):
    with pytest.raises(TurbosparkError, match="generation config") as caught:
        SamplingParams().resolve(config, 10)
    assert caught.value.code == "invalid_parameter"
    assert next(iter(config)) in caught.value.message


@pytest.mark.parametrize("asked", [{"logit_bias": {10: 1.0}}, {"stop_token_ids": [3, 10]}, {"logprobs": 11}])
def test_ids_and_logprobs_must_fit_the_vocabulary(asked):
    with pytest.raises(TurbosparkError) as caught:
        SamplingParams(**asked).resolve({}, 10)
    assert "vocabulary size 10" in caught.value.message
    assert caught.value.message.endswith(str(11 if "logprobs" in asked else 10))
    SamplingParams(**asked).resolve({}, 11)


def test_a_seed_is_drawn_once_and_can_be_repeated():
    seeds = {SamplingParams().resolve({}, 10).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**53 for seed in seeds)
    again = SamplingParams(seed=min(seeds)).resolve({}, 10)
    assert again.seed == min(seeds)
    assert again.resolve({"temperature": 0.1}, 10) == again
