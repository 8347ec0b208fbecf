"""Backend name -> its kernels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from turbospark.errors import TurbosparkError

if TYPE_CHECKING:
    from turbospark.kernels.api import Kernels

BACKENDS = ("reference", "cpu")


def make_kernels(backend: str = "auto", exact: bool = False, threads: int | None = None) -> Kernels:
    """The kernels of a backend; "auto" takes the quickest there is on this machine.

    exact: activations and caches stay float32. threads: of the CPU kernels of this process, from now on.
    Raises `unknown_backend`, `bad_threads`.
    """
    if backend not in ("auto", *BACKENDS):
        raise TurbosparkError(
            "unknown_backend", f"backend {backend!r} is not known; known: auto, {', '.join(BACKENDS)}"
        )
    if backend == "cpu" or (backend == "auto" and find_spec("numba") is not None):
        from turbospark.kernels.cpu.backend import CpuKernels
        from turbospark.kernels.cpu.threads import set_count

        if threads is not None:
            set_count(threads)
        return CpuKernels(exact)
    from turbospark.kernels.reference import ReferenceKernels

    return ReferenceKernels()
