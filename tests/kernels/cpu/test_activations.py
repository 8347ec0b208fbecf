"""Quantised activations, number by number."""

import numpy as np
import pytest

from turbospark.kernels.cpu.activations import CHUNK_BYTES, PAIR_BYTES, quantised_bytes
from turbospark.kernels.cpu.levels import abreast
from turbospark.kernels.cpu.linear import quantised

LANES = [0, 2, 4, 6, 1, 3, 5, 7]


def unpacked(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """quants [m, blocks, 32], and scale, scale * sum, sum, first sum [m, blocks], out of the kernels' order."""
    m, k = x.shape
    count = k // 32
    chunks = count // 8
    data = quantised(x)
    beside = 1 if m == 1 else abreast()
    groups = -(-m // beside)
    apart = lambda part, size: (
        part.reshape(-1, groups, size // 32, beside, 32).swapaxes(2, 3).reshape(-1, groups * beside, size)[:, :m]
    )
    end = chunks * groups * beside * CHUNK_BYTES
    whole, rest = apart(data[:end], CHUNK_BYTES), apart(data[end:], PAIR_BYTES)
    quants = np.zeros((m, count, 32), np.int8)
    numbers = np.zeros((4, m, count), np.float64)
    views = (np.float32, np.float32, np.int32, np.int32)
    for b in range(count):
        if b < chunks * 8:
            record, lane = whole[b // 8], LANES.index(b % 8)
            quants[:, b] = record[:, :256].reshape(m, 8, 8, 4)[:, :, lane].reshape(m, 32).view(np.int8)
            tail = record[:, 256:]
        else:
            pair, side = divmod(b - chunks * 8, 2)
            record, lane = rest[pair], pair + 4 * side
            halves = record[:, :64].reshape(m, 2, 2, 16)
            quants[:, b] = halves[:, :, side].reshape(m, 32).view(np.int8)
            tail = record[:, 64:]
        for i, view in enumerate(views):
            numbers[i, :, b] = np.ascontiguousarray(tail[:, 32 * i : 32 * i + 32]).view(view)[:, lane]
    return quants, *numbers


@pytest.mark.parametrize("k", [32, 64, 96, 256, 320, 800])
def test_blocks_are_rounded_to_nearest_even_with_their_sums_beside(k):
    x = np.random.default_rng(k).standard_normal((3, k)).astype(np.float32)
    quants, scale, together, total, first = unpacked(x)
    blocks = x.reshape(3, -1, 32)
    largest = np.abs(blocks).max(-1)
    want = np.rint(blocks * (np.float32(127) / largest)[..., None])
    assert np.array_equal(quants, want)
    assert np.array_equal(scale, largest / np.float32(127))
    assert np.array_equal(total, want.sum(-1))
    assert np.array_equal(first, want[..., :16].sum(-1))
    assert np.array_equal(together, (largest / np.float32(127)) * want.sum(-1).astype(np.float32))


def test_ties_go_to_the_even_number():
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, -2.5, -0.5, 3.5]
    assert unpacked(x)[0][0, 0, :6].tolist() == [127, 0, 2, -2, 0, 4]


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 3.9e-37])
def test_a_block_too_small_to_scale_is_zero(size):
    quants, scale, together, *_ = unpacked(np.full((1, 32), np.float32(size)))
    assert not quants.any()
    assert scale == 0
    assert together == 0


@pytest.mark.parametrize("size", [5e-37, 1e-30, 1.0, 3e38])
def test_every_larger_block_reaches_127(size):
    quants, scale, *_ = unpacked(np.full((1, 32), np.float32(-size)))
    assert np.all(quants == -127)
    assert scale == np.float32(size) / np.float32(127)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_a_block_with_a_number_that_is_none_has_no_finite_scale(special):
    x = np.ones((1, 64), np.float32)
    x[0, 40] = special
    scale = unpacked(x)[1][0]
    assert scale[0] == np.float32(1) / np.float32(127)
    assert not np.isfinite(scale[1])


def test_lanes_of_a_pair_that_have_no_block_add_nothing():
    data = quantised(np.ones((1, 96), np.float32)).reshape(2, PAIR_BYTES)
    scales = np.ascontiguousarray(data[:, 64:96]).view(np.float32)
    assert [np.flatnonzero(s).tolist() for s in scales] == [[0, 4], [1]]


def test_the_buffer_grows_with_rows_and_columns():
    assert quantised_bytes(1, 256) == CHUNK_BYTES
    assert quantised_bytes(4, 256) == 4 * CHUNK_BYTES
    assert quantised_bytes(4, 256 + 96) == 4 * (CHUNK_BYTES + 2 * PAIR_BYTES)
