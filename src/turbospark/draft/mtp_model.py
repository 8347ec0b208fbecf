"""Multi-token prediction as mathematics: one more layer that sees each state beside the token that came next.

Source: DeepSeek-V3 (arXiv 2412.19437, 2.2) and the qwen3_5 checkpoints, which agree but for names: the embedding's
half comes first, and the target's state is taken after its final norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turbospark.cache.base import LayerCache
from turbospark.config.model import GatedDelta, ModelConfig
from turbospark.config.registry import read_config
from turbospark.draft.mtp_names import belongs, locator
from turbospark.errors import TurbosparkError
from turbospark.experts.base import Residency
from turbospark.kernels.rows import Rows
from turbospark.layers.rotations import rotations
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights
from turbospark.models.base import DERIVED, Model
from turbospark.models.caches import layer_caches
from turbospark.models.registry import model_class


@dataclass(frozen=True)
class Frame:
    """What a family's layer asks of the model it is in."""

    config: ModelConfig
    rotations: dict[Any, Any]


class MTPModel:
    """A head's weights from a checkpoint, which may be the trunk's; embedding and output are the trunk's unless it has
    its own. Norms follow the convention of the file that holds them."""

    def __init__(self, model: Model, checkpoint: Any, residency: Residency | None = None):
        trunk, own = model.config, read_config(checkpoint)
        _check(trunk, own)
        family, n, hidden = model_class(own.family), len(trunk.layers), trunk.hidden
        names = locator(checkpoint.kind, family.names)
        w = Weights(checkpoint, names, model.kernels, Trace(), own.scale_block, residency)
        w = w.scope(f"blk.{n}.")
        self.kernels, self.max_context = model.kernels, model.max_context
        self.config = head_config(own)
        self.embedding_norm, self.hidden_norm = w.norm("nextn.enorm", hidden, own), w.norm("nextn.hnorm", hidden, own)
        self.fuse = w.matrix("nextn.eh_proj", hidden, 2 * hidden)
        frame: Any = Frame(own, rotations(self.config, w, model.max_context))
        self.layer = family.layer(frame, self.config.layers[0], w)
        self.norm = w.norm("nextn.shared_head_norm", hidden, own)
        has = lambda name: w.has(f"nextn.{name}")
        matrix = lambda name: w.matrix(f"nextn.{name}", trunk.vocab, hidden)
        self.embedding = matrix("embed_tokens") if has("embed_tokens") else model.embedding
        self._own_output = matrix("shared_head_head") if has("shared_head_head") else None
        self._trunk_logits = model.logits
        w.check(lambda name: not belongs(name, n) or name.endswith(DERIVED))

    def __call__(self, ids: np.ndarray, hidden: Any, rows: Rows, cache: LayerCache) -> Any:
        """States [R, H] after the head's norm. Row i: the target's state hidden[i] at its position, and the token
        ids[i] that followed it; the output at that position tells the token after that one."""
        kernels = self.kernels
        embedded = kernels.norm(kernels.embed(ids, self.embedding), self.embedding_norm.weight, self.embedding_norm.eps)
        state = kernels.norm(hidden, self.hidden_norm.weight, self.hidden_norm.eps)
        x = self.layer(kernels.linear(kernels.join([embedded, state]), self.fuse), rows, cache)
        return kernels.norm(x, self.norm.weight, self.norm.eps)

    def logits(self, state: Any) -> np.ndarray:
        """float32 [R, vocab] of states after the head's norm; a row that is not finite is refused by name."""
        own = self._own_output
        values = self.kernels.to_numpy(self._trunk_logits(state) if own is None else self.kernels.linear(state, own))
        if not np.isfinite(values).all():
            raise TurbosparkError(
                "non_finite_draft", "the MTP head's logits are not finite", "its weights may be damaged"
            )
        return values

    def cache(self, slots: int, chunk: int) -> LayerCache:
        return layer_caches(self.config, self.kernels, self.max_context, slots, chunk)[0]


def head_config(own: ModelConfig) -> ModelConfig:
    """The head as a model of one layer, which is like the trunk's last one with attention."""
    layer = next(layer for layer in reversed(own.layers) if not isinstance(layer.mixer, GatedDelta))
    return replace(own, layers=(layer,))


def _check(trunk: ModelConfig, own: ModelConfig) -> None:
    for what in ("family", "hidden", "vocab"):
        ours, theirs = getattr(own, what), getattr(trunk, what)
        if ours != theirs:
            raise TurbosparkError("drafter_unfit", f"the MTP head's {what} is {ours}, the model's is {theirs}")
    if len(own.layers) != len(trunk.layers):
        message = f"the MTP head is of a model of {len(own.layers)} layers, this one has {len(trunk.layers)}"
        raise TurbosparkError("drafter_unfit", message)
    if own.mtp_layers > 1:
        raise TurbosparkError("drafter_unfit", f"the file has {own.mtp_layers} MTP layers, 1 is implemented")
    if all(isinstance(layer.mixer, GatedDelta) for layer in own.layers):
        raise TurbosparkError("drafter_unfit", "no layer of the model has attention, which an MTP head's has")
