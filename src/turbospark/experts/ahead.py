"""Whether reading experts ahead pays: what is read in vain for each second of waiting that it saves."""

from __future__ import annotations

from dataclasses import dataclass

TRIAL, PAUSE = 32, 512  # tokens of a trial, and of the time without reading ahead behind one that did not pay


@dataclass
class Ahead:
    """It pays while the bytes in vain, for each second saved, are fewer than the disk reads in one.

    most: experts a row that are read ahead while it does. A trial that did not pay is repeated after a pause.
    """

    most: int
    trial: int = TRIAL
    tokens: int = 0
    saved_s: float = 0.0
    vain: int = 0
    read: int = 0
    read_s: float = 0.0
    on: bool = True

    @property
    def wanted(self) -> int:
        return self.most if self.on else 0

    def begin(self, rows: int) -> None:
        """A forward of so many rows begins."""
        self.tokens += rows
        if self.tokens < (self.trial if self.on else PAUSE):
            return
        self.on = not self.on or self.pays
        self.tokens, self.vain, self.read, self.saved_s, self.read_s = 0, 0, 0, 0.0, 0.0

    @property
    def pays(self) -> bool:
        return self.vain * self.read_s <= self.saved_s * self.read

    def useful(self, saved_s: float) -> None:
        """An expert was asked for that had been read for so long by then."""
        self.saved_s += saved_s

    def wasted(self, nbytes: int) -> None:
        """One was read, or is being read, that was not asked for."""
        self.vain += nbytes

    def measured(self, nbytes: int, seconds: float) -> None:
        """The disk took so long for one."""
        self.read += nbytes
        self.read_s += seconds
