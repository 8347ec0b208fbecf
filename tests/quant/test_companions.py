"""Formats whose scales are tensors of their own: MLX affine and FP8, against loops over the definition."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from turbospark.errors import TurbosparkError
from turbospark.quant import QTensor, check, decode, decode_rows, take_rows, with_affine, with_scales

RNG = np.random.default_rng(7)


def stored(name: str, format: str, values: np.ndarray) -> QTensor:
    values = np.ascontiguousarray(values)
    return QTensor(name, format, values.shape, values.view(np.uint8).reshape(*values.shape[:-1], -1))


def affine_parts(out: int, columns: int, width: int) -> tuple[QTensor, QTensor, QTensor]:
    words = RNG.integers(0, 2**32, (out, columns * width // 32), dtype=np.uint32)
    scales, biases = RNG.standard_normal((2, out, columns // 64)).astype(ml_dtypes.bfloat16)
    return stored("w", "U32", words), stored("w.scales", "BF16", scales), stored("w.biases", "BF16", biases)


def fp8(shape: tuple[int, int], block: tuple[int, int] = (128, 128)) -> QTensor:
    codes = RNG.integers(0, 256, shape, dtype=np.uint8)
    scales = RNG.random([-(-size // step) for size, step in zip(shape, block, strict=True)], dtype=np.float32)
    return with_scales(QTensor("w", "F8_E4M3", shape, codes), stored("w_scale_inv", "F32", scales), block)


def fp8_by_hand(t: QTensor) -> np.ndarray:
    values = t.data.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return np.array(
        [
            [value * t.scales[row // t.scale_block[0], column // t.scale_block[1]] for column, value in enumerate(line)]
            for row, line in enumerate(values)
        ]
    )


@pytest.mark.parametrize("width", [4, 8])
def test_affine_words_are_read_from_their_lowest_bits(width):
    words, scales, biases = affine_parts(3, 128, width)
    got = decode(with_affine(words, scales, biases, width))
    packed = words.data.view(np.uint32)
    scale, bias = (part.data.view(ml_dtypes.bfloat16).astype(np.float32) for part in (scales, biases))
    for row, column in [(0, 0), (0, 1), (1, 63), (1, 64), (2, 127)]:
        word, place = divmod(column * width, 32)
        code = np.float32(int(packed[row, word]) >> place & (1 << width) - 1)
        assert got[row, column] == code * scale[row, column // 64] + bias[row, column // 64]


def test_affine_rows_decode_alike_alone_and_together():
    t = with_affine(*affine_parts(5, 192, 4), 4)
    whole = decode(t)
    np.testing.assert_array_equal(decode_rows(t, 2, 4), whole[2:4])
    np.testing.assert_array_equal(take_rows(t, np.array([4, 0])), whole[[4, 0]])
    np.testing.assert_array_equal(decode(t[1:3]), whole[1:3])
    stack = replace(t, shape=(1, *t.shape), data=t.data[None], scales=t.scales[None], biases=t.biases[None])
    np.testing.assert_array_equal(decode(stack), whole[None])
    np.testing.assert_array_equal(decode(stack[0]), whole)


@pytest.mark.parametrize(("shape", "block"), [((1000, 130), (128, 128)), ((70, 50), (32, 16)), ((3, 5), (128, 128))])
def test_fp8_blocks_at_the_edges_are_partial(shape, block):
    t = fp8(shape, block)
    np.testing.assert_array_equal(decode(t), fp8_by_hand(t))


def test_fp8_rows_decode_alike_alone_and_together():
    t = fp8((300, 130))
    whole = decode(t)
    np.testing.assert_array_equal(decode_rows(t, 120, 260), whole[120:260])
    np.testing.assert_array_equal(take_rows(t, np.array([299, 0, 128])), whole[[299, 0, 128]])
    np.testing.assert_array_equal(decode(t[128:300]), whole[128:300])


def test_an_fp8_matrix_is_not_cut_inside_a_block():
    t = fp8((300, 130))
    for index in (slice(0, 100), slice(1, 128), slice(0, 256, 2), 3):
        with pytest.raises(TurbosparkError, match="128 rows") as error:
            t[index]
        assert error.value.code == "bad_cut"


def test_a_stack_has_its_own_scales_for_every_entry():
    parts = [fp8((200, 130)) for _ in range(3)]
    stack = replace(
        parts[0],
        shape=(3, 200, 130),
        data=np.stack([part.data for part in parts]),
        scales=np.stack([part.scales for part in parts]),
    )
    np.testing.assert_array_equal(decode(stack), np.stack([decode(part) for part in parts]))
    np.testing.assert_array_equal(decode(stack[2]), decode(parts[2]))
    one_each = replace(stack, scales=np.array([1, 2, 4], np.float32))
    np.testing.assert_array_equal(decode(one_each[2]), decode(one_each)[2])


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_scale_serves_the_whole_matrix(shape):
    t = fp8((140, 130))
    scale = QTensor("s", "F32", shape, np.array([0.5], np.float32).view(np.uint8))
    whole = with_scales(replace(t, scales=None), scale)
    expected = t.data.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(0.5)
    np.testing.assert_array_equal(decode(whole), expected)
    np.testing.assert_array_equal(decode(whole[3:5]), expected[3:5])


@pytest.mark.parametrize("format", ["U8", "F8_E8M0"])
def test_exponents_are_powers_of_two_and_not_factors(format):
    t = fp8((130, 130))
    exponents = np.array([[127, 128], [0, 255]], dtype=np.uint8)
    got = decode(with_scales(t, stored("s", format, exponents)))
    raw = t.data.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(got[:128, :128], raw[:128, :128])
    np.testing.assert_array_equal(got[:128, 128:], raw[:128, 128:] * 2)
    np.testing.assert_array_equal(got[128:, :128], raw[128:, :128] * np.float32(2.0**-127))
    assert np.isnan(got[128:, 128:]).all()


@pytest.mark.parametrize("format", ["F8_E4M3", "F8_E5M2"])
def test_every_code_has_its_value_and_nan_stays_nan(format):
    dtype = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}[format]
    codes = np.arange(256, dtype=np.uint8)[None]
    t = QTensor("w", format, (1, 256), codes, scales=np.array(1, np.float32))
    np.testing.assert_array_equal(decode(t), codes.view(dtype).astype(np.float32))
    nans = {"F8_E4M3": [0x7F, 0xFF], "F8_E5M2": [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]}[format]
    assert np.flatnonzero(np.isnan(decode(t)[0])).tolist() == nans


def test_codes_without_their_scale_are_refused():
    with pytest.raises(TurbosparkError, match=r"\[8, 2\].*has none") as error:
        decode(replace(fp8((1000, 130)), scales=None))
    assert error.value.code == "missing_scale"
    t = with_affine(*affine_parts(3, 128, 4), 4)
    with pytest.raises(TurbosparkError, match=r"biases of shape \[3, 2\], has none"):
        decode(replace(t, biases=None))


@pytest.mark.parametrize("shape", [(7, 2), (8, 1), (2, 8), (1, 1), (1000, 1), (8,), (2,)])
def test_scales_of_another_shape_are_refused(shape):
    codes = replace(fp8((1000, 130)), scales=None)
    with pytest.raises(TurbosparkError, match=r"\[8, 2\]") as error:
        with_scales(codes, stored("s", "F32", np.ones(shape, np.float32)))
    assert error.value.code == "bad_scale"
    assert str(list(shape)) in error.value.message


def test_scales_of_a_type_that_is_no_scale_are_refused():
    codes = replace(fp8((130, 130)), scales=None)
    with pytest.raises(TurbosparkError, match="I32") as error:
        with_scales(codes, stored("s", "I32", np.ones((2, 2), np.int32)))
    assert error.value.code == "bad_scale"
    with pytest.raises(TurbosparkError, match="int64"):
        decode(replace(codes, scales=np.ones((2, 2), np.int64)))
    t = with_affine(*affine_parts(3, 128, 4), 4)
    with pytest.raises(TurbosparkError, match="uint8"):
        decode(replace(t, scales=np.ones((3, 2), np.uint8)))


def test_other_affine_widths_and_groups_are_refused():
    words, scales, biases = affine_parts(3, 128, 4)
    with pytest.raises(TurbosparkError, match="2 bits") as error:
        with_affine(words, scales, biases, 2)
    assert error.value.code == "unsupported_format"
    half = stored("s", "BF16", np.ones((3, 1), ml_dtypes.bfloat16))
    with pytest.raises(TurbosparkError, match=r"\[3, 2\], has \[3, 1\]"):
        with_affine(words, half, half, 4)


def test_scales_beside_a_format_that_has_its_own_are_refused():
    t = QTensor("w", "F16", (2, 4), np.zeros((2, 8), np.uint8), scales=np.ones((1, 1), np.float32))
    with pytest.raises(TurbosparkError) as error:
        check(t)
    assert error.value.code == "bad_scale"
