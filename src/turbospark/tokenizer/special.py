"""Finding the tokens that are taken from a text as they stand, before anything merges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class SpecialTokens:
    """ids: text -> token id. Of all that match, the leftmost is taken, and the longest of those that begin there."""

    def __init__(self, ids: Mapping[str, int]):
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {begin: sorted(sizes, reverse=True) for begin, sizes in lengths.items()}
        firsts = "".join(re.escape(first) for first in {text[0] for text in ids})
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")

    def split(self, text: str) -> Iterator[str | int]:
        """The text in order: stretches without special tokens as str, special tokens as ids."""
        done = 0
        for match in self._first.finditer(text):
            at = match.start()
            if at >= done and (length := self._longest(text, at)):
                if at > done:
                    yield text[done:at]
                done = at + length
                yield self._ids[text[at:done]]
        if done < len(text):
            yield text[done:]

    def _longest(self, text: str, at: int) -> int:
        for length in self._lengths.get(text[at : at + 2], ()):
            if text[at : at + length] in self._ids:
                return length
        return 1 if text[at] in self._ids else 0
