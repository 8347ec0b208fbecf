"""Parts that the layers of frozen and of trained trunks share, and the llama family's layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from turbospark.config.model import Attention, Dense, Layer, ModelConfig
from turbospark.kernels.rotation import table

Take = Callable[..., Tensor]  # (name, *shape, dtype=None) -> the tensor of a layer by canonical name


class Rotation(nn.Module):
    """cos and sin [positions, d/2] of a rope, and how it pairs the elements of a head; what lies behind them stays."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: Any, positions: int, device: torch.device, factors: np.ndarray | None = None):
        super().__init__()
        made = table(rope, positions, factors)
        self.pairs, self.dim = made.pairs(made.cos.shape[1]), rope.dim
        self.register_buffer("cos", torch.from_numpy(made.cos).to(device), persistent=False)
        self.register_buffer("sin", torch.from_numpy(made.sin).to(device), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [..., d] turned; positions must broadcast with x's axes but the last."""
        cos, sin = self.cos[positions], self.sin[positions]
        first, second = (x[..., part].float() for part in self.pairs)
        turned = x.clone() if self.dim < x.shape[-1] else torch.empty_like(x)
        turned[..., self.pairs[0]] = (first * cos - second * sin).to(x.dtype)
        turned[..., self.pairs[1]] = (second * cos + first * sin).to(x.dtype)
        return turned


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)


def attend_causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [S, T, heads, d], k and v [S, T, kv, d] -> [S, T, heads * d]."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    mix = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return mix.transpose(1, 2).flatten(2)


class KeyValues:
    """Keys and values [S * kv, T, d] of S sequences that all stand at one position."""

    def __init__(self, mixer: Attention, sequences: int, positions: int, device: torch.device, dtype: torch.dtype):
        make = lambda: torch.zeros(sequences * mixer.kv_heads, positions, mixer.head_dim, device=device, dtype=dtype)
        self.keys, self.values, self.mixer = make(), make(), mixer

    def attend(self, q: Tensor, k: Tensor, v: Tensor, position: Tensor, length: int) -> Tensor:
        """q [S, heads, d], k, v [S, kv, d] of the token at `position` [1], looking at the first `length`."""
        m, count = self.mixer, len(q)
        self.keys.index_copy_(1, position, k.reshape(-1, 1, m.head_dim))
        self.values.index_copy_(1, position, v.reshape(-1, 1, m.head_dim))
        q = q.reshape(count * m.kv_heads, -1, m.head_dim)
        scores = torch.bmm(q, self.keys[:, :length].transpose(1, 2)).float() * m.scale
        hidden = torch.arange(length, device=q.device) > position
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(v.dtype)
        return torch.bmm(weights, self.values[:, :length]).reshape(count, -1)


class LlamaLayer:
    """One layer of the llama family; `full` reads whole sequences, `step` one token of each."""

    def __init__(self, config: ModelConfig, layer: Layer, take: Take, rotation: Rotation):
        self.mixer, self.eps, self.rotation = layer.mixer, config.eps, rotation
        m, hidden = self.mixer, config.hidden
        wide = m.heads * m.head_dim
        kv = m.kv_heads * m.head_dim
        self.before_attention = take("attn_norm.weight", hidden, dtype=torch.float32)
        self.before_mlp = take("ffn_norm.weight", hidden, dtype=torch.float32)
        parts = [(f"attn_{name}.weight", width) for name, width in (("q", wide), ("k", kv), ("v", kv))]
        self.qkv, self.widths = torch.cat([take(n, w, hidden) for n, w in parts]), [wide, kv, kv]
        self.o = take("attn_output.weight", hidden, wide)
        gate, up = (take(f"ffn_{name}.weight", layer.ffn.width, hidden) for name in ("gate", "up"))
        self.gate_up = torch.cat([gate, up])
        self.down = take("ffn_down.weight", hidden, layer.ffn.width)

    @staticmethod
    def serves(layer: Layer) -> bool:
        """Whether a layer is what this computes, with nothing more."""
        m, f = layer.mixer, layer.ffn
        whole = isinstance(m, Attention) and isinstance(f, Dense) and f.activation == "silu"
        return (
            whole
            and m.rope is not None
            and m.rope.dim == m.head_dim
            and not any((m.window, m.softcap, m.qk_norm, m.gated, m.bias, m.output_bias))
        )

    def state(self, sequences: int, positions: int) -> KeyValues:
        return KeyValues(self.mixer, sequences, positions, self.o.device, self.o.dtype)

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
        q, k, v = self._project(x, torch.arange(x.shape[1], device=x.device)[:, None])
        return self._mlp(x + functional.linear(attend_causal(q, k, v, self.mixer.scale), self.o))

    def step(self, x: Tensor, position: Tensor, state: KeyValues, length: int) -> Tensor:
        """x [S, H] at `position` [1]; the first `length` positions are looked at."""
        q, k, v = self._project(x, position[:, None])
        return self._mlp(x + functional.linear(state.attend(q, k, v, position, length), self.o))
