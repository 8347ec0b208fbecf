"""From what a user names to a drafter that fits the model, or to the reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.draft.base import Drafter
from turbospark.draft.dflash import DFlash
from turbospark.draft.dflash_config import DFlashConfig
from turbospark.draft.dflash_head import DraftHead, draft_head
from turbospark.draft.dflash_model import DFlashModel
from turbospark.draft.dflash_names import locator
from turbospark.draft.dflash_vocabulary import draft_vocabulary
from turbospark.draft.find import LACKS, Found, declared, opened, search
from turbospark.draft.fit import misfits
from turbospark.draft.mtp import MTP
from turbospark.draft.mtp_model import MTPModel
from turbospark.draft.ngram import NGram
from turbospark.errors import TurbosparkError
from turbospark.experts.base import Residency
from turbospark.formats.checkpoint import Checkpoint
from turbospark.formats.torch_file import read_torch
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights
from turbospark.models import names
from turbospark.models.base import Model
from turbospark.models.caches import MAX_BLOCK
from turbospark.quant.tensor import QTensor

KINDS = ("auto", "dflash", "mtp", "ngram")
MASK_FILE = "mask_embedding.pt"
Note = Callable[[str], None]


def load_drafter(
    named: str | os.PathLike[str] | None,
    model: Model,
    trunk: Checkpoint,
    slots: int,
    chunk: int,
    note: Note = lambda text: None,
) -> Drafter | None:
    """The drafter of that kind, or in that file or folder; None is none, and "auto" may find none.

    `trunk` is the checkpoint of `model`. "auto" passes over what does not fit, and tells `note`. Raises `no_drafter`,
    and `drafter_unfit` or what reading raises, with what `blocker` says.
    """
    if named is None:
        return None
    if named == "ngram":
        return NGram(slots, MAX_BLOCK)
    if named not in KINDS:
        return _drafter(_named(named, model), model, trunk, slots, chunk)

    def pass_over(error: TurbosparkError) -> None:
        if named != "auto":
            raise error
        note(f"passed over: {error.message}")

    for kind in ("dflash", "mtp") if named == "auto" else (str(named),):
        for found in search(kind, trunk, model.config, pass_over):
            try:
                return _drafter(found, model, trunk, slots, chunk)
            except TurbosparkError as error:
                pass_over(error)
    if named == "auto":
        return None
    raise TurbosparkError("no_drafter", f"{trunk.path.name} has no {named} drafter: {LACKS[str(named)]}", HOW)


HOW = "name a drafter's folder or file, or use ngram, which needs no weights"


def blocker(found: Found, model: Model, trunk: Checkpoint) -> str | None:
    """Why a drafter cannot serve this model, or None; nothing but its weights is opened for that."""
    try:
        _build(found, model, trunk)
    except TurbosparkError as error:
        return error.message
    return None


def _named(named: str | os.PathLike[str], model: Model) -> Found:
    path = Path(named)
    if not path.exists():
        message = f"drafter {str(named)!r} is neither a file, a folder nor one of {', '.join(KINDS)}"
        raise TurbosparkError("drafter_not_found", message)
    return opened(path, model.config)


def _drafter(found: Found, model: Model, trunk: Checkpoint, slots: int, chunk: int) -> Drafter:
    built = _build(found, model, trunk)
    if isinstance(built, MTPModel):
        return MTP(built, slots, chunk, MAX_BLOCK)
    return DFlash(built, slots, model.max_context, chunk, MAX_BLOCK)


def _build(found: Found, model: Model, trunk: Checkpoint) -> DFlashModel | MTPModel:
    """The drafter's weights, each of its shape and all of them used."""
    try:
        held = model.residency.beside(found.checkpoint.maps.values())
        if found.kind == "mtp":
            return MTPModel(model, found.checkpoint, held)
        return _dflash(found, model, trunk, held)
    except TurbosparkError as error:
        raise TurbosparkError(error.code, f"drafter {found.path.name}: {error.message}", error.hint) from None


def _dflash(found: Found, model: Model, trunk: Checkpoint, held: Residency) -> DFlashModel:
    config, kernels = declared(found), model.kernels
    mask_file = found.path / MASK_FILE
    mask = _mask(mask_file, config) if not found.prefix and mask_file.exists() else None
    reasons = list(misfits(config, model.config, mask is not None))
    if reasons:
        raise TurbosparkError("drafter_unfit", "; ".join(reasons))
    w = Weights(found.checkpoint, locator(found.checkpoint.kind, found.prefix), kernels, Trace(), (128, 128), held)
    head = _head(model, trunk, draft_vocabulary(config, w), config.selector is not None)
    embed = lambda ids: kernels.embed(ids, model.embedding)
    vector = None if mask is None else kernels.vector(mask)
    built = DFlashModel(config, w, embed, head, model.max_context, vector)
    w.check(lambda name: not name.startswith(found.prefix))
    return built


def _mask(path: Path, config: DFlashConfig) -> np.ndarray:
    """float32 [H], what a mask row embeds, from a tensor or from `embedding` of a dict."""
    stored: Any = read_torch(path)
    if isinstance(stored, dict):
        said = stored.get("mask_token_id", config.mask_id)
        if said != config.mask_id:
            message = f"{path.name} is of mask_token_id {said}, the config says {config.mask_id}"
            raise TurbosparkError("drafter_unfit", message)
        stored = stored.get("embedding")
    if not isinstance(stored, QTensor):
        raise TurbosparkError("drafter_unfit", f"{path.name} holds neither a tensor nor a dict with one as embedding")
    values = quant.decode(stored).reshape(-1)
    if len(values) != config.hidden:
        message = f"{path.name} has shape {list(stored.shape)}, the drafter's hidden size is {config.hidden}"
        raise TurbosparkError("drafter_unfit", message)
    return values


def _head(model: Model, trunk: Checkpoint, ids: np.ndarray | None, selects: bool) -> DraftHead:
    w = Weights(trunk, names.locator(trunk.kind, model.names), model.kernels, Trace(), model.config.scale_block)
    name = "output" if w.has("output") else "token_embd"
    stored = w.tensor(name, (model.config.vocab, model.config.hidden))
    return draft_head(model.kernels, model.output, stored, ids, selects)
