"""The target's output head as a drafter uses it: whole, or a copy of the rows that a reduced vocabulary has.

A selector needs no more of the head than each row's best few outputs. So a copy for it holds four bits of each value;
what looks best by the copy is scored again by the head itself, and the candidates are nearly always the head's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.kernels.api import Kernels
from turbospark.quant.tensor import QTensor

COPY = "Q4_0"
AGAIN = 2  # times as many outputs are scored again as are candidates
STEP = 1024  # rows that are encoded at once: what that takes stays in the second-level cache


@dataclass(frozen=True)
class DraftHead:
    """matrix [M, H], of whose outputs ids int64 [M], ascending, says what they are to the target.

    whole: the target's head [N, H], which scores the candidates where the matrix is not exact.
    """

    matrix: Any
    ids: np.ndarray
    whole: Any = None


def draft_head(kernels: Kernels, whole: Any, stored: QTensor, ids: np.ndarray | None, selects: bool) -> DraftHead:
    """whole: the target's head as it multiplies; stored: as it lies in the file. ids: None where all outputs count."""
    if ids is None:
        return DraftHead(whole, np.arange(stored.shape[0]))
    if not selects or not _shrinks(stored):
        return DraftHead(kernels.weight(quant.select_rows(stored, ids)), ids)
    steps = [quant.take_rows(stored, ids[start : start + STEP]) for start in range(0, len(ids), STEP)]
    data = np.concatenate([quant.encode(values, COPY, stored.name).data for values in steps])
    return DraftHead(kernels.weight(QTensor(stored.name, COPY, (len(ids), stored.shape[1]), data)), ids, whole)


def copied_bytes(stored: QTensor, count: int, selects: bool) -> int:
    """What the copy of so many rows takes in memory."""
    if selects and _shrinks(stored):
        return count * quant.get_format(COPY).row_bytes(stored.shape[1])
    return stored.nbytes * count // stored.shape[0]


def _shrinks(stored: QTensor) -> bool:
    copy = quant.get_format(COPY)
    return stored.shape[1] % copy.block == 0 and stored.nbytes > stored.shape[0] * copy.row_bytes(stored.shape[1])
