"""What the commands write beside their results: notes, errors and progress on stderr."""

from __future__ import annotations

import sys
import time

from turbospark.errors import TurbosparkError
from turbospark.units import duration, size


def plain(text: str) -> str:
    """Text out of a file as one line: what a terminal would act upon is shown as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(error: TurbosparkError) -> None:
    """One line for the error, one for what helps."""
    note(f"error: {plain(error.message)} [{error.code}]" + (f"\nhint: {plain(error.hint)}" if error.hint else ""))


class Progress:
    """A line on stderr that counts to 100 %, for work that takes over a second; nothing where no one watches."""

    def __init__(self, what: str):
        self.what = what
        self._next = time.monotonic() + 1
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next and sys.stderr.isatty():
            self._next, self._shown = now + 0.1, True
            print(f"\r{self.what} {100 * done // max(total, 1)} %", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the line away again."""
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Transfer:
    """A line on stderr for bytes on their way: how many of how many, how fast, and the time left."""

    def __init__(self, what: str):
        self.what = what
        self._began = self._next = time.monotonic()
        self._first: int | None = None
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now < self._next or not sys.stderr.isatty():
            return
        self._next, self._shown = now + 0.2, True
        rate = (done - self._first) / max(now - self._began, 1e-9)
        left = f", {duration((total - done) / rate)} left" if rate > 0 and now - self._began > 1 else ""
        line = f"{self.what}: {size(done)} of {size(total)}, {size(rate)}/s{left}"
        print(f"\r\x1b[K{plain(line)}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the line away again."""
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
