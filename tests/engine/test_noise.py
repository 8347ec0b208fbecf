"""Philox against its published vectors, and Gumbel noise that depends on nothing but its key."""

import math

import numpy as np
import pytest

from turbospark.engine.noise import gumbel, philox4x32, uniform

# Random123's known answers for philox4x32, 10 rounds: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, answer):
    result = philox4x32(tuple(np.array([word], np.uint64) for word in words(counter)), tuple(words(key)))
    assert [int(word[0]) for word in result] == words(answer)


def test_many_counters_at_once_give_the_published_answers_too():
    columns = np.array([words(counter) for counter, _, _ in KNOWN], np.uint64).T
    for row, (_, key, answer) in enumerate(KNOWN):
        result = philox4x32(tuple(columns), tuple(words(key)))
        assert [int(word[row]) for word in result] == words(answer)


def test_the_noise_of_an_id_is_the_published_function_of_seed_position_and_id():
    # No published vector has stream 0 and digits that differ, so Philox itself is asked.
    seed, position, token = 0x299F31D0A4093822, 0x13198A2E85A308D3, 0x243F6A88
    counter = (token, position & 0xFFFFFFFF, position >> 32, 0)
    w0, w1, _, _ = philox4x32(tuple(np.array([word], np.uint64) for word in counter), (0xA4093822, 0x299F31D0))
    bits = (int(w0[0]) >> 6) * 2**26 + (int(w1[0]) >> 6)
    expected = -math.log(-math.log((2 * bits + 1) / 2**53))
    assert gumbel(seed, position, np.array([token]))[0] == pytest.approx(expected, rel=1e-14)


def test_a_value_does_not_depend_on_the_other_ids():
    ids = np.arange(20_000)
    whole = gumbel(11, 3, ids)
    assert np.array_equal(gumbel(11, 3, ids[::-7]), whole[::-7])
    assert all(gumbel(11, 3, np.array([i]))[0] == whole[i] for i in (0, 1, 8191, 8192, 19_999))
    assert gumbel(11, 3, ids[:0]).shape == (0,)


def test_every_part_of_seed_and_position_counts():
    ids = np.arange(4)
    keys = [(0, 0), (1, 0), (2**32, 0), (2**64 - 1, 0), (0, 1), (0, 2**32), (1, 1)]
    values = {tuple(gumbel(seed, position, ids)) for seed, position in keys}
    assert len(values) == len(keys)


def test_uniforms_are_odd_multiples_of_the_step_inside_the_open_interval():
    scaled = uniform(5, 9, np.arange(50_000)) * 2.0**53
    assert np.all(scaled % 2 == 1)
    assert 0 < scaled.min() < scaled.max() < 2**53


def test_the_noise_follows_the_gumbel_law():
    # Kolmogorov-Smirnov at a chance of 1 in 10,000, over ids, over positions and over seeds.
    along_positions = np.concatenate([gumbel(1, position, np.arange(4)) for position in range(1000)])
    along_seeds = np.concatenate([gumbel(seed, 1, np.arange(4)) for seed in range(1000)])
    for sample in (gumbel(2, 3, np.arange(200_000)), along_positions, along_seeds):
        law = np.exp(-np.exp(-np.sort(sample)))
        steps = np.arange(len(law) + 1) / len(law)
        distance = max(np.abs(law - steps[:-1]).max(), np.abs(law - steps[1:]).max())
        assert distance < 2.23 / math.sqrt(len(law))
