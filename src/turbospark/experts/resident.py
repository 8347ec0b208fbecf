"""Experts that stay in memory (or in the mapped file) as they are."""

from __future__ import annotations

from typing import Any

from turbospark.experts.base import ExpertStore


class Resident(ExpertStore):
    def __init__(self, parts: list[tuple[Any, Any, Any]]):
        self._parts = parts

    def expert(self, index: int) -> tuple[Any, Any, Any]:
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)
