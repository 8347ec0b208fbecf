"""A trunk as a frozen torch module: hidden states, tapped layers, logits, and one token of many sequences at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from turbospark import quant
from turbospark.config.model import Attention, Dense, Layer, ModelConfig
from turbospark.config.registry import read_config
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.formats.checkpoint import Checkpoint
from turbospark.kernels.rotation import table
from turbospark.models.names import locator


class Taken(NamedTuple):
    """hidden [S, T, H] after the final norm; taps [S, T, n * H], the tapped layers' outputs side by side."""

    hidden: Tensor
    taps: Tensor


class State:
    """Keys and values [S * kv, T, d] of each layer, for S sequences that all stand at one position."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]):
        self.keys, self.values = keys, values


class Source:
    """A checkpoint's tensors by canonical name, decoded onto a device."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype):
        self.checkpoint, self.device, self.dtype = checkpoint, device, dtype
        self._locate = locator(checkpoint.kind, {})

    def find(self, name: str) -> str | None:
        return next((n for n in self._locate(name) if n in self.checkpoint.tensors), None)

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        found = self.find(name)
        if found is None:
            raise TurbosparkError("tensor_missing", f"{self.checkpoint.path} has no tensor {name}")
        tensor = self.checkpoint.open(found)
        if tuple(tensor.shape) != shape:
            message = f"tensor {found} has shape {list(tensor.shape)}, the configuration asks for {list(shape)}"
            raise TurbosparkError("shape_mismatch", message)
        values = torch.from_numpy(np.array(quant.decode(tensor), np.float32))
        return values.to(self.device, dtype or self.dtype)


class Rotation(nn.Module):
    """cos and sin [positions, d/2] of a rope, and how it pairs the elements of a head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: Any, positions: int, device: torch.device, factors: np.ndarray | None = None):
        super().__init__()
        made = table(rope, positions, factors)
        self.pairs = made.pairs(made.cos.shape[1])
        self.register_buffer("cos", torch.from_numpy(made.cos).to(device), persistent=False)
        self.register_buffer("sin", torch.from_numpy(made.sin).to(device), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [..., d] turned; positions must broadcast with x's axes but the last."""
        cos, sin = self.cos[positions], self.sin[positions]
        first, second = (x[..., part].float() for part in self.pairs)
        turned = torch.empty_like(x)
        turned[..., self.pairs[0]] = (first * cos - second * sin).to(x.dtype)
        turned[..., self.pairs[1]] = (second * cos + first * sin).to(x.dtype)
        return turned


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)


