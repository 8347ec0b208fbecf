"""Single operations against the reference, and each row by itself."""

import numpy as np
import pytest

from turbospark.config.model import Rope
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows

CPU, REFERENCE = CpuKernels(), ReferenceKernels()
WIDTHS = (1, 7, 8, 24, 100, 576)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(operation, x: np.ndarray) -> None:
    """Close to the reference, and the same bits for a row alone."""
    ours = operation(CPU, x)
    np.testing.assert_allclose(ours, operation(REFERENCE, x), rtol=3e-6, atol=3e-6)
    alone = np.concatenate([operation(CPU, x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_array_equal(alone, ours)


@pytest.mark.parametrize("width", WIDTHS)
def test_norms(width):
    x, weight = random(5, width) * 3, random(width, seed=1)
    check(lambda k, x: k.norm(x, k.vector(weight), 1e-5), x)
    check(lambda k, x: k.norm(x, None, 1e-5), x)
    check(lambda k, x: k.l2norm(x, 1e-6), x)
    check(lambda k, x: k.norm(x, None, 1e-5), random(3, 2, width))


def test_the_eps_of_a_norm_counts():
    x = random(2, 16) * 1e-3
    assert np.abs(CPU.norm(x, None, 1e-5) - CPU.norm(x, None, 1e-6)).max() > 0.01


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "dim"), [(16, 16), (24, 10), (64, 64)])
def test_rotation(interleaved, width, dim):
    rope = Rope(1000.0, dim, interleaved)
    x, rows = random(6, 3, width), Rows.of([(0, 4, [1, 2, 3, 4], 4), (1, 90, [5, 6], 2)])
    tables = {k.name: k.rotary(rope, 100) for k in (CPU, REFERENCE)}
    ours, theirs = (k.rope(x, rows, tables[k.name]) for k in (CPU, REFERENCE))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert np.abs(ours - CPU.rope(x, Rows.of([(0, 5, [1] * 6, 6)]), tables["cpu"])).max() > 0.1


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates(activation):
    up = random(5, 100, seed=2)
    check(lambda k, x: k.gate(x, up[: len(x)] * 0 + up[0], activation), random(5, 100))


def test_sigmoid_and_softcap():
    check(lambda k, x: k.sigmoid(x), random(5, 33) * 4)
    check(lambda k, x: k.softcap(x, 2.0), random(5, 33) * 4)


def test_only_the_rows_asked_for_are_decoded():
    from turbospark import quant

    table = quant.encode(random(40, 64), "Q8_0")
    ids = np.array([3, 3, 39, 0])
    np.testing.assert_array_equal(CPU.embed(ids, CPU.weight(table)), quant.decode(table)[ids])
