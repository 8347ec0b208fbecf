"""What a drafter takes in memory, known from headers before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbospark.cache.base import LayerCache
from turbospark.config.model import ModelConfig
from turbospark.config.registry import read_config
from turbospark.draft.dflash import context_caches
from turbospark.draft.dflash_head import copied_bytes
from turbospark.draft.dflash_names import locator
from turbospark.draft.find import Found, declared, opened, search
from turbospark.draft.mtp_model import head_config
from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Checkpoint
from turbospark.kernels.headers import HeaderKernels
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights
from turbospark.models import names
from turbospark.models.caches import layer_caches
from turbospark.models.registry import model_class


@dataclass(frozen=True)
class Needs:
    """Bytes. weights: of files of its own, and of head rows that it copies; caches: at a context, slots and a chunk."""

    weights: int = 0
    caches: Callable[[int, int, int], int] = lambda context, slots, chunk: 0


NOTHING = Needs()


def needs(named: str | os.PathLike[str], trunk: Checkpoint, config: ModelConfig) -> Needs:
    """Of the drafter asked for, as `load_drafter` will find it; nothing where there is none or it will be refused."""
    if named == "ngram":
        return NOTHING
    try:
        if named in ("auto", "dflash", "mtp"):
            kinds = ("dflash", "mtp") if named == "auto" else (str(named),)
            passed = lambda error: None  # load_drafter tells of it
            found = next((found for kind in kinds for found in search(kind, trunk, config, passed)), None)
        else:
            found = opened(Path(named), config)
        return NOTHING if found is None else _of(found, trunk, config)
    except TurbosparkError:
        return NOTHING


def _of(found: Found, trunk: Checkpoint, config: ModelConfig) -> Needs:
    own = 0 if found.checkpoint is trunk else found.checkpoint.nbytes
    kernels: Any = HeaderKernels()
    if found.kind == "mtp":
        head = head_config(read_config(found.checkpoint))
        return Needs(own, lambda *sizes: _bytes(layer_caches(head, kernels, *sizes)))
    c = declared(found)
    rows = _head_rows(found, trunk, config, c.selector is not None)
    return Needs(own + rows, lambda *sizes: _bytes(context_caches(c, kernels, *sizes)))


def _head_rows(found: Found, trunk: Checkpoint, config: ModelConfig, selects: bool) -> int:
    """Bytes of the rows that a reduced vocabulary copies from the trunk's head."""
    weights = lambda checkpoint, names: Weights(checkpoint, names, HeaderKernels(), Trace(), config.scale_block)  # type: ignore[arg-type]
    drafter = weights(found.checkpoint, locator(found.checkpoint.kind, found.prefix))
    if not drafter.has("d2t", suffix=""):
        return 0
    w = weights(trunk, names.locator(trunk.kind, model_class(config.family).names))
    head = w.tensor("output" if w.has("output") else "token_embd", (config.vocab, config.hidden))
    return copied_bytes(head, drafter.shape("d2t", suffix="")[0], selects)


def _bytes(caches: Sequence[LayerCache]) -> int:
    return sum(cache.nbytes for cache in caches)
