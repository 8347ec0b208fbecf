"""What is said while kernels compile: one line, at once to a terminal, to anything else when it takes long."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LONG = 5.0  # seconds of waiting that call for a word even where no one seems to watch
TEXT = "compiling the CPU kernels for this machine; this happens once and takes up to a minute"


class Progress:
    """Told of every piece of compilation as it begins. `quiet`: nothing is said."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None):
        self.quiet, self._stream = quiet, stream
        self._said = False
        self._began: float | None = None

    def begins(self, now: float | None = None) -> None:
        if self._said or self.quiet:
            return
        stream, now = self._stream or sys.stderr, time.monotonic() if now is None else now
        self._began = now if self._began is None else self._began
        if stream.isatty() or now - self._began > LONG:
            self._said = True
            print(TEXT, file=stream, flush=True)


progress = Progress()
