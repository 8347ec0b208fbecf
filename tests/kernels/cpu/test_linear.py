"""Products of rows: exact integers, float sums, and bits that do not depend on company."""

import numpy as np
import pytest

from tests.kernels.cpu.weights import CODED, PLAIN, blocks, columns, dequantised, random_codes
from turbospark import quant
from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu import linear, threads
from turbospark.kernels.cpu.linear import Weight, prepare
from turbospark.quant.tensor import QTensor

N = 37  # no multiple of a tile
EVERY = [(format, k) for format in CODED for k in columns(format)]


def activations(m: int, k: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)


def whole_numbers(m: int, k: int) -> np.ndarray:
    """Each block has a 127 of either sign, so that its scale is 1 and nothing is rounded."""
    rng = np.random.default_rng(2)
    x = rng.integers(-1, 2, (m, k // 32, 32)).astype(np.float32)
    place = rng.integers(0, 32, (m, k // 32, 1))
    np.put_along_axis(x, place, rng.choice([-127, 127], (m, k // 32, 1)).astype(np.float32), -1)
    return x.reshape(m, k)


@pytest.mark.parametrize(("format", "k"), EVERY)
def test_whole_numbers_multiply_exactly(format, k):
    w, x = blocks(format, N, k, random_codes()), whole_numbers(5, k)
    values = quant.decode(w).astype(np.int64)
    want = x.astype(np.int64) @ values.T
    assert np.abs(want).max() < 1 << 24
    assert np.array_equal(Weight(w).product(x), want)
    assert np.array_equal(Weight(w).product(x[:1]), want[:1])


@pytest.mark.parametrize(("format", "k"), EVERY)
def test_real_numbers_multiply_as_their_quantised_copies(format, k):
    w = blocks(format, N, k, random_codes(3), d=0.0123)
    x = activations(4, k) * np.float32(10) ** np.arange(-2, 2, dtype=np.float32)[:, None]
    values, near = quant.decode(w).astype(np.float64), dequantised(x)
    size = np.abs(near) @ np.abs(values).T
    assert np.all(np.abs(Weight(w).product(x) - near @ values.T) <= 4e-7 * size)
    assert np.all(np.abs(Weight(w).product(x) - x.astype(np.float64) @ values.T) <= 0.02 * size)


@pytest.mark.parametrize("format", [*CODED, *PLAIN])
@pytest.mark.parametrize("exact", [False, True])
def test_a_row_has_the_same_bits_in_any_company(format, exact):
    k = 100 if format in PLAIN else columns(format)[-1]
    w = quant.encode(activations(N, k, 4), format)
    weight, x = Weight(w, exact), activations(257, k)
    alone = np.concatenate([weight.product(row[None]) for row in x])
    for m in (*range(2, 17), 17, 33, 256):
        assert np.array_equal(weight.product(x[:m]), alone[:m]), m
        assert np.array_equal(weight.product(x[-m:]), alone[-m:]), m


@pytest.mark.parametrize("format", CODED)
def test_rows_wider_than_a_cache_keeps_have_the_same_bits_in_any_company(format):
    k = 2560 + columns(format)[-1]
    weight, x = Weight(quant.encode(activations(N, k, 4), format)), activations(8, k)
    alone = np.concatenate([weight.product(row[None]) for row in x])
    for m in range(2, 9):
        assert np.array_equal(weight.product(x[:m]), alone[:m]), m


@pytest.mark.parametrize("format", [*CODED, *PLAIN])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_any_range_of_outputs_can_be_formed_and_nothing_beside_it_is_touched(format, m):
    k = 256
    weight, x = Weight(quant.encode(activations(N, k, 5), format)), activations(m, k)
    whole, quants = weight.product(x), linear.quantised(x)
    for start, stop in ((0, 1), (3, 20), (20, N), (7, 7)):
        y = np.full((m, N), np.float32(7))
        call = (x.ctypes.data, quants.ctypes.data, m, y.ctypes.data, N, start, stop, 0)
        linear.rows(weight.address, *call)
        want = np.full((m, N), np.float32(7))
        want[:, start:stop] = whole[:, start:stop]
        assert np.array_equal(y, want)


@pytest.mark.parametrize("format", ["Q8_0", "Q6_K", "BF16", "IQ4_NL"])
@pytest.mark.parametrize("m", range(1, 11))
def test_a_product_is_added_to_what_is_there(format, m):
    k = 256
    w = blocks_of_any(format, k)
    weight, x, y = prepare(w), activations(m, k), activations(m, N, 6)
    want = y + weight.product(x)
    assert np.array_equal(weight.product(x, y, add=True), want)


@pytest.mark.parametrize("format", CODED)
@pytest.mark.parametrize("code", [0x00, 0x7F, 0x80, 0x81, 0xFF])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_codes_and_activations_do_not_overflow(format, code, sign):
    k = 512
    w = blocks(format, 3, k, code)
    x = np.full((3, k), np.float32(127 * sign))
    x[2, ::2] *= -1
    values = quant.decode(w).astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(values).T
    for m in (1, 3):
        assert np.all(np.abs(Weight(w).product(x[:m]) - x[:m] @ values.T) <= 4e-7 * size[:m])


@pytest.mark.parametrize("format", CODED)
def test_the_smallest_scales_count(format):
    k = 256
    w = blocks(format, N, k, random_codes(8), d=2.0**-24)
    x = whole_numbers(3, k)
    assert np.array_equal(Weight(w).product(x), x.astype(np.float64) @ quant.decode(w).astype(np.float64).T)


@pytest.mark.parametrize(("format", "k"), [*EVERY, *((f, k) for f in PLAIN for k in (1, 7, 16, 33, 160))])
def test_exact_products_have_the_bits_of_the_decoded_matrix(format, k):
    w = quant.encode(activations(N, k, 9), format)
    x = activations(6, k)
    values = quant.decode(w)
    float32 = Weight(quant.encode(values, "F32"))
    for m in (1, 6):
        y = Weight(w, exact=True).product(x[:m])
        assert np.array_equal(y, float32.product(x[:m]))
        size = np.abs(x[:m]).astype(np.float64) @ np.abs(values).T
        assert np.all(np.abs(y - x[:m].astype(np.float64) @ values.T) <= 4e-7 * size)


@pytest.mark.parametrize("special", [np.inf, np.nan])
@pytest.mark.parametrize("format", ["Q8_0", "Q4_K", "F16"])
def test_what_is_not_finite_does_not_become_a_number(format, special):
    weight, x = Weight(quant.encode(activations(N, 256, 10), format)), activations(3, 256)
    x[1, 70] = special
    y = weight.product(x)
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[[0, 2]]).all()


def test_half_floats_that_are_infinite_stay_so():
    w = QTensor("w", "F16", (1, 8), np.array([[0, np.inf, 1, 2, 3, 4, 5, 6]], np.float16).view(np.uint8))
    assert np.isposinf(Weight(w).product(np.ones((1, 8), np.float32)))


def test_formats_without_a_kernel_are_multiplied_by_tiles(monkeypatch):
    monkeypatch.setattr(linear, "TILE_BYTES", 1 << 15)  # two tiles
    w, x = blocks_of_any("IQ4_NL", 256), activations(5, 256)
    float32 = Weight(quant.encode(quant.decode(w), "F32"))
    assert np.array_equal(prepare(w).product(x), float32.product(x))


def test_affine_scales_in_another_type_are_multiplied_by_tiles():
    w = quant.encode(activations(N, 256, 11), "INT4")
    other = QTensor("w", "INT4", w.shape, w.data, w.scales.astype(np.float32), w.biases.astype(np.float32))
    x = activations(2, 256)
    assert np.array_equal(prepare(other).product(x), Weight(w, exact=True).product(x))


def test_a_weight_without_a_kernel_is_refused():
    with pytest.raises(TurbosparkError, match="IQ4_NL"):
        Weight(blocks_of_any("IQ4_NL", 256))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_bits_do_not_depend_on_the_number_of_threads(count):
    weight, before = Weight(quant.encode(activations(200, 576, 12), "Q4_1")), threads.count()
    x = activations(9, 576)
    want = np.concatenate([weight.product(row[None]) for row in x])
    threads.set_count(count)
    try:
        assert np.array_equal(weight.product(x), want)
    finally:
        threads.set_count(before)


def blocks_of_any(format: str, k: int) -> QTensor:
    if quant.get_format(format).encode is not None:
        return quant.encode(activations(N, k, 7), format)
    fmt = quant.get_format(format)
    data = np.resize(random_codes(), (N, k // fmt.block, fmt.nbytes))
    data[..., :2] = np.array([0.01], np.float16).view(np.uint8)
    return QTensor("w", format, (N, k), data.reshape(N, -1))
