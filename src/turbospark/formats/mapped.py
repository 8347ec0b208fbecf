"""A file mapped read-only: every tensor is a view into it, and it is closed when the last view is gone."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from pathlib import Path

import numpy as np

from turbospark.errors import TurbosparkError


class MappedFile:
    """`data` is uint8 [size], read-only, paged in by the system as it is touched.

    A file replaced by a rename keeps its old content here. A file cut in place loses the pages behind its new
    end, and touching one of them ends the process (SIGBUS): `check_size` refuses such a file before anything
    new is opened in it, but cannot protect the views handed out earlier.
    Raises `file_missing`, `file_unreadable`, `not_a_file` or `file_empty`.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise TurbosparkError("not_a_file", f"{path} is not a regular file")
            with path.open("rb") as handle:
                self.size = handle.seek(0, 2)
                if self.size == 0:
                    raise TurbosparkError("file_empty", f"{path} is empty", "download or copy it again")
                self.descriptor = os.dup(handle.fileno())  # for reads of its own, and to see it change
                weakref.finalize(self, os.close, self.descriptor)
                self._changed = os.fstat(self.descriptor).st_mtime_ns
                self.map = mmap.mmap(handle.fileno(), self.size, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise TurbosparkError("file_missing", f"{path} does not exist") from None
        except (OSError, ValueError) as error:
            raise TurbosparkError("file_unreadable", f"{path} cannot be read: {error}") from None
        self.data = np.frombuffer(self.map, np.uint8)

    def cut(self, what: str, needs: int, at: int) -> TurbosparkError:
        """The error for `what`, which needs `needs` bytes at byte `at` and finds fewer."""
        has = max(self.size - at, 0)
        message = f"{self.path} is cut or corrupt: {what} needs {needs} bytes at byte {at}, has {has}"
        return TurbosparkError("file_cut", message, "download or copy it again")

    def check_size(self) -> None:
        """Refuses a file that was cut or grown in place since it was mapped (`file_changed`)."""
        size = self.map.size()
        if size != self.size:
            message = f"{self.path} changed while open: it had {self.size} bytes and now has {size}"
            raise TurbosparkError("file_changed", message, "open it again")

    def check_unchanged(self) -> None:
        """Refuses a file of another size or time of change than when it was mapped (`file_changed`)."""
        now = os.fstat(self.descriptor)
        if now.st_size != self.size:
            self.check_size()
        if now.st_mtime_ns != self._changed:
            later = (now.st_mtime_ns - self._changed) / 1e9
            message = f"{self.path} changed while open: it was written to {later:.3f} s after it was before"
            raise TurbosparkError("file_changed", message, "open it again")
