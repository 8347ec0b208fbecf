"""What experts cost: how often they were there, what was read, and how long a forward waited."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Traffic:
    """Sums: of a model since it was loaded, or of one request. tokens: rows of forwards over streamed experts.

    hits and misses: experts asked for by a layer, once for all its rows; one on its way counts as a miss. Bytes as read
    from files. guesses: experts read ahead, useful: those that were then asked for, dropped: not begun when it was
    known that they would not be; vain: bytes of the others; saved_s: how long useful ones had been read when they were
    asked for. route_s, shared_s, experts_s and wait_s: seconds in mixtures; wait_s is that part in
    which nothing could be computed, and no part of experts_s.
    """

    tokens: int = 0
    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    guesses: int = 0
    useful: int = 0
    dropped: int = 0
    vain: int = 0
    saved_s: float = 0.0
    route_s: float = 0.0
    shared_s: float = 0.0
    experts_s: float = 0.0
    wait_s: float = 0.0

    def copy(self) -> Traffic:
        return Traffic(**vars(self))

    def since(self, earlier: Traffic) -> Traffic:
        return Traffic(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})

    def add(self, span: Traffic) -> None:
        """Counts a span of another's in."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(span, f.name))

    @property
    def wait_per_token_s(self) -> float:
        return self.wait_s / self.tokens if self.tokens else 0.0

    @property
    def hit_rate(self) -> float:
        asked = self.hits + self.misses
        return self.hits / asked if asked else 1.0

    @property
    def precision(self) -> float | None:
        """Of the experts read ahead, the share that was then asked for; None where none was."""
        read = self.guesses - self.dropped
        return self.useful / read if read else None
