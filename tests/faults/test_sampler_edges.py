"""Fault 57: settings at their extremes draw a token by the law or are refused; never NaN."""

import warnings

import numpy as np
import pytest

from tests.engine.law import follows, law_of
from turbospark.engine.params import SamplingParams
from turbospark.engine.sampler import Sampler
from turbospark.errors import TurbosparkError

LOGITS = np.array([0.5, 3.0, -1.0, 2.9, 3.0, -40.0, 88.0, 87.5], np.float32)


def sampler(seed=0, prompt=(0, 6), **asked):
    asked = {"temperature": 1.0, "top_p": 1.0, **asked}
    return Sampler(SamplingParams(seed=seed, **asked).resolve({}, 8), prompt, 8)


def tokens(count=40, logits=LOGITS, **asked):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = [sampler(seed, logprobs=8, **asked).draw(logits, 5) for seed in range(count)]
    assert all(np.isfinite(d.logprob) and not np.isnan([value for _, value in d.top]).any() for d in drawn)
    return [d.token for d in drawn]


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
def test_a_tiny_temperature_takes_the_best(temperature):
    assert set(tokens(temperature=temperature)) == {6}
    tied = np.array([1, 7, 7, 0, 0, 0, 0, -np.inf], np.float32)
    assert set(tokens(temperature=temperature, logits=tied)) == {1, 2}


@pytest.mark.parametrize("temperature", [1e4, 1e300])
def test_a_huge_temperature_is_nearly_uniform(temperature):
    drawn = tokens(1500, temperature=temperature)
    assert follows(np.bincount(drawn, minlength=8), law_of(LOGITS.tolist(), temperature))


def test_top_p_zero_and_top_k_one_take_the_best():
    flat = np.zeros(8, np.float32)
    assert set(tokens(top_p=0.0, temperature=1e4)) == {6}
    assert set(tokens(top_k=1, temperature=1e4)) == {6}
    assert set(tokens(min_p=1.0, temperature=1e4)) == {6}
    assert set(tokens(top_p=0.0, logits=flat)) == set(tokens(top_k=1, logits=flat)) == {0}
    assert len(set(tokens(min_p=1.0, logits=flat))) == 8


@pytest.mark.parametrize("off", [{"top_k": 8}, {"top_k": 9}, {"top_k": 10**9}, {"top_k": 0}, {"top_k": -1}])
def test_top_k_of_the_vocabulary_and_above_is_off(off):
    assert tokens(temperature=30.0, **off) == tokens(temperature=30.0)


def test_all_tokens_banned_is_refused():
    for temperature in (0.0, 1.0):
        with pytest.raises(TurbosparkError, match="position 5") as caught:
            tokens(temperature=temperature, logit_bias=dict.fromkeys(range(8), -np.inf))
        assert caught.value.code == "nothing_to_sample"


def test_all_tokens_with_a_chance_banned_is_refused():
    logits = np.where(np.arange(8) < 2, LOGITS, -np.inf).astype(np.float32)
    with pytest.raises(TurbosparkError) as caught:
        tokens(logits=logits, logit_bias={0: -np.inf, 1: -np.inf})
    assert caught.value.code == "nothing_to_sample"


@pytest.mark.parametrize("asked", [{"top_k": 8}, {"top_p": 0.999999}, {"temperature": 1e4}, {"min_p": 1e-300}])
def test_a_banned_token_is_never_drawn(asked):
    only = {i: -np.inf for i in range(8) if i != 2}
    assert set(tokens(logit_bias=only, **asked)) == {2}


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("bias", [-100.0, -1e308, 1e308])
def test_one_large_bias_for_all_changes_no_order(temperature, bias):
    drawn = tokens(temperature=temperature, logit_bias=dict.fromkeys(range(8), bias))
    assert drawn == tokens(temperature=temperature) or abs(bias) == 1e308  # there float64 makes all equal


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e300, 1.7e308])
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 1e4])
def test_a_penalty_that_overflows_is_neither_a_ban_nor_infinity(penalty, temperature):
    logits = np.array([-3.0, -2.0, -np.inf, 4.0, 0, 0, 0, 0], np.float32)
    drawn = tokens(20, logits, temperature=temperature, repetition_penalty=penalty, prompt=range(8))
    assert 2 not in drawn
    huge = sampler(repetition_penalty=penalty, temperature=temperature, prompt=range(4))
    assert huge.draw(np.array([-3, -2, -5, -4, *[-np.inf] * 4], np.float32), 0).token < 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("index", [0, 3, 7])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_with_a_nan_or_an_infinity_are_refused_by_position(bad, index, temperature):
    logits = LOGITS.copy()
    logits[index] = bad
    with pytest.raises(TurbosparkError, match="position 1234") as caught:
        sampler(temperature=temperature).draw(logits, 1234)
    assert caught.value.code == "non_finite_logits"


def test_a_nan_among_many_logits_is_found_wherever_it_lies():
    one = Sampler(SamplingParams(temperature=0).resolve({}, 1000), [], 1000)
    for index in range(1000):
        logits = np.linspace(-5, 5, 1000, dtype=np.float32)
        logits[index] = np.nan
        with pytest.raises(TurbosparkError, match="nan"):
            one.draw(logits, 0)


def test_logits_that_are_all_minus_infinity_are_refused():
    with pytest.raises(TurbosparkError, match="-inf") as caught:
        sampler().draw(np.full(8, -np.inf, np.float32), 0)
    assert caught.value.code == "non_finite_logits"
