"""Decoding against the `gguf` package, bit for bit, on random bytes: every scale a file may hold."""

import gguf
import numpy as np
import pytest

from turbospark.errors import TurbosparkError
from turbospark.quant import FORMATS, QTensor, decode, decode_rows, get_format, take_rows

GGML = sorted(set(FORMATS) & {kind.name for kind in gguf.GGMLQuantizationType} - {"F64"})
ROWS, BLOCKS = 5, 3


def random_tensor(name: str) -> QTensor:
    fmt = FORMATS[name]
    rng = np.random.default_rng(sum(name.encode()))
    data = rng.integers(0, 256, (ROWS, BLOCKS * max(1, 256 // fmt.block) * fmt.nbytes), dtype=np.uint8)
    return QTensor("w", name, (ROWS, data.shape[1] // fmt.nbytes * fmt.block), data)


def oracle(t: QTensor) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(t.data, gguf.GGMLQuantizationType[t.format])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal as bits; two NaN of any payload are equal, for a product of NaN keeps no promise about it."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("name", GGML)
def test_random_bytes_decode_as_the_format_says(name):
    t = random_tensor(name)
    assert same_bits(decode(t), oracle(t))


@pytest.mark.parametrize("name", GGML)
def test_a_changed_byte_is_seen(name):
    t = random_tensor(name)
    expected = oracle(t).copy()
    blocks = t.data.reshape(-1, FORMATS[name].nbytes)
    for byte in range(blocks.shape[1]):
        blocks[:, byte] ^= 0x11
        assert not same_bits(decode(t), expected), byte
        blocks[:, byte] ^= 0x11


@pytest.mark.parametrize("name", GGML)
def test_rows_decode_alike_alone_and_together(name):
    t = random_tensor(name)
    whole = decode(t)
    assert same_bits(decode_rows(t, 1, 4), whole[1:4])
    assert same_bits(take_rows(t, np.array([4, 0, 4])), whole[[4, 0, 4]])


@pytest.mark.parametrize("name", GGML)
def test_a_size_is_that_of_ggml(name):
    assert (FORMATS[name].block, FORMATS[name].nbytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def test_doubles_are_rounded_to_float():
    stored = np.array([[1 / 3, 1e300, -0.0]])
    t = QTensor("w", "F64", (1, 3), stored.view(np.uint8))
    assert decode(t).tolist() == [[float(np.float32(1 / 3)), np.inf, 0.0]]


def test_values_may_lie_at_odd_addresses():
    for name in ("F32", "F16", "BF16", "F64", "Q4_K"):
        t = random_tensor(name)
        room = np.zeros(t.data.size + 1, dtype=np.uint8)
        moved = room[1:].reshape(t.data.shape)
        moved[:] = t.data
        values = decode(QTensor("w", name, t.shape, moved))
        assert same_bits(values, decode(t))
        assert values.flags.aligned


def test_every_other_row_decodes_as_in_the_whole():
    t = random_tensor("Q6_K")
    assert same_bits(decode(t[::2]), decode(t)[::2])


def test_a_vector_and_a_stack_decode():
    t = random_tensor("Q8_0")
    assert same_bits(decode(t[2]), decode(t)[2])
    stack = QTensor("w", "Q8_0", (1, *t.shape), t.data[None])
    assert same_bits(decode(stack), decode(t)[None])


def test_rows_outside_the_matrix_are_refused():
    t = random_tensor("Q4_0")
    for wrong in (-1, ROWS):
        with pytest.raises(TurbosparkError, match=f"row {wrong} asked, has {ROWS}") as error:
            take_rows(t, np.array([0, wrong]))
        assert error.value.code == "row_out_of_range"
    for start, stop in ((-1, 2), (3, 2), (0, ROWS + 1)):
        with pytest.raises(TurbosparkError, match=f"has {ROWS}"):
            decode_rows(t, start, stop)
    assert take_rows(t, np.array([], dtype=int)).shape == (0, t.shape[1])
    assert decode_rows(t, 2, 2).shape == (0, t.shape[1])


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(TurbosparkError, match="Q9_9") as error:
        get_format("Q9_9")
    assert error.value.code == "unsupported_format"
    assert "Q4_K" in error.value.hint


def test_bytes_that_do_not_fit_the_shape_are_refused():
    t = random_tensor("Q4_K")
    with pytest.raises(TurbosparkError, match=r"needs bytes \[5, 288\], has \[5, 432\]") as error:
        decode(QTensor("w", "Q4_K", (5, 512), t.data))
    assert error.value.code == "bad_bytes"
    with pytest.raises(TurbosparkError, match="w: Q4_K needs columns in multiples of 256, has 130") as error:
        decode(QTensor("w", "Q4_K", (5, 130), t.data))
    assert error.value.code == "bad_columns"
