"""Numbers of a file's declarations: bounded, so that no later formula or loop runs away on them."""

import pytest

from tests.tiny.deepseek2 import V3, YARN
from turbospark.config import deepseek2
from turbospark.config.keys import Keys
from turbospark.errors import TurbosparkError


def refused(read, *words: str) -> None:
    with pytest.raises(TurbosparkError) as caught:
        read()
    assert caught.value.code == "bad_config"
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308, float("inf"), float("nan"), "1", True, [1.0]])
def test_a_number_that_float32_cannot_hold_is_refused(value):
    refused(lambda: Keys({"a": value}, "config.json").float("a"), "config.json: a is", "float32")


def test_a_number_below_its_minimum_is_refused_with_both():
    refused(lambda: Keys({"a": -1}, "f").float("a", minimum=0), "a is -1", "at least 0")
    assert Keys({"a": -1}, "f").float("a") == -1.0


@pytest.mark.parametrize("count", [4097, 2**31 - 1])
def test_a_number_of_layers_is_bounded(count):
    refused(lambda: Keys({"a": count}, "f").layers("a"), f"a is {count}", "at most 4096")
    assert (Keys({"a": 4096}, "f").layers("a"), Keys({}, "f").layers("a", 0)) == (4096, 0)


@pytest.mark.parametrize("name", ["beta_fast", "beta_slow", "mscale", "mscale_all_dim", "factor"])
def test_yarn_numbers_that_would_overflow_are_refused(name):
    config = {**V3, "rope_scaling": {**YARN, name: 1e308}}
    refused(lambda: deepseek2.from_hf(Keys(config, "f")), name, "1e+308")


def test_a_negative_epsilon_is_refused():
    refused(lambda: deepseek2.from_hf(Keys({**V3, "rms_norm_eps": -1e-6}, "f")), "rms_norm_eps is -1e-06")
