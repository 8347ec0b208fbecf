"""Where a block of accepted tokens ends: one cut for ids, text, logprobs, usage and caches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cut:
    """The first `count` tokens of the block stand, the rest never happened."""

    count: int
    reason: Literal["stop", "length"] | None  # None: the request goes on
    text: bytes  # safe to send now; may end inside a character
    tail: bytes  # held back, since it could begin a stop string; empty once there is a reason
    matched: bytes | int | None = None  # the stop string, or the end or stop id


def finish(
    tokens: Sequence[int],
    pieces: Sequence[bytes],
    tail: bytes,
    room: int,
    end_ids: Collection[int],
    stop_ids: Collection[int],
    stops: Sequence[bytes],
) -> Cut:
    """The cut of one block; the same whatever blocks the tokens come in, given the last cut's `tail`.

    tokens, pieces: the block's ids and each one's exact bytes (b"" for control tokens). room: tokens that may
    still be produced. end_ids: empty when the end is ignored. stops: non-empty UTF-8 strings.

    The first token with an event ends the block and is itself kept. Within one token:
      1. an end or stop id, which shows no text of its own;
      2. a stop string finished in it: the text ends before the stop, and of several the one that starts first
         counts (from the same start the shorter one, which was complete first);
      3. length.
    Text held back for a stop that did not come is released.
    """
    if room <= 0:
        return Cut(0, "length", tail, b"")
    sent: list[bytes] = []
    held = tail
    for count, (token, piece) in enumerate(zip(tokens, pieces, strict=True), 1):
        if token in end_ids or token in stop_ids:
            return Cut(count, "stop", b"".join(sent) + held, b"", token)
        held += piece
        found = [(held.find(stop), len(stop), stop) for stop in stops if stop in held]
        if found:
            start, _, stop = min(found)
            return Cut(count, "stop", b"".join(sent) + held[:start], b"", stop)
        if count == room:
            return Cut(count, "length", b"".join(sent) + held, b"")
        safe = len(held) - _pending(held, stops)
        sent.append(held[:safe])
        held = held[safe:]
    return Cut(len(tokens), None, b"".join(sent), held)


def _pending(text: bytes, stops: Sequence[bytes]) -> int:
    """How many bytes at the end of `text` could begin a stop string: the longest suffix that is a prefix."""
    longest = max(map(len, stops), default=1) - 1
    for size in range(min(len(text), longest), 0, -1):
        suffix = text[-size:]
        if any(stop.startswith(suffix) for stop in stops):
            return size
    return 0
