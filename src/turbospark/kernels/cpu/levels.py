"""The instruction sets the kernels are written for, and which one this process uses."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from turbospark import environment
from turbospark.errors import TurbosparkError

LEVELS = {  # best first: name -> what the machine must have, as LLVM names it
    "avx512vnni": ("avx512vnni", "avx512vl", "avx512bw", "avx2", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
    "generic": (),
}


def abreast() -> int:
    """How many rows of activations a vector holds beside each other where there are several: 512 bits hold two."""
    return 2 if level() == "avx512vnni" else 1


@cache
def level() -> str:
    """The level of this process: the best the machine has, or the one TURBOSPARK_CPU_LEVEL forces.

    Raises `unknown_cpu_level`, `impossible_cpu_level`.
    """
    return choose(environment.cpu_level(), features())


def choose(forced: str | None, present: Collection[str]) -> str:
    """The best level for a machine with these features, or the forced one if they allow it."""
    missing = {name: [feature for feature in needs if feature not in present] for name, needs in LEVELS.items()}
    if forced is None:
        return next(name for name in LEVELS if not missing[name])
    if forced not in LEVELS:
        raise TurbosparkError("unknown_cpu_level", f"CPU level {forced!r} is not known; known: {', '.join(LEVELS)}")
    if missing[forced]:
        message = f"CPU level {forced} needs {', '.join(missing[forced])}, which this machine does not have"
        possible = ", ".join(name for name in LEVELS if not missing[name])
        raise TurbosparkError("impossible_cpu_level", message, f"possible here: {possible}")
    return forced


def features() -> frozenset[str]:
    """Instruction sets of this machine, named as LLVM does."""
    from llvmlite import binding

    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)
