"""Decoding against the `gguf` package, bit for bit, on random bytes: every scale a file may hold."""

import gguf
import numpy as np
import pytest

from turbospark.quant import FORMATS, QTensor, decode, decode_rows, take_rows

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
    return a.shape == b.shape and bool(
        ((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all()
    )


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
