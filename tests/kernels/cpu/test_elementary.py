"""Elementary functions: their error, and that a value's bits depend on nothing but the value."""

import numpy as np
import pytest
from numba import types

from turbospark.kernels.cpu import rowwise
from turbospark.kernels.cpu.compile import intrinsic, kernel
from turbospark.kernels.cpu.elementary import CODE, HIGHEST, LOWEST, exp
from turbospark.kernels.cpu.lanes import along
from turbospark.kernels.cpu.vector import emitted


@intrinsic
def _exp_row(typingctx, x, out, count):
    def write(e, x, out, count):
        along(e, count, lambda lanes: lanes.store(exp(e, lanes.load(x)), out))

    return types.void(*[types.int64] * 3), emitted(write)


@kernel
def exponentials(x, out):
    _exp_row(x.ctypes.data, out.ctypes.data, x.size)


def of(x, function=exponentials, *arguments):
    out = np.full(len(x) + 8, np.float32(7))
    function(np.asarray(x, np.float32)[None], out[None, : len(x)], *arguments)
    assert np.all(out[len(x) :] == 7), "elements behind the row were written"
    return out[: len(x)]


def test_exp_is_within_its_bound_everywhere():
    x = np.linspace(LOWEST, HIGHEST, 1_000_003).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    assert np.abs(of(x) / want - 1).max() < 1.5e-7


def test_exp_is_exact_where_attention_relies_on_it():
    assert of([0.0, -0.0]).tolist() == [1.0, 1.0]
    assert of([-np.inf, -500.0]).max() < 2e-38
    assert np.isfinite(of([np.inf, 500.0])).all()
    assert np.isnan(of([np.nan])).all()


@pytest.mark.parametrize(("name", "function"), [("exp", exponentials), ("sigmoid", rowwise.sigmoid)])
def test_a_value_has_the_same_bits_in_every_lane(name, function):
    values = np.random.default_rng(0).uniform(-20, 20, 37).astype(np.float32)
    alone = np.concatenate([of([value], function) for value in values])
    for shift in range(1, 20):
        assert np.array_equal(of(np.roll(values, shift), function), np.roll(alone, shift))


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("name", "function"), [("silu", silu), ("gelu_tanh", gelu_tanh)])
def test_activations_are_close_to_their_formulas(name, function):
    x = np.concatenate([np.linspace(-30, 30, 4001), [-85.0, 85.0, 0.0]]).astype(np.float32)
    up = np.random.default_rng(1).standard_normal(len(x)).astype(np.float32)
    want = function(x.astype(np.float64)) * up
    error = np.abs(of(x, rowwise.gate, CODE[name], up[None]) - want)
    assert (error / (np.abs(x * up) + 1e-30)).max() < 4e-7


def test_softcap_and_sigmoid_are_close_to_their_formulas():
    x = np.linspace(-300, 300, 5003).astype(np.float32)
    assert np.abs(of(x, rowwise.softcap, np.float32(30)) - 30 * np.tanh(x.astype(np.float64) / 30)).max() < 1e-5
    x = x / 4
    assert np.abs(of(x, rowwise.sigmoid) - 1 / (1 + np.exp(-x.astype(np.float64)))).max() < 2e-7
