"""Quantising: the error is bounded by the step, and the bytes are those of the `gguf` package where it writes."""

import gguf
import numpy as np
import pytest

from turbospark.errors import TurbosparkError
from turbospark.quant import FORMATS, decode, encode

WRITTEN = [name for name, fmt in FORMATS.items() if fmt.encode is not None]


def values(rows: int = 6, columns: int = 512) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32) * np.float32(0.05)


@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_bytes_are_those_of_ggml(name):
    x = values()
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name]).view(np.uint8)
    np.testing.assert_array_equal(encode(x, name).data, expected)


# A group's step is its range over the levels. The scale is rounded too: to a float16, to 6 bits of the block's
# largest, or up to a BF16.
@pytest.mark.parametrize(
    ("name", "group", "levels", "scale_rounding"),
    [
        ("Q4_1", 32, 15, 0.01),
        ("Q5_1", 32, 31, 0.02),
        ("INT4", 64, 15, 0.01),
        ("INT8", 64, 255, 0.01),
        ("Q4_K", 32, 15, 15 / 126),
        ("Q5_K", 32, 31, 31 / 126),
    ],
)
def test_error_is_within_half_a_step_of_the_range(name, group, levels, scale_rounding):
    x = values() + np.float32(0.02)
    groups = x.reshape(len(x), -1, group)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    step = (high - low).reshape(len(x), -1) / levels
    block = step if group == FORMATS[name].block else step.reshape(len(x), -1, 8).max(axis=-1).repeat(8, axis=-1)
    error = np.abs(decode(encode(x, name)).reshape(groups.shape) - groups).max(axis=-1)
    bound = step * 0.51 + block * 2 * scale_rounding
    assert (error <= bound).all()
    assert (error > step * 0.3).all()  # the bound is near: codes are used up to the ends


@pytest.mark.parametrize(("name", "group", "half"), [("Q4_0", 32, 8), ("Q5_0", 32, 16), ("Q8_0", 32, 127)])
def test_error_is_within_a_step_of_the_peak(name, group, half):
    x = values()
    groups = x.reshape(len(x), -1, group)
    step = np.abs(groups).max(axis=-1) / half
    error = np.abs(decode(encode(x, name)).reshape(groups.shape) - groups).max(axis=-1)
    assert (error <= step * (1.01 if half < 127 else 0.6)).all()
    assert (error > step * 0.3).all()


def test_q6_k_error_is_within_a_step_of_the_peak():
    x = values()
    groups = x.reshape(len(x), -1, 16)
    step = np.abs(groups).max(axis=-1) / 32
    largest = step.reshape(len(x), -1, 16).max(axis=-1).repeat(16, axis=-1)
    error = np.abs(decode(encode(x, "Q6_K")).reshape(groups.shape) - groups).max(axis=-1)
    assert (error <= step * 1.01 + largest * 32 / 256).all()
    assert (error > step * 0.3).all()


@pytest.mark.parametrize("name", ["INT4", "INT8"])
def test_affine_codes_reach_every_value(name):
    x = values() + np.float32(1)  # a bias rounded to nearest would miss the ends by many steps of INT8
    t = encode(x, name)
    error = np.abs(decode(t) - x).reshape(len(x), -1, 64).max(axis=-1)
    assert (error <= t.scales.astype(np.float32) * 0.5001 + 1e-7).all()


NOISE_PERCENT = {
    **{"Q4_0": 8.54, "Q4_1": 7.73, "Q5_0": 4.25, "Q5_1": 3.77, "Q8_0": 0.533, "Q4_K": 7.74, "Q5_K": 3.80, "Q6_K": 1.86},
    **{"INT4": 8.91, "INT8": 0.533, "F8_E4M3": 2.65, "F8_E5M2": 5.29, "F16": 0.0207, "BF16": 0.166},
}


@pytest.mark.parametrize(("name", "percent"), NOISE_PERCENT.items())
def test_noise_on_normal_values_is_what_the_format_costs(name, percent):
    x = values(64)
    noise = 100 * np.sqrt(np.mean((decode(encode(x, name)) - x) ** 2) / np.mean(x**2))
    assert noise == pytest.approx(percent, rel=0.02)


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E5M2"])
def test_fp8_error_is_within_half_a_code(name):
    x = np.random.default_rng(4).standard_normal((300, 130)).astype(np.float32)
    t = encode(x, name)
    assert t.scales.shape == (3, 2)
    relative = 2.0**-4 if name == "F8_E4M3" else 2.0**-3
    smallest = t.scales.max() * 2.0**-9
    assert (np.abs(decode(t) - x) <= np.abs(x) * relative * 1.001 + smallest).all()
    largest = {"F8_E4M3": 0x7E, "F8_E5M2": 0x7B}[name]
    assert (t.data & 0x7F).max() == largest


@pytest.mark.parametrize("name", WRITTEN)
def test_zeros_constants_and_tiny_values_survive(name):
    x = np.zeros((2, 256), dtype=np.float32)
    assert (decode(encode(x, name)) == 0).all()
    x[0] = 0.5
    np.testing.assert_allclose(decode(encode(x, name)), x, rtol=0.02)
    x[:] = np.float32(1e-41)  # below the reach of a reciprocal
    got = decode(encode(x, name))
    assert np.isfinite(got).all()
    assert np.abs(got).max() <= 1e-7


@pytest.mark.parametrize("name", WRITTEN)
def test_leading_axes_are_kept(name):
    x = values(6)
    t = encode(x.reshape(2, 3, 512), name, "experts")
    assert (t.name, t.shape) == ("experts", (2, 3, 512))
    if not name.startswith("F8"):  # whose blocks span rows
        np.testing.assert_array_equal(decode(t).reshape(6, 512), decode(encode(x, name)))
    np.testing.assert_array_equal(decode(t[1]), decode(t)[1])


def test_columns_that_are_no_multiple_of_the_block_are_refused():
    with pytest.raises(TurbosparkError, match=r"ffn_up: Q4_K .* 256, has 130") as error:
        encode(np.zeros((2, 130)), "Q4_K", "ffn_up")
    assert error.value.code == "bad_columns"


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e6])
def test_values_that_a_format_cannot_hold_are_refused(bad):
    x = values()
    x[1, 2] = bad
    for name in ("F16", "Q8_0", "INT4", "F8_E4M3"):
        with pytest.raises(TurbosparkError, match="w: ") as error:
            encode(x, name, "w")
        assert error.value.code == "bad_values"
    assert np.isfinite(decode(encode(x, "F32"))).all() == np.isfinite(bad)


def test_a_format_that_is_only_read_is_not_written():
    with pytest.raises(TurbosparkError, match="IQ3_S") as error:
        encode(values(), "IQ3_S")
    assert error.value.code == "unsupported_format"
    assert "Q8_0" in error.value.hint
    assert "IQ2_S" not in error.value.hint
