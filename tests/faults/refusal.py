"""Opening a file that is wrong."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import turbospark.formats.install  # what open_checkpoint imports late would count as its memory
import turbospark.formats.shards  # noqa: F401
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint


def refusal(path: Path) -> TurbosparkError:
    """The error that opening the file ends in, reached with little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(TurbosparkError) as caught:
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    return caught.value
