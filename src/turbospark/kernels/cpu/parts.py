"""The parts of a layer as the kernels take them: records of addresses and sizes, made once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from turbospark.kernels.cpu import attend, attention, delta, experts, feed_forward, heads, latent, projection, trunk
from turbospark.kernels.cpu.compile import Callback
from turbospark.kernels.cpu.elementary import CODE
from turbospark.kernels.cpu.inputs import aligned, input_bytes
from turbospark.kernels.cpu.linear import Weight, native
from turbospark.kernels.cpu.record import Record
from turbospark.kernels.parts import AttentionBranch, Delta, FeedForwardBranch, GatedMLP, Heads, Latents, Norm
from turbospark.quant.tensor import QTensor


def address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


def weight(norm: Norm | None) -> int:
    return 0 if norm is None else address(norm.weight)


def eps(norm: Norm | None) -> float:
    return 0.0 if norm is None else float(norm.eps)


class HeadWeights:
    """A matrix a head: [heads, N, K]."""

    def __init__(self, tensor: QTensor, exact: bool):
        self.tensor, self.shape = tensor, tensor.shape
        self.heads = [Weight(tensor[h], exact) for h in range(tensor.shape[0])]
        self.integer = self.heads[0].integer
        self.table = np.array([head.address for head in self.heads], np.int64)

    @staticmethod
    def native(tensor: QTensor) -> bool:
        return len(tensor.shape) == 3 and native(tensor[0])


class Part:
    """A record and the region that reads it; sizes: bytes of scratch by (rows, threads), where no kernel plans it."""

    callback: Callback

    @cached_property
    def region(self) -> int:
        """The kernel's address; it is compiled at its first use."""
        return self.callback.address

    def _describe(self, record: Record) -> None:
        self.record, self.address, self.sizes = record, record.address, dict[tuple[int, int], int]()


class Group(Part):
    """Matrices that read the same rows, with a bias or None each."""

    def __init__(self, weights: Sequence[Any], biases: Sequence[Any] = ()):
        self.pairs = tuple(zip(weights, biases or [None] * len(weights), strict=True))
        self.native = all(isinstance(w, Weight) for w in weights)
        if not self.native:
            return
        ends = np.cumsum([0, *(w.shape[0] for w in weights)]).tolist()
        self.parts = tuple(slice(*ends_) for ends_ in pairwise(ends))
        self.outputs, self.columns = ends[-1], weights[0].shape[1]
        integer = any(w.integer for w in weights)
        record = Record(projection.FIELDS, self.pairs, columns=self.columns, integer=integer, count=len(weights))
        matrices = [(w.address, address(b), w.shape[0], start) for (w, b), start in zip(self.pairs, ends, strict=False)]
        record.append(matrices)
        self._describe(record)
        self.norm: Norm | None = None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.pairs)

    @cached_property
    def project(self) -> int:
        return projection.project.address

    @cached_property
    def merge(self) -> int:
        return projection.merge.address

    def set_norm(self, norm: Norm | None) -> None:
        if norm is not self.norm:
            self.norm = norm
            self.record.set("norm", weight(norm))
            self.record.set("eps", eps(norm))

    def size(self, rows: int, threads: int) -> int:
        """Bytes of scratch a call takes."""
        return input_bytes(rows, self.columns, threads) + aligned(4 * rows * self.outputs)


