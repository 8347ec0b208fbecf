"""The CPU backend's class: what a model hands over becomes records, and each sublayer is one call of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.config.model import MoE
from turbospark.kernels.api import Block, Trunk
from turbospark.kernels.cpu import delta, linear, rowwise, threads
from turbospark.kernels.cpu.about import halves
from turbospark.kernels.cpu.block_parts import BlockPart, RememberPart, ScoringPart
from turbospark.kernels.cpu.delta import commit
from turbospark.kernels.cpu.elementary import CODE
from turbospark.kernels.cpu.entries import (
    enter,
    enter_attend,
    enter_attention,
    enter_block,
    enter_branch,
    enter_candidates,
    enter_commit,
    enter_delta,
    enter_experts,
    enter_latent,
    enter_remember,
    enter_trunk,
)
from turbospark.kernels.cpu.memory import (
    Memory,
    Scratch,
    cached,
    keys_and_values,
    layouts,
    recurrent,
    rows_alone,
    zeros,
)
from turbospark.kernels.cpu.parts import (
    AttendPart,
    AttentionPart,
    BranchPart,
    DeltaPart,
    ExpertsPart,
    Group,
    HeadWeights,
    LatentPart,
    MLPPart,
    TrunkPart,
    address,
)
from turbospark.kernels.cpu.record import Record
from turbospark.kernels.cpu.routing import route
from turbospark.kernels.parts import (
    AttentionBranch,
    BlockLayer,
    Delta,
    GatedMLP,
    Heads,
    Latents,
    Norm,
    Reading,
    Scoring,
)
from turbospark.kernels.reference.backend import ReferenceKernels
from turbospark.kernels.rows import Rows
from turbospark.quant.tensor import QTensor

FLOAT = np.dtype(np.float32)
NOTHING = np.zeros(0, np.float32)


class CpuKernels(ReferenceKernels):
    """Numba kernels; not for several Python threads at once. `exact`: nothing is rounded below float32."""

    name = "cpu"

    def __init__(self, exact: bool = False) -> None:
        super().__init__()
        self.exact, self.scratch = exact, Scratch()
        self._parts: dict[int, tuple[Any, Any]] = {}  # by the id of what a layer hands over, which is kept alive
        self._rows: Rows | None = None
        self._rows_at = 0, 0
        self._attention: dict[Any, AttentionPart] = {}
        self._commit = Record(delta.FIELDS)

    # weights and memory

    def weight(self, tensor: QTensor) -> Any:
        if HeadWeights.native(tensor):
            return HeadWeights(tensor, self.exact)
        return linear.prepare(tensor, self.exact) if len(tensor.shape) == 2 else super().weight(tensor)

    def borrowed(self, tensor: QTensor) -> Any:
        return self.weight(tensor)

    def zeros(self, shape: tuple[int, ...]) -> Memory:
        return zeros(shape)

    def cached(self, shape: tuple[int, ...]) -> Memory:
        return cached(shape, halves(self.exact))

    # rows

    def embed(self, ids: np.ndarray, table: Any) -> np.ndarray:
        return quant.take_rows(table.tensor, ids)

    def linear(self, x: np.ndarray, w: Any) -> np.ndarray:
        return w.product(x)

    def head_linear(self, x: np.ndarray, w: Any) -> np.ndarray:
        if not isinstance(w, HeadWeights):
            return super().head_linear(x, w)
        return np.stack([head.product(x[:, h]) for h, head in enumerate(w.heads)], axis=1)

    def norm(self, x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
        return self._rowwise(rowwise.norm, x, address(weight), np.float32(eps))

    def l2norm(self, x: np.ndarray, eps: float) -> np.ndarray:
        return self._rowwise(rowwise.l2norm, x, np.float32(eps))

    def rope(self, x: np.ndarray, rows: Rows, table: Any) -> np.ndarray:
        heads, (cos, sin) = x.shape[1], (address(table.cos), address(table.sin))
        pairs = table.cos.shape[1], int(table.interleaved)
        return self._rowwise(rowwise.rope, x, heads, rows.positions, cos, sin, *pairs)

    def gate(self, gate: np.ndarray, up: np.ndarray, activation: str) -> np.ndarray:
        return self._rowwise(rowwise.gate, gate, CODE[activation], flat(up))

    def sigmoid(self, x: np.ndarray) -> np.ndarray:
        return self._rowwise(rowwise.sigmoid, x)

    def softcap(self, x: np.ndarray, cap: float) -> np.ndarray:
        return self._rowwise(rowwise.softcap, x, np.float32(cap))

    def _rowwise(self, kernel: Callable[..., None], x: np.ndarray, *arguments: Any) -> np.ndarray:
        """A kernel of x as rows along its last axis."""
        out = np.empty(x.shape, FLOAT)
        kernel(flat(x), flat(out), *arguments)
        return out

    # attention

    def store(self, rows: Rows, values: np.ndarray, cache: Any) -> None:
        rowwise.store(rows_alone(cache), flat(values), values.shape[1], rows.positions, rows.slots)

    def attention(self, q, k, v, rows: Rows, *, scale, window, softcap, visible=None) -> np.ndarray:
        if visible is None:
            last = rows.positions
            visible = np.maximum(0, last - window + 1) if window else np.zeros_like(last), last
        first, last = (np.ascontiguousarray(side, np.int64) for side in visible)
        shape = (q.shape[1], k.shape[1], q.shape[2], v.shape[3], scale, softcap or 0.0)
        if shape not in self._attention:
            self._attention[shape] = AttentionPart(*shape)
        out = np.empty((*q.shape[:2], v.shape[3]), FLOAT)
        at = keys_and_values(k, v)
        self._plan(enter_attention, self._attention[shape], at, flat(q), rows.slots, first, last, flat(out))
        return out

    # sublayers

    def trunk(self, layers: Sequence[Sequence[Any]]) -> Trunk | None:
        part = TrunkPart(layers)
        return partial(self._run_trunk, part) if part.native else None

    def _run_trunk(
        self, part: TrunkPart, x: np.ndarray, rows: Rows, caches: Sequence[Any], taps: Sequence[int]
    ) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        at = self._admitted(caches, rows)
        out = np.empty(x.shape, FLOAT)
        tapped = {layer: np.empty(x.shape, FLOAT) for layer in taps}
        copies = np.zeros(len(caches), np.int64)
        for layer, copy in tapped.items():
            copies[layer] = address(copy)
        self._plan(enter_trunk, part, at, *self._places(rows), address(copies), x, out)
        return out, tapped

    def group(self, weights: Sequence[Any], biases: Sequence[Any] = ()) -> Group:
        return Group(weights, biases)

    def project(self, x: np.ndarray, norm: Norm | None, group: Any) -> list[np.ndarray]:
        if not group.native:
            return super().project(x, norm, group)
        rows = len(x)
        group.set_norm(norm)
        together = np.empty((1, rows * group.outputs), FLOAT)
        self._enter(group.project, group, x, x, together)
        if rows == 1:
            return [together[:, part] for part in group.parts]
        return [together[0, rows * p.start : rows * p.stop].reshape(rows, -1) for p in group.parts]

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

    def attention_branch(self, x: np.ndarray, rows: Rows, cache: Any, branch: AttentionBranch) -> np.ndarray:
        part = self._part(branch, BranchPart)
        if not part.native:
            return super().attention_branch(x, rows, cache, branch)
        cache.admit(rows)
        out = np.empty(x.shape, FLOAT)
        self._plan(enter_branch, part, keys_and_values(cache.k, cache.v), *self._places(rows), x, out)
        return out

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, rows: Rows, cache: Any, heads: Heads) -> np.ndarray:
        part = self._part(heads, AttendPart)
        cache.admit(rows)
        out = np.empty((len(q), part.width), FLOAT)
        self._plan(enter_attend, part, keys_and_values(cache.k, cache.v), *self._places(rows), q, k, v, out)
        heads.trace("attn_mix", out)
        return out

    def latent(self, q: np.ndarray, row: np.ndarray, rows: Rows, cache: Any, latents: Latents) -> np.ndarray:
        part = self._part(latents, LatentPart)
        if not part.native:
            return super().latent(q, row, rows, cache, latents)
        cache.admit(rows)
        out = np.empty((len(q), part.width), FLOAT)
        self._plan(enter_latent, part, keys_and_values(cache.k, cache.v), *self._places(rows), q, row, out)
        latents.trace("attn_mix", out)
        return out

    def gated_delta(
        self, qkv: np.ndarray, z: np.ndarray, a: np.ndarray, b: np.ndarray, rows: Rows, cache: Any, delta: Delta
    ) -> np.ndarray:
        part = self._part(delta, DeltaPart)
        out = np.empty(z.shape, FLOAT)
        self._plan(enter_delta, part, recurrent(cache), spans_of(rows), qkv, z, a, b, out)
        delta.trace("delta_mix", out)
        return out

    def commit_delta(self, cache: Any, slot: int, count: int) -> None:
        span = np.array([[slot, 0, count, 0]], np.int64)
        enter_commit(commit.address, threads.team(), self._commit.address, recurrent(cache), span)

    @property
    def scratch_bytes(self) -> int:
        return self.scratch.size * 4 // 5  # the rest was never needed and is untouched

    # drafters

    def block(self, layers: Sequence[BlockLayer], norm: Norm) -> Block | None:
        part = BlockPart(layers, norm)
        return partial(self._run_block, part) if part.native else None

    def _run_block(
        self, part: BlockPart, x: np.ndarray, rows: Rows, caches: Sequence[Any], since: np.ndarray
    ) -> np.ndarray:
        at = self._admitted(caches, rows)
        out = np.empty(x.shape, FLOAT)
        self._plan(enter_block, part, at, *self._places(rows), spans_of(rows), since, flat(x), out)
        return out

    def remember(self, taps: np.ndarray, rows: Rows, caches: Sequence[Any], reading: Reading) -> None:
        part = self._part(reading, RememberPart)
        if not part.native:
            super().remember(taps, rows, caches, reading)
            return
        self._plan(enter_remember, part, self._admitted(caches, rows), *self._places(rows), taps)

    def candidates(self, x: np.ndarray, scoring: Scoring, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        part = self._part(scoring, ScoringPart)
        if not part.native:
            return super().candidates(x, scoring, count)
        found, scores = np.empty((len(x), count), np.int64), np.empty((len(x), count), FLOAT)
        weights = np.empty((len(x), part.rank), FLOAT)
        self._plan(enter_candidates, part, x, found, scores, weights)
        return found, scores, weights

    def finite(self, x: np.ndarray) -> np.ndarray:
        found = np.empty(len(x), np.bool_)
        rowwise.finite(x.view(np.int32), found)
        return found

    def best(self, x: np.ndarray, count: int) -> np.ndarray:
        found = np.empty((len(x), count), np.int64)
        rowwise.best(x, found, np.empty(count, FLOAT))
        return found

    # mixture of experts

    def route(self, logits: np.ndarray, moe: MoE, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        ids, weights = np.empty((len(logits), moe.used), np.int64), np.empty((len(logits), moe.used), FLOAT)
        sigmoid, top2 = moe.scoring == "sigmoid", moe.group_rank == "top2"
        route(
            *(logits, NOTHING if bias is None else bias, bias is not None, sigmoid, moe.groups, moe.groups_used, top2),
            *(moe.renormalise, np.float32(moe.scale), ids, weights),
        )
        return ids, weights

    def experts(self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, store: Any, activation: str, base: Any):
        part = self._part(store, lambda store: ExpertsPart(store, activation))
        out, left = np.empty(x.shape, FLOAT), len(set(ids.ravel().tolist()))
        begin = 1
        for group in store.arrivals(ids):
            foreign, left = part.take(group), left - len(group)
            last = int(left == 0 and not foreign)
            self._plan(enter_experts, part, address(base), x, ids, weights, out, begin, last)
            begin = 0
            for expert, (gate, up, down) in foreign.items():
                rows, places = part.places(ids, expert)
                mlp = GatedMLP(gate, up, down, activation, lambda *_: None)
                part.sums(ids.size)[places] = super().gated_mlp(x[rows], None, mlp)
            if left == 0 and foreign:
                part.take({})
                self._plan(enter_experts, part, address(base), x, ids, weights, out, begin, 1)
        return out

    def _part(self, given: Any, make: Callable[[Any], Any]) -> Any:
        """What a kernel needs of a layer's part, made at its first use."""
        found = self._parts.get(id(given))
        if found is None:
            found = self._parts[id(given)] = given, make(given)
        return found[1]

    def _admitted(self, caches: Sequence[Any], rows: Rows) -> int:
        """The address of the layouts int64 [layers] of a model's caches, which let the rows in."""
        for cache in caches:
            cache.admit(rows)
        return layouts([(cache.k, cache.v) for cache in caches])

    def _places(self, rows: Rows) -> tuple[int, int]:
        """Addresses of the positions and slots, the same for all layers of a forward."""
        if rows is not self._rows:
            self._rows, self._rows_at = rows, (address(rows.positions), address(rows.slots))
        return self._rows_at

    def _enter(self, region: int, part: Any, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        """One call of a region whose memory is known from the number of rows."""
        team, scratch, key = threads.team(), self.scratch, (len(x), threads.count())
        needed = part.sizes.get(key)
        if needed is None:
            needed = part.sizes[key] = part.size(*key)
        if needed > scratch.size:
            scratch.reserve(needed)
        enter(region, team, part.address, scratch.address, x, y, out)

    def _plan(self, entry: Callable[..., int], part: Any, *arguments: Any) -> None:
        """One call of a region that plans its memory itself."""
        team, scratch, count = threads.team(), self.scratch, threads.count()
        while needed := entry(part.region, team, count, part.address, scratch.address, scratch.size, *arguments):
            scratch.reserve(needed)


def flat(x: np.ndarray) -> np.ndarray:
    """float32 rows along the last axis, contiguous: [rows, n]."""
    return np.ascontiguousarray(x, FLOAT).reshape(-1, x.shape[-1])


def spans_of(rows: Rows) -> np.ndarray:
    """int64 [spans, 4]: slot, first row, the one behind the last, how many are certain."""
    return np.array([(s.slot, s.start, s.stop, s.certain) for s in rows.spans], np.int64)
