"""Named intermediates: numeric faults are found by comparing them with another implementation's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Trace:
    """Layers report `trace(name, value)`; nothing happens until `sink` is set to a callable of (full name, value)."""

    def __init__(self) -> None:
        self.sink: Callable[[str, Any], None] | None = None

    def scoped(self, prefix: str) -> Callable[[str, Any], None]:
        """A reporter whose names begin with `prefix`."""

        def report(name: str, value: Any) -> None:
            if self.sink is not None:
                self.sink(prefix + name, value)

        return report
