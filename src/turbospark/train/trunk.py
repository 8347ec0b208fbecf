"""A trunk as a frozen torch module: hidden states, tapped layers, logits, and one token of many sequences at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from turbospark import quant
from turbospark.config.model import Attention, ModelConfig
from turbospark.config.registry import read_config
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.formats.checkpoint import Checkpoint
from turbospark.models.names import locator
from turbospark.models.registry import model_class
from turbospark.train.layers import LlamaLayer, Rotation, Take, rms
from turbospark.train.qwen import QwenLayer


class Taken(NamedTuple):
    """hidden [S, T, H] after the final norm; taps [S, T, n * H], the tapped layers' outputs side by side."""

    hidden: Tensor
    taps: Tensor


class Source:
    """A checkpoint's tensors by canonical name, decoded onto a device."""

    def __init__(self, checkpoint: Checkpoint, family: str, device: torch.device, dtype: torch.dtype):
        self.checkpoint, self.device, self.dtype = checkpoint, device, dtype
        self._locate = locator(checkpoint.kind, model_class(family).names)

    def find(self, name: str) -> str | None:
        return next((n for n in self._locate(name) if n in self.checkpoint.tensors), None)

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        found = self.find(name)
        if found is None:
            raise TurbosparkError("tensor_missing", f"{self.checkpoint.path} has no tensor {name}")
        tensor = self.checkpoint.open(found)
        if tuple(n for n in tensor.shape if n > 1) != tuple(n for n in shape if n > 1):  # a convolution has one more
            message = f"tensor {found} has shape {list(tensor.shape)}, the configuration asks for {list(shape)}"
            raise TurbosparkError("shape_mismatch", message)
        values = torch.from_numpy(np.array(quant.decode(tensor), np.float32))
        return values.reshape(shape).to(self.device, dtype or self.dtype)

    def layer(self, index: int) -> Take:
        return lambda name, *shape, dtype=None: self(f"blk.{index}.{name}", *shape, dtype=dtype)


class Trunk:
    """Embedding, layers, final norm and head of a frozen model. `families` says which layer serves which family."""

    families: ClassVar[dict[str, Any]] = {"llama": LlamaLayer, "qwen3_5": QwenLayer}

    def __init__(self, config: ModelConfig, source: Source, positions: int):
        self.config, self.device, self.dtype, self.positions = config, source.device, source.dtype, positions
        make = self.families.get(config.family)
        if make is None or not all(map(make.serves, config.layers)):
            known = ", ".join(self.families)
            raise TurbosparkError(
                "unsupported_trunk",
                f"{source.checkpoint.path.name}: layers of the family {config.family} cannot be trained on here",
                f"a trunk of plain layers of these families can: {known}",
            )
        self.embedding = source("token_embd.weight", config.vocab, config.hidden)
        self.norm = source("output_norm.weight", config.hidden, dtype=torch.float32) + config.norm_offset
        tied = source.find("output.weight") is None
        self.head = self.embedding if tied else source("output.weight", config.vocab, config.hidden)
        rope = attention_of(config).rope
        factors = None
        if source.find("rope_freqs.weight"):
            factors = source("rope_freqs.weight", rope.dim // 2, dtype=torch.float32).cpu().numpy()
        self.rotation = Rotation(rope, positions, source.device, factors)
        self.layers = [make(config, layer, source.layer(i), self.rotation) for i, layer in enumerate(config.layers)]

    @torch.no_grad()
    def full(self, ids: Tensor, taps: Sequence[int] = ()) -> Taken:
        """Whole sequences ids [S, T] from position 0."""
        x, found = functional.embedding(ids, self.embedding), {}
        for i, layer in enumerate(self.layers):
            x = layer.full(x)
            if i in taps:
                found[i] = x
        side = torch.cat([found[t] for t in taps], -1) if taps else x[..., :0]
        return Taken(rms(x, self.norm, self.config.eps), side)

    @torch.no_grad()
    def step(self, ids: Tensor, position: Tensor, state: Sequence[Any], length: int) -> Tensor:
        """Logits [S, vocab] after one token ids [S] at `position` [1] of each sequence; `length` > position."""
        x = functional.embedding(ids, self.embedding)
        for layer, own in zip(self.layers, state, strict=True):
            x = layer.step(x, position, own, length)
        return self.logits(rms(x, self.norm, self.config.eps))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] after the final norm -> [..., vocab], in the trunk's number format."""
        return functional.linear(hidden, self.head)

    def state(self, sequences: int, positions: int) -> list[Any]:
        """What each layer keeps of sequences that all stand at one position."""
        return [layer.state(sequences, positions) for layer in self.layers]


def attention_of(config: ModelConfig) -> Any:
    """The first layer's that has it; its heads and rope are the model's. Raises `unsupported_trunk`."""
    for layer in config.layers:
        if isinstance(layer.mixer, Attention):
            return layer.mixer
    raise TurbosparkError("unsupported_trunk", f"no layer of the {config.family} model has attention")


def open_trunk(path: str | Path, device: str = "cpu", positions: int = 1024) -> Trunk:
    """The trunk in a GGUF file or HF folder: bfloat16 on a GPU, float32 on the CPU."""
    checkpoint = open_checkpoint(path)
    on = torch.device(device)
    dtype = torch.float32 if on.type == "cpu" else torch.bfloat16
    config = read_config(checkpoint)
    return Trunk(config, Source(checkpoint, config.family, on, dtype), positions)
