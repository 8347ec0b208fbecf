"""The CPU backend's class: what a model hands over becomes records, and each sublayer is one call of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.kernels.cpu import linear, threads
from turbospark.kernels.cpu.entries import enter, enter_attend
from turbospark.kernels.cpu.levels import level
from turbospark.kernels.cpu.memory import Cached, Scratch, cached
from turbospark.kernels.cpu.parts import AttendPart, Group, MLPPart
from turbospark.kernels.parts import GatedMLP, Heads, Norm
from turbospark.kernels.reference.backend import ReferenceKernels
from turbospark.kernels.rows import Rows
from turbospark.quant.tensor import QTensor

FLOAT = np.dtype(np.float32)


class CpuKernels(ReferenceKernels):
    """Numba kernels; not for several Python threads at once. `exact`: nothing is rounded below float32."""

    name = "cpu"

    def __init__(self, exact: bool = False) -> None:
        super().__init__()
        self.exact = exact
        self.scratch, self.team, self.threads = Scratch(), threads.team(), threads.count()
        self._parts: dict[int, tuple[Any, Any]] = {}  # by the id of what a layer hands over, which is kept alive

    def cached(self, shape: tuple[int, ...]) -> Cached:
        # float16 halves what attention reads, where the machine converts it
        return cached(shape, halves=not self.exact and level() != "generic")

    def weight(self, tensor: QTensor) -> Any:
        if tensor.format in linear.KERNELS and len(tensor.shape) == 2:
            return linear.Weight(tensor)
        return super().weight(tensor)

    def embed(self, ids: np.ndarray, table: Any) -> np.ndarray:
        if isinstance(table, linear.Weight):
            return quant.take_rows(table.tensor, ids)
        return super().embed(ids, table)

    def linear(self, x: np.ndarray, w: Any) -> np.ndarray:
        if isinstance(w, linear.Weight):
            return self.project(np.ascontiguousarray(x, FLOAT), None, self._part(w, lambda w: Group([w])))[0]
        return super().linear(x, w)

    def group(self, weights: Sequence[Any], biases: Sequence[Any] = ()) -> Any:
        return Group(weights, biases)

    def project(self, x: np.ndarray, norm: Norm | None, group: Any) -> list[np.ndarray]:
        if not group.native:
            return super().project(x, norm, group.pairs)
        rows = len(x)
        group.set_norm(norm)
        flat = np.empty((1, rows * group.outputs), FLOAT)
        self._enter(group.project, group, x, x, flat)
        if rows == 1:
            return [flat[:, a:b] for a, b in group.bounds]
        return [flat[0, rows * a : rows * b].reshape(rows, -1) for a, b in group.bounds]

    def merge(self, x: np.ndarray, y: np.ndarray, group: Any, norm: Norm | None = None) -> np.ndarray:
        if not group.native:
            return super().merge(x, y, group, norm)
        group.set_norm(norm)
        out = np.empty(x.shape, FLOAT)
        self._enter(group.merge, group, x, y, out)
        return out

    def gated_mlp(self, x: np.ndarray, norm: Norm | None, mlp: GatedMLP) -> np.ndarray:
        part = self._part(mlp, MLPPart)
        if not part.native:
            return super().gated_mlp(x, norm, mlp)
        return self._feed(x, norm, part, None, 0)

    def feed_forward(self, x: np.ndarray, norm: Norm, mlp: GatedMLP, after: Norm | None = None) -> np.ndarray:
        part = self._part(mlp, MLPPart)
        if not part.native:
            return super().feed_forward(x, norm, mlp, after)
        return self._feed(x, norm, part, after, 1)

    def _feed(self, x: np.ndarray, norm: Norm | None, part: MLPPart, after: Norm | None, residual: int) -> np.ndarray:
        part.set_call(norm, after, residual)
        out = np.empty(x.shape, FLOAT)
        self._enter(part.region, part, x, x, out)
        return out

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, rows: Rows, cache: Any, heads: Heads) -> np.ndarray:
        part = self._part(heads, AttendPart)
        cache.admit(rows)
        out = np.empty((len(q), part.width), FLOAT)
        scratch, keys = self.scratch, cache.k.layout(cache.v)
        while True:
            needed = enter_attend(
                *(part.region, self.team, self.threads, part.record.address, keys, scratch.address, scratch.size),
                *(q, k, v, rows.positions, rows.slots, out),
            )
            if needed == 0:
                break
            scratch.reserve(needed)
        heads.trace("attn_mix", out)
        return out

    def _part(self, given: Any, make: Any) -> Any:
        """What a kernel needs of a layer's part, made at its first use."""
        found = self._parts.get(id(given))
        if found is None:
            found = self._parts[id(given)] = given, make(given)
        return found[1]

    def _enter(self, region: int, part: Any, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        scratch, needed = self.scratch, part.sizes.get(len(x))
        if needed is None:
            needed = part.sizes[len(x)] = part.size(len(x), self.threads)
        if needed > scratch.size:
            scratch.reserve(needed)
        enter(region, self.team, part.record.address, scratch.address, x, y, out)
