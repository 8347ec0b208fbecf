"""Backend name -> its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turbospark.errors import TurbosparkError

if TYPE_CHECKING:
    from turbospark.kernels.api import Kernels

BACKENDS = ("reference", "cpu")


def make_kernels(backend: str = "auto") -> Kernels:
    """The kernels of a backend; "auto" takes the quickest there is on this machine."""
    if backend not in ("auto", *BACKENDS):
        raise TurbosparkError(
            "unknown_backend", f"backend {backend!r} is not known; known: auto, {', '.join(BACKENDS)}"
        )
    if backend == "cpu":
        from turbospark.kernels.cpu.backend import CpuKernels

        return CpuKernels()
    from turbospark.kernels.reference import ReferenceKernels

    return ReferenceKernels()
