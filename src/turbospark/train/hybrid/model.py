"""The trunk to train and its head for the token after the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from turbospark.config.model import Attention, Dense, GatedDelta, Layer, ModelConfig, Rope
from turbospark.train.layers import Rotation, rms
from turbospark.train.qwen import QwenLayer


@dataclass(frozen=True)
class Shape:
    """Sizes of a trunk; every `interval`-th layer is attention, heads of keys and values are equally wide."""

    vocab: int = 8192
    hidden: int = 256
    layers: int = 16
    width: int = 768
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    key_heads: int = 2
    value_heads: int = 4
    delta_dim: int = 64
    conv: int = 4
    interval: int = 4
    rotated: int = 32
    theta: float = 10000.0
    context: int = 1024
    eps: float = 1e-6

    def config(self, mtp: int = 0) -> ModelConfig:
        """As a GGUF file of it is read: value heads tiled, norms whole."""
        turn = Rope(self.theta, self.rotated, interleaved=False)
        attention = Attention(
            self.heads, self.kv_heads, self.head_dim, turn, self.head_dim**-0.5, qk_norm=True, gated=True
        )
        delta = GatedDelta(
            self.key_heads, self.value_heads, self.delta_dim, self.delta_dim, self.conv, tiled=True, log_decay=False
        )
        dense = Dense(self.width)
        layers = tuple(Layer(delta if (i + 1) % self.interval else attention, dense) for i in range(self.layers))
        return ModelConfig(
            "qwen3_5", self.hidden, self.vocab, self.context, self.eps, layers, tied=True, mtp_layers=mtp
        )


class Hybrid(nn.Module):
    """ids [S, T] -> states [S, T, H] after the final norm; the embedding is the head."""

    def __init__(self, shape: Shape, run: Any = QwenLayer.forward):
        super().__init__()
        config = shape.config()
        self.shape, self.eps, self.run = shape, config.eps, run
        rotation = Rotation(_attention(config).mixer.rope, shape.context, torch.device("cpu"))
        self.token_embd = nn.Parameter(torch.randn(shape.vocab, shape.hidden) * 0.02)
        self.layers = nn.ModuleList(QwenLayer(config, layer, None, rotation) for layer in config.layers)
        self.output_norm = nn.Parameter(torch.ones(shape.hidden))

    def forward(self, ids: Tensor) -> Tensor:
        x = functional.embedding(ids, self.token_embd)
        for layer in self.layers:
            x = self.run(layer, x)
        return rms(x, self.output_norm, self.eps)

    def loss(self, ids: Tensor) -> Tensor:
        """Mean cross-entropy of ids [S, T + 1] after the first, in nats."""
        logits = functional.linear(self(ids[:, :-1]), self.token_embd)
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


class MTPHead(nn.Module):
    """One attention layer over [embedding of the token that came ; state], used again on what it says itself."""

    def __init__(self, config: ModelConfig, rotation: Rotation):
        super().__init__()
        h = config.hidden
        self.eps = config.eps
        self.enorm, self.hnorm, self.shared_head_norm = (nn.Parameter(torch.ones(h)) for _ in range(3))
        self.eh_proj = nn.Parameter(torch.cat([torch.eye(h) * 0.5, torch.eye(h)], 1))
        self.layer = QwenLayer(config, _attention(config), None, rotation)

    def forward(self, ids: Tensor, hidden: Tensor, embedding: Tensor, depth: int) -> list[Tensor]:
        """States [S, T - depth, H] of `depth` proposals in a row, after the head's norm.

        ids [S, T] and the trunk's states hidden [S, T, H]. Chain i begins with the state at i and the token at i + 1.
        Its row m lies at position i + m, takes the token at i + m + 1 (the true one), sees the first rows of all
        chains up to its own and the later rows of its own, and tells the token at i + m + 2.
        """
        n = ids.shape[1] - depth
        chains = torch.arange(n, device=ids.device)
        state, keys, values, states = hidden[:, :n], [], [], []
        for m in range(depth):
            embedded = functional.embedding(ids[:, m + 1 : m + 1 + n], embedding).to(state.dtype)
            both = torch.cat([rms(embedded, self.enorm, self.eps), rms(state, self.hnorm, self.eps)], -1)
            x = functional.linear(both, self.eh_proj)
            q, k, v, gate = self.layer.project(x, (chains + m)[:, None])
            keys.append(k)
            values.append(v)
            x = x + self.layer.output(self._attend(q, keys, values), gate)
            state = rms(self.layer.mlp(x), self.shared_head_norm, self.eps)
            states.append(state)
        return states

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """q [S, n, heads, d]; keys and values [S, n, kv, d] of each row so far, the last one q's own."""
        shared = q.shape[2] // keys[0].shape[2]
        q, *rest = (part.transpose(1, 2) for part in (q, *keys, *values))
        keys, values = (
            [p.repeat_interleave(shared, 1) for p in part] for part in (rest[: len(keys)], rest[len(keys) :])
        )
        n, scale = q.shape[2], self.layer.mixer.scale
        ahead = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        first = (q @ keys[0].transpose(-1, -2)).float().masked_fill(ahead, float("-inf"))
        own = [(q * k).float().sum(-1, keepdim=True) for k in keys[1:]]
        weights = (torch.cat([first, *own], -1) * scale).softmax(-1).to(q.dtype)
        mix = weights[..., :n] @ values[0]
        for i, v in enumerate(values[1:]):
            mix = mix + weights[..., n + i, None] * v
        return mix.transpose(1, 2).flatten(2)

    def loss(self, ids: Tensor, hidden: Tensor, embedding: Tensor, depth: int, fade: float = 0.8) -> list[Tensor]:
        """Of the trunk's own distributions: the weighed mean cross-entropy, then recall at 1 of each row."""
        states = self(ids, hidden, embedding, depth)
        n, total, share, found = states[0].shape[1], torch.zeros((), device=ids.device), 0.0, []
        for m, state in enumerate(states):
            with torch.no_grad():
                want = functional.linear(hidden[:, m + 1 : m + 1 + n], embedding).float()
            said = functional.linear(state, embedding.to(state.dtype)).float()
            entropy = said.logsumexp(-1) - (want.softmax(-1) * said).sum(-1)
            total, share = total + fade**m * entropy.mean(), share + fade**m
            found.append((said.argmax(-1) == want.argmax(-1)).float().mean().detach())
        return [total / share, *found]


def _attention(config: ModelConfig) -> Layer:
    return next(layer for layer in config.layers if isinstance(layer.mixer, Attention))