class MLPPart(Part):
    """A gated feed-forward."""

    callback = feed_forward.feed_forward

    def __init__(self, mlp: GatedMLP):
        self.native = all(isinstance(w, Weight) for w in (mlp.gate, mlp.up, mlp.down))
        if not self.native:
            return
        self.width, self.hidden = mlp.gate.shape
        record = Record(
            feed_forward.FIELDS,
            mlp,
            hidden=self.hidden,
            width=self.width,
            activation=CODE[mlp.activation],
            gate=mlp.gate.address,
            up=mlp.up.address,
            down=mlp.down.address,
            integer_in=mlp.gate.integer or mlp.up.integer,
            integer_out=mlp.down.integer,
        )
        self._describe(record)
        self.call: tuple[Any, ...] = (None, None, 0)

    def set_call(self, norm: Norm | None, after: Norm | None, residual: int) -> None:
        """The norms before and behind; residual: 1 where the stream is added."""
        norm_, after_, residual_ = self.call
        if norm is not norm_ or after is not after_ or residual != residual_:
            self.call = norm, after, residual
            self.record.set("norm", weight(norm))
            self.record.set("eps", eps(norm))
            self.record.set("after", weight(after))
            self.record.set("after_eps", eps(after))
            self.record.set("residual", residual)

    def size(self, rows: int, threads: int) -> int:
        return feed_forward.feed_forward_bytes(rows, self.hidden, self.width, threads)


class AttendPart(Part):
    """Attention between its projections."""

    callback = attend.attend

    def __init__(self, parts: Heads):
        c, table = parts.config, parts.rotation
        self.width = c.heads * c.head_dim
        record = Record(
            heads.FIELDS,
            parts,
            heads=c.heads,
            kv_heads=c.kv_heads,
            key_width=c.head_dim,
            value_width=c.head_dim,
            window=c.window or 0,
            scale=float(c.scale),
            softcap=float(c.softcap or 0),
            out_row=self.width,
            out_head=c.head_dim,
            gate_head=2 * c.head_dim if c.gated else 0,
            query_head=c.head_dim * (2 if c.gated else 1),
            q_norm=weight(parts.q_norm),
            k_norm=weight(parts.k_norm),
            eps=eps(parts.q_norm),
        )
        self._describe(record)
        if c.rope is not None:
            self.record.set("cos", address(table.cos))
            self.record.set("sin", address(table.sin))
            self.record.set("pairs", table.cos.shape[1])
            self.record.set("interleaved", table.interleaved)


class BranchPart(Part):
    """Attention with its projections; its groups are its own, as their norms are fixed."""

    callback = attend.branch

    def __init__(self, parts: AttentionBranch):
        qkv, o = (Group(*zip(*group, strict=True)) for group in (parts.qkv, parts.o))
        self.native = qkv.native and o.native
        if not self.native:
            return
        self.qkv, heads = qkv, AttendPart(parts.heads)
        qkv.set_norm(parts.before)
        o.set_norm(parts.after)
        addresses = (qkv.address, heads.address, o.address)
        self._describe(Record.of(attend.FIELDS, addresses, keep=(qkv, heads, o)))


class TrunkPart(Part):
    """All layers of a model."""

    callback = trunk.trunk

    def __init__(self, layers: Sequence[Sequence[Any]]):
        self.native = bool(layers) and all(
            [type(branch) for branch in layer] == [AttentionBranch, FeedForwardBranch] for layer in layers
        )
        if not self.native:
            return
        pairs = [(BranchPart(attention), MLPPart(feed.mlp)) for attention, feed in layers]
        self.native = all(part.native for pair in pairs for part in pair)
        if not self.native:
            return
        for (_, mlp), (_, feed) in zip(pairs, layers, strict=True):
            mlp.set_call(feed.before, feed.after, 1)
        record = Record(trunk.FIELDS, keep=pairs, layers=len(layers))
        record.append([(a.region, a.address, f.region, f.address, 0) for a, f in pairs])
        self._describe(record)


class AttentionPart(Part):
    """Attention alone."""

    callback = attend.attention_alone

    def __init__(self, heads: int, kv_heads: int, width: int, value_width: int, scale: float, softcap: float):
        record = Record(
            attention.FIELDS,
            heads=heads,
            kv_heads=kv_heads,
            key_width=width,
            value_width=value_width,
            scale=float(scale),
            softcap=float(softcap),
            out_row=heads * value_width,
            out_head=value_width,
        )
        self._describe(record)


