"""A reduced draft vocabulary: `d2t` holds what to add to a draft id, `t2d` says which target ids there are."""

from __future__ import annotations

import numpy as np

from turbospark.draft.dflash_config import DFlashConfig
from turbospark.errors import TurbosparkError
from turbospark.layers.weights import Weights
from turbospark.quant.tensor import QTensor

WHOLE = {"I64": "<i8", "I32": "<i4", "BOOL": "?", "U8": "u1", "I8": "i1"}


def draft_vocabulary(config: DFlashConfig, w: Weights) -> np.ndarray | None:
    """The target's id of each draft id, int64 [draft vocabulary], ascending; None where the drafter has them all.

    Raises `bad_vocabulary` for ids outside the target's, ids that come twice, and a mask that says otherwise.
    """
    if not w.has("d2t", suffix=""):
        if config.draft_vocab not in (None, config.vocab):
            message = (
                f"the drafter's vocabulary is reduced to {config.draft_vocab} of {config.vocab}; tensor d2t is missing"
            )
            raise TurbosparkError("missing_tensor", message)
        return None
    count = w.shape("d2t", suffix="")[0]
    if config.draft_vocab is not None and config.draft_vocab != count:
        raise _bad(f"draft_vocab_size is {config.draft_vocab}, tensor d2t has {count} ids")
    ids = np.arange(count) + _whole(w.tensor("d2t", (count,), suffix="")).astype(np.int64)
    outside = ids[(ids < 0) | (ids >= config.vocab)]
    if len(outside):
        raise _bad(f"tensor d2t leads to id {outside[0]}, the vocabulary is {config.vocab}")
    if (np.diff(ids) <= 0).any():
        raise _bad("tensor d2t leads to ids that do not ascend")
    if w.has("t2d", suffix=""):
        mask = _whole(w.tensor("t2d", (config.vocab,), suffix="")).astype(bool)
        if mask.sum() != count or not mask[ids].all():
            raise _bad(f"tensor t2d names {mask.sum()} ids, tensor d2t leads to {count}; they must be the same")
    return ids


def _whole(tensor: QTensor) -> np.ndarray:
    if tensor.format not in WHOLE:
        raise _bad(f"tensor {tensor.name} is {tensor.format}, must be one of {', '.join(WHOLE)}")
    return np.frombuffer(tensor.data.tobytes(), WHOLE[tensor.format])


def _bad(message: str) -> TurbosparkError:
    return TurbosparkError("bad_vocabulary", message)
