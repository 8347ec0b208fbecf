"""Every layer's cache under one cursor a slot, and the prefixes that slots still hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turbospark.cache.base import LayerCache
from turbospark.kernels.rows import Rows, Span

SNAPSHOTS = 2  # kept a slot; each holds a copy of what its layers cannot rewind


@dataclass(frozen=True)
class Snapshot:
    """The state of a slot when `length` rows were committed; `layers` holds what rows alone do not tell.

    written: positions ever written by then, rejected rows included: a ring's copy bears their marks.
    """

    length: int
    written: int
    layers: tuple[Any, ...]


@dataclass(frozen=True)
class Prefix:
    """A reusable beginning: `length` rows of `slot`, by its present state or by a snapshot."""

    slot: int
    length: int
    snapshot: Snapshot | None


@dataclass
class Cursor:
    """tokens: the committed ids; written: positions ever written; pending: rows appended and not yet committed."""

    tokens: list[int] = field(default_factory=list)
    written: int = 0
    pending: tuple[list[int], int] | None = None
    snapshots: list[Snapshot] = field(default_factory=list)


class Session:
    """begin(rows), the forward, then commit(slot, n) for each span: the three verbs over all layers."""

    def __init__(self, layers: Sequence[LayerCache], slots: int, context: int):
        self.layers = tuple(layers)
        self.context = context
        self.cursors = [Cursor() for _ in range(slots)]
        # a trunk all of whose layers rewind by moving the cursor needs no snapshots
        self.rewinds = all(layer.reaches(1, 2, context) for layer in self.layers)

    def length(self, slot: int) -> int:
        return len(self.cursors[slot].tokens)

    def begin(self, rows: Rows) -> None:
        """Declares the rows of the next forward; each span must start at its slot's cursor."""
        for span in rows.spans:
            cursor, first = self.cursors[span.slot], int(rows.positions[span.start])
            if cursor.pending is not None or first != len(cursor.tokens):
                raise RuntimeError(
                    f"slot {span.slot} stands at {len(cursor.tokens)}, rows start at {first}, or uncommitted"
                )
            self._check_room(span, first)
            cursor.pending = ([int(i) for i in rows.ids[span.start : span.stop]], span.certain)
            cursor.written = max(cursor.written, first + len(span))

    def commit(self, slot: int, count: int) -> None:
        """Keeps the first `count` pending rows of a slot; the certain ones can not be given up."""
        cursor = self.cursors[slot]
        if cursor.pending is None or not cursor.pending[1] <= count <= len(cursor.pending[0]):
            raise RuntimeError(f"slot {slot}: {count} rows to commit, pending and certain are {cursor.pending}")
        ids, certain = cursor.pending
        for layer in self.layers:
            layer.commit(slot, count - certain)
        cursor.tokens.extend(ids[:count])
        cursor.pending = None

    def checkpoint(self, slot: int) -> Snapshot:
        """Remembers the slot's present end, so that it can be returned to after the slot has gone on."""
        cursor = self._settled(slot)
        length = len(cursor.tokens)
        layers = tuple(layer.snapshot(slot, length) for layer in self.layers)
        snapshot = Snapshot(length, cursor.written, layers)
        cursor.snapshots = [*cursor.snapshots, snapshot][-SNAPSHOTS:]
        return snapshot

    def find(self, ids: Sequence[int]) -> Prefix | None:
        """The longest beginning of `ids` that a slot can give, at least one row short of all of them."""
        best: Prefix | None = None
        for slot, cursor in enumerate(self.cursors):
            common = _common(cursor.tokens, ids[:-1])
            lengths: list[tuple[int, Snapshot | None]] = []
            if all(layer.reaches(common, len(cursor.tokens), cursor.written) for layer in self.layers):
                lengths.append((common, None))
            lengths += [(s.length, s) for s in cursor.snapshots if s.length <= common]
            for length, snapshot in lengths:
                if length and (best is None or length > best.length):
                    best = Prefix(slot, length, snapshot)
        return best

    def adopt(self, slot: int, prefix: Prefix) -> None:
        """Makes `slot` stand at the end of a prefix found before; neither slot may have rows to commit."""
        self._settled(slot)
        source = self._settled(prefix.slot)
        for i, layer in enumerate(self.layers):
            layer.restore(slot, prefix.slot, prefix.length, prefix.snapshot.layers[i] if prefix.snapshot else None)
        kept = [s for s in source.snapshots if s.length <= prefix.length]
        # a ring adopted in place still bears the marks of what was written past this point
        written = source.written if prefix.snapshot is None else prefix.snapshot.written
        self.cursors[slot] = Cursor(source.tokens[: prefix.length], written, None, kept)

    def reset(self, slot: int) -> None:
        for layer in self.layers:
            layer.reset(slot)
        self.cursors[slot] = Cursor()

    def _settled(self, slot: int) -> Cursor:
        """The cursor of a slot none of whose rows wait for their commit."""
        cursor = self.cursors[slot]
        if cursor.pending is not None:
            raise RuntimeError(f"slot {slot} has {len(cursor.pending[0])} rows that are not committed")
        return cursor

    def _check_room(self, span: Span, first: int) -> None:
        if first + len(span) > self.context:
            raise RuntimeError(f"slot {span.slot}: rows up to {first + len(span)} in a context of {self.context}")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])
