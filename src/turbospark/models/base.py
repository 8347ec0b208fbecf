"""What every family shares: embed, layers, final norm, head; and the taps drafters read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from turbospark.cache.base import LayerCache
from turbospark.config.model import Layer, ModelConfig
from turbospark.experts.base import Residency
from turbospark.experts.mapped import Mapped
from turbospark.kernels.api import Kernels
from turbospark.kernels.rows import Rows
from turbospark.layers.rotations import rotations
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Source, Weights
from turbospark.models.caches import layer_caches
from turbospark.models.names import locator

DERIVED = ("rotary_emb.inv_freq", "attn_rot_embd.weight")  # old files store what their configuration says already

DRAFTERS = ("dflash.",)  # tensors of a drafter in the same file


@dataclass(frozen=True)
class Forward:
    """hidden [R, H] after the final norm; taps: zero-based layer -> the residual stream [R, H] at its output."""

    hidden: Any
    taps: dict[int, Any]


class Model(ABC):
    """A family. Its file says how one layer transforms the stream and, where names differ, what they are called."""

    names: ClassVar[dict[str, str]] = {}  # HF names that differ from models/names.py
    unused: ClassVar[tuple[str, ...]] = ()  # beginnings of tensor names that may stay unused

    def __init__(
        self,
        config: ModelConfig,
        source: Source,
        kind: str,
        kernels: Kernels,
        max_context: int,
        residency: Residency | None = None,
    ):
        self.config, self.kernels, self.max_context = config, kernels, max_context
        self.trace, self.residency = Trace(), residency or Mapped()
        w = Weights(source, locator(kind, self.names), kernels, self.trace, config.scale_block, self.residency)
        self.embedding = w.matrix("token_embd", config.vocab, config.hidden)
        self.rotations = rotations(config, w, max_context)
        self.layers = [self.layer(layer, w.scope(f"blk.{i}.")) for i, layer in enumerate(config.layers)]
        self._whole = kernels.trunk([getattr(layer, "branches", ()) for layer in self.layers])
        self.norm = w.vector("output_norm", config.hidden, offset=config.norm_offset)
        # a file that says "tied" and yet holds a head means that head
        tied = config.tied and not w.has("output")
        self.output = self.embedding if tied else w.matrix("output", config.vocab, config.hidden)
        w.check(lambda name: name.startswith(self.ignored(kind)) or name.endswith(DERIVED))

    @abstractmethod
    def layer(self, config: Layer, w: Weights) -> Any:
        """A layer: called with (x [R, H], rows, cache), returns the stream at its output."""

    def ignored(self, kind: str) -> tuple[str, ...]:
        """Beginnings of tensor names that a file of this kind may hold and the trunk does not read."""
        heads = tuple(
            f"{p}{self.trunk_layers + i}." for i in range(self.config.mtp_layers) for p in ("blk.", "model.layers.")
        )
        return (*self.unused, *heads, *DRAFTERS)

    @property
    def trunk_layers(self) -> int:
        return len(self.config.layers)

    def __call__(self, rows: Rows, caches: Sequence[LayerCache], taps: Sequence[int] = ()) -> Forward:
        """One forward over the rows, appending them to the caches."""
        self.residency.begin(len(rows.ids))
        x = self.kernels.embed(rows.ids, self.embedding)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if self._whole is not None and self.trace.sink is None:
            x, tapped = self._whole(x, rows, caches, taps)
            return Forward(self.kernels.norm(x, self.norm, self.config.eps), tapped)
        tapped = {}
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer(x, rows, cache)
            self.trace.scoped(f"blk.{i}.")("out", x)
            if i in taps:
                tapped[i] = x
        return Forward(self.kernels.norm(x, self.norm, self.config.eps), tapped)

    def logits(self, hidden: Any) -> Any:
        """hidden [R, H] after the final norm -> float32 [R, vocab]."""
        logits = self.kernels.linear(hidden, self.output)
        cap = self.config.output_softcap
        return logits if cap is None else self.kernels.softcap(logits, cap)

    def caches(self, slots: int, chunk: int) -> list[LayerCache]:
        """A cache for each layer; `chunk` bounds the rows of a sequence in one forward."""
        return layer_caches(self.config, self.kernels, self.max_context, slots, chunk)
