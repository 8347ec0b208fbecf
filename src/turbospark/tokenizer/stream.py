"""Bytes to text as they come: a character is shown once it is complete."""

from __future__ import annotations

import codecs


class Utf8Stream:
    """Incremental UTF-8: all texts join to `bytes.decode("utf-8", errors="replace")` of all bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """The text that is certain now; an unfinished character at the end waits for its next bytes."""
        return self._decoder.decode(data)

    def close(self) -> str:
        """What an unfinished character becomes (U+FFFD, or nothing). The stream is then as new."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