class LatentPart(Part):
    """Latent attention between its projections."""

    callback = latent.latent

    def __init__(self, parts: Latents):
        c, table = parts.config, parts.rotation
        self.native = isinstance(parts.k_up, HeadWeights) and isinstance(parts.v_up, HeadWeights)
        if not self.native:
            return
        self.width, self.heads, self.widest = c.heads * c.value_dim, c.heads, max(c.nope_dim, c.latent)
        record = Record(
            latent.FIELDS,
            parts,
            heads=c.heads,
            kv_heads=1,
            key_width=c.latent + c.rope.dim,
            value_width=c.latent,
            scale=float(c.scale),
            nope=c.nope_dim,
            rope=c.rope.dim,
            latent=c.latent,
            value=c.value_dim,
            norm=weight(parts.norm),
            eps=eps(parts.norm),
            cos=address(table.cos),
            sin=address(table.sin),
            interleaved=table.interleaved,
            k_up=address(parts.k_up.table),
            v_up=address(parts.v_up.table),
            k_integer=parts.k_up.integer,
            v_integer=parts.v_up.integer,
            out_row=c.latent,
        )
        self._describe(record)


class DeltaPart(Part):
    """Gated DeltaNet between its projections."""

    callback = delta.gated_delta

    def __init__(self, parts: Delta):
        c = parts.config
        conv = np.ascontiguousarray(parts.conv.T)
        key_head = np.ascontiguousarray(parts.key_head, np.int64)
        record = Record(
            delta.FIELDS,
            (parts, conv, key_head),
            key_heads=c.key_heads,
            conv=address(conv),
            a_neg=address(parts.a_neg),
            dt_bias=address(parts.dt_bias),
            norm=weight(parts.norm),
            eps=eps(parts.norm),
            key_head=address(key_head),
        )
        self._describe(record)


class ExpertsPart(Part):
    """The routed experts of one layer. `table` holds the weights' addresses of those that have come so far."""

    callback = experts.experts

    def __init__(self, store: Any, activation: str):
        count = len(store)
        self._known: list[Any] = [None] * count
        self.table, self.taken = np.zeros((count, 3), np.int64), np.zeros(count, np.int64)
        width, self.hidden = store.shape
        record = Record(
            experts.FIELDS,
            experts=count,
            hidden=self.hidden,
            width=width,
            activation=CODE[activation],
            table=self.table.ctypes.data,
            taken=self.taken.ctypes.data,
        )
        self._describe(record)

    def take(self, group: Mapping[int, Sequence[Any]]) -> dict[int, Sequence[Any]]:
        """The next call computes these experts; returns those that have no native kernels, which it does not."""
        foreign = {}
        self.taken[:] = 0
        for e, weights in group.items():
            if weights[0] is not self._known[e]:
                if not all(isinstance(w, Weight) for w in weights):
                    foreign[e] = weights
                    continue
                gate, up, down = weights
                self._known[e] = gate
                self.table[e] = gate.address, up.address, down.address
                if gate.integer or up.integer:
                    self.record.set("integer_in", 1)
                if down.integer:
                    self.record.set("integer_out", 1)
            self.taken[e] = 1
        return foreign

    def places(self, ids: np.ndarray, expert: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows that chose an expert, and where the kernel wants their results among `sums`."""
        row, choice = np.nonzero(ids == expert)
        places = np.frombuffer(self._memory("places", 8 * ids.size), np.int64).reshape(ids.shape)
        return row, places[row, choice]

    def sums(self, count: int) -> np.ndarray:
        """float32 [count, hidden], the results of all choices in the order of their places."""
        return np.frombuffer(self._memory("sums", 4 * count * self.hidden), np.float32).reshape(count, -1)

    def _memory(self, field: str, nbytes: int) -> Any:
        """Scratch that the last call with `begin` laid out."""
        at = int(self.record.fields[self.record.names.index(field)])
        return (ctypes.c_uint8 * nbytes).from_address(at)