class LlamaLayer:
    """One layer of the llama family; `full` reads whole sequences, `step` one token of each."""

    def __init__(self, config: ModelConfig, layer: Layer, source: Source, index: int, rotation: Rotation):
        self.mixer, self.eps, self.rotation = layer.mixer, config.eps, rotation
        m, hidden = self.mixer, config.hidden
        take = lambda name, *shape, **kw: source(f"blk.{index}.{name}.weight", *shape, **kw)
        wide = m.heads * m.head_dim
        kv = m.kv_heads * m.head_dim
        self.before_attention = take("attn_norm", hidden, dtype=torch.float32)
        self.before_mlp = take("ffn_norm", hidden, dtype=torch.float32)
        parts = [take("attn_q", wide, hidden), take("attn_k", kv, hidden), take("attn_v", kv, hidden)]
        self.qkv, self.widths = torch.cat(parts), [wide, kv, kv]
        self.o = take("attn_output", hidden, wide)
        self.gate_up = torch.cat([take("ffn_gate", layer.ffn.width, hidden), take("ffn_up", layer.ffn.width, hidden)])
        self.down = take("ffn_down", hidden, layer.ffn.width)

    def _project(self, x: Tensor, positions: Tensor) -> list[Tensor]:
        """q, k turned and v, [..., heads, d]; positions [..., 1]."""
        m = self.mixer
        parts = functional.linear(rms(x, self.before_attention, self.eps), self.qkv).split(self.widths, -1)
        q, k, v = (part.unflatten(-1, (-1, m.head_dim)) for part in parts)
        return [self.rotation(q, positions), self.rotation(k, positions), v]

    def _mlp(self, x: Tensor) -> Tensor:
        gate, up = functional.linear(rms(x, self.before_mlp, self.eps), self.gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, self.down)

    def full(self, x: Tensor) -> Tensor:
        """x [S, T, H]."""
        positions = torch.arange(x.shape[1], device=x.device)[:, None]
        q, k, v = (part.transpose(1, 2) for part in self._project(x, positions))
        repeat = self.mixer.heads // self.mixer.kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        mix = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.mixer.scale)
        return self._mlp(x + functional.linear(mix.transpose(1, 2).flatten(2), self.o))

    def step(self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
        """x [S, H] at `position` [1]; keys and values [S * kv, T, d] get a row, the first `length` are looked at."""
        m, count = self.mixer, len(x)
        q, k, v = self._project(x, position[:, None])
        keys.index_copy_(1, position, k.reshape(-1, 1, m.head_dim))
        values.index_copy_(1, position, v.reshape(-1, 1, m.head_dim))
        q = q.reshape(count * m.kv_heads, -1, m.head_dim)
        scores = torch.bmm(q, keys[:, :length].transpose(1, 2)).float() * m.scale
        hidden = torch.arange(length, device=x.device) > position
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(x.dtype)
        mix = torch.bmm(weights, values[:, :length])
        return self._mlp(x + functional.linear(mix.reshape(count, -1), self.o))


class Trunk:
    """Embedding, layers, final norm and head of a frozen model. `families` says which layer serves which family."""

    families = {"llama": LlamaLayer}  # noqa: RUF012

    def __init__(self, config: ModelConfig, source: Source, positions: int):
        self.config, self.device, self.dtype, self.positions = config, source.device, source.dtype, positions
        make = self.families.get(config.family)
        if make is None or not all(map(_plain, config.layers)):
            known = ", ".join(self.families)
            raise TurbosparkError(
                "unsupported_trunk",
                f"{source.checkpoint.path.name}: layers of the family {config.family} cannot be trained on here",
                f"a trunk of plain layers of these families can: {known}",
            )
        self.embedding = source("token_embd.weight", config.vocab, config.hidden)
        self.norm = source("output_norm.weight", config.hidden, dtype=torch.float32)
        tied = source.find("output.weight") is None
        self.head = self.embedding if tied else source("output.weight", config.vocab, config.hidden)
        rope = config.layers[0].mixer.rope
        factors = None
        if source.find("rope_freqs.weight"):
            factors = source("rope_freqs.weight", rope.dim // 2, dtype=torch.float32).cpu().numpy()
        self.rotation = Rotation(rope, positions, source.device, factors)
        self.layers = [make(config, layer, source, i, self.rotation) for i, layer in enumerate(config.layers)]

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
    def step(self, ids: Tensor, position: Tensor, state: State, length: int) -> Tensor:
        """Logits [S, vocab] after one token ids [S] at `position` [1] of each sequence; `length` > position."""
        x = functional.embedding(ids, self.embedding)
        for layer, keys, values in zip(self.layers, state.keys, state.values, strict=True):
            x = layer.step(x, position, keys, values, length)
        return self.logits(rms(x, self.norm, self.config.eps))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] after the final norm -> [..., vocab], in the trunk's number format."""
        return functional.linear(hidden, self.head)

    def state(self, sequences: int, positions: int) -> State:
        make = lambda m: torch.zeros(
            sequences * m.kv_heads, positions, m.head_dim, device=self.device, dtype=self.dtype
        )
        return State([make(layer.mixer) for layer in self.layers], [make(layer.mixer) for layer in self.layers])


def open_trunk(path: str | Path, device: str = "cpu", positions: int = 1024) -> Trunk:
    """The trunk in a GGUF file or HF folder: bfloat16 on a GPU, float32 on the CPU."""
    checkpoint = open_checkpoint(path)
    on = torch.device(device)
    dtype = torch.float32 if on.type == "cpu" else torch.bfloat16
    return Trunk(read_config(checkpoint), Source(checkpoint, on, dtype), positions)


def _plain(layer: Layer) -> bool:
    """Whether a layer is what LlamaLayer computes, with nothing more."""
    m, f = layer.mixer, layer.ffn
    whole = isinstance(m, Attention) and isinstance(f, Dense) and f.activation == "silu"
    return (
        whole
        and m.rope is not None
        and m.rope.dim == m.head_dim
        and not any((m.window, m.softcap, m.qk_norm, m.gated, m.bias, m.output_bias))
    )
