"""Where routed experts live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class ExpertStore(ABC):
    """The routed experts of one layer. All residencies give bit-equal outputs."""

    @abstractmethod
    def expert(self, index: int) -> tuple[Any, Any, Any]:
        """Gate, up and down of one expert as the backend's weights, usable until the step ends."""

    @abstractmethod
    def __len__(self) -> int: ...
