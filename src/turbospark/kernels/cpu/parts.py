"""The parts of a layer as the kernels take them: records of addresses and sizes, made once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from turbospark.kernels.cpu import attend, feed_forward, heads, projection
from turbospark.kernels.cpu.elementary import CODE
from turbospark.kernels.cpu.inputs import aligned, input_bytes
from turbospark.kernels.cpu.linear import Weight
from turbospark.kernels.cpu.record import Record
from turbospark.kernels.parts import GatedMLP, Heads, Norm


def address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


def weight(norm: Norm | None) -> int:
    return 0 if norm is None else address(norm.weight)


def eps(norm: Norm | None) -> float:
    return 0.0 if norm is None else float(norm.eps)


class Group:
    """Matrices that read the same rows, with a bias or None each."""

    def __init__(self, weights: Sequence[Any], biases: Sequence[Any] = ()):
        self.pairs = tuple(zip(weights, biases or [None] * len(weights), strict=True))
        self.native = all(isinstance(w, Weight) for w in weights)
        if not self.native:
            return
        ends = np.cumsum([0, *(w.shape[0] for w in weights)]).tolist()
        self.bounds, self.outputs, self.columns = tuple(pairwise(ends)), ends[-1], weights[0].shape[1]
        self.record = Record(
            projection.FIELDS,
            self.pairs,
            columns=self.columns,
            integer=any(w.integer for w in weights),
            count=len(weights),
        )
        self.record.append(
            [(w.address, address(b), w.shape[0], before) for (w, b), before in zip(self.pairs, ends, strict=False)]
        )
        self.project, self.merge = projection.project.address, projection.merge.address
        self.norm: Norm | None = None
        self.sizes: dict[int, int] = {}

    def set_norm(self, norm: Norm | None) -> None:
        if norm is not self.norm:
            self.norm = norm
            self.record.set("norm", weight(norm))
            self.record.set("eps", eps(norm))

    def size(self, rows: int, threads: int) -> int:
        """Bytes of scratch a call takes."""
        return input_bytes(rows, self.columns, threads) + aligned(4 * rows * self.outputs)


class MLPPart:
    """A gated feed-forward."""

    def __init__(self, mlp: GatedMLP):
        self.native = all(isinstance(w, Weight) for w in (mlp.gate, mlp.up, mlp.down))
        if not self.native:
            return
        self.width, self.hidden = mlp.gate.shape
        self.record = Record(
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
        self.region = feed_forward.feed_forward.address
        self.call: tuple[Any, ...] = (None, None, 0)
        self.sizes: dict[int, int] = {}

    def set_call(self, *call: Any) -> None:
        """norm before, norm after, and 1 where the stream is added."""
        if call != self.call:
            self.call = norm, after, residual = call
            self.record.set("norm", weight(norm))
            self.record.set("eps", eps(norm))
            self.record.set("after", weight(after))
            self.record.set("after_eps", eps(after))
            self.record.set("residual", residual)

    def size(self, rows: int, threads: int) -> int:
        return feed_forward.feed_forward_bytes(rows, self.hidden, self.width, threads)


class AttendPart:
    """Attention between its projections."""

    def __init__(self, parts: Heads):
        c, table = parts.config, parts.rotation
        self.width = c.heads * c.head_dim
        self.record = Record(
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
        if c.rope is not None:
            self.record.set("cos", address(table.cos))
            self.record.set("sin", address(table.sin))
            self.record.set("pairs", table.cos.shape[1])
            self.record.set("interleaved", table.interleaved)
        self.region = attend.attend.address
