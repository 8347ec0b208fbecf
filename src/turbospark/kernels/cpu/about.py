"""What the backend uses on this machine, for people to read."""

from __future__ import annotations

from typing import Any

from turbospark.kernels.cpu import linear, threads
from turbospark.kernels.cpu.codes import CODES
from turbospark.kernels.cpu.compile import folder
from turbospark.kernels.cpu.levels import level
from turbospark.quant.formats import FORMATS


def about(exact: bool = False) -> dict[str, Any]:
    """level: instruction set; threads; cache: the number format of keys and values; kernels: format -> how its rows
    are multiplied; compiled: where the compiled kernels are kept, None when nowhere.
    """
    return {
        "backend": "cpu",
        "level": level(),
        "threads": threads.count(),
        "cache": "float16" if halves(exact) else "float32",
        "kernels": {name: _way(name, exact) for name in FORMATS},
        "compiled": None if folder() is None else str(folder()),
    }


def halves(exact: bool) -> bool:
    """Whether keys and values are kept as float16: it halves what attention reads, where the machine converts it."""
    return not exact and level() != "generic"


def _way(format: str, exact: bool) -> str:
    if format not in linear.KERNELS:
        return "decoded by tiles"
    return "8-bit activations" if format in CODES and not exact else "float32 activations"
