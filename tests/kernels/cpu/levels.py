"""Prints the level in use and a digest of products in several formats: run with different levels forced."""

import hashlib
from collections.abc import Iterable

import numpy as np

from turbospark import quant
from turbospark.kernels.cpu.levels import level
from turbospark.kernels.cpu.linear import Weight

FORMATS = {"Q8_0": 704, "Q4_1": 704, "Q5_0": 704, "INT4": 320, "Q6_K": 512, "F16": 100}


def digests(formats: Iterable[str] = FORMATS) -> dict[str, str]:
    found = {}
    for format in formats:
        k, rng = FORMATS[format], np.random.default_rng(0)
        weight = Weight(quant.encode(rng.standard_normal((19, k)).astype(np.float32), format))
        x = rng.standard_normal((5, k)).astype(np.float32)
        bits = b"".join(weight.product(x[:m]).tobytes() for m in (1, 2, 5))
        found[format] = hashlib.sha256(bits).hexdigest()
    return found


if __name__ == "__main__":
    print({"level": level(), **digests()})
