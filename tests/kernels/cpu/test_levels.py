"""Instruction sets: the best one there is, or the one asked for, all to the same bits."""

import ast
import os
import subprocess
import sys

import pytest

from tests.kernels.cpu.levels import digests
from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu.levels import LEVELS, choose, features

AVX2 = {"sse2", "avx", "avx2", "fma", "f16c"}


def test_the_best_level_a_machine_allows_is_taken():
    assert choose(None, set()) == "generic"
    assert choose(None, AVX2) == "avx2"
    assert choose(None, AVX2 - {"f16c"}) == "generic"
    assert choose(None, AVX2 | {"avx512f", "avx512vl", "avx512bw"}) == "avx2"
    assert choose(None, AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512vnni"}) == "avx512vnni"


def test_a_lower_level_can_be_forced():
    assert choose("generic", AVX2) == "generic"


def test_an_impossible_level_is_refused_by_name():
    with pytest.raises(TurbosparkError, match="avx512vnni needs avx512vnni, avx512vl") as raised:
        choose("avx512vnni", AVX2)
    assert raised.value.code == "impossible_cpu_level"
    assert "avx2" in raised.value.hint


def test_an_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(TurbosparkError, match="'sse9' is not known; known: avx512vnni, avx2, generic"):
        choose("sse9", AVX2)


def forced(level: str) -> dict[str, str]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cpu.levels"],
        env={**os.environ, "TURBOSPARK_CPU_LEVEL": level, "PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True,
        text=True,
        check=True,
    )
    return ast.literal_eval(run.stdout)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_same_bits(level):
    if any(need not in features() for need in LEVELS[level]):
        level = "generic"  # the one that every machine runs
    assert forced(level) == {"level": level, **digests()}
