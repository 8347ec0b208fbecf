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


def run(*command: str, **variables: str) -> dict[str, str]:
    """What a new process prints."""
    path = os.pathsep.join(["src", "."])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gives_the_same_bits(level):
    if any(need not in features() for need in LEVELS[level]):
        level = "generic"  # the one that every machine runs
    found = run("-m", "tests.kernels.cpu.levels", TURBOSPARK_CPU_LEVEL=level)
    assert found == {"level": level, **digests()}


ABREAST = """
from turbospark.kernels.cpu import levels
levels.abreast = lambda: 2
from tests.kernels.cpu.levels import digests
print(digests(["Q8_0"]))
"""


def test_rows_that_share_a_vector_have_the_same_bits(tmp_path):
    # a cache of its own: this code is not what the level's name stands for
    found = run("-c", ABREAST, TURBOSPARK_CPU_LEVEL="generic", XDG_CACHE_HOME=str(tmp_path))
    assert found == digests(["Q8_0"])
