"""The DFlash2 drafter as a torch module: the mathematics of draft/dflash_model.py over many blocks of many sequences.

Parameters have the published names, so a state dict is a checkpoint.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from turbospark.draft.dflash_config import DFlashConfig, DFlashLayer
from turbospark.kernels.rotation import table
from turbospark.train.layers import rms


class Blocks(NamedTuple):
    """A blocks in each of S sequences. anchors: token [S, A]; positions: of the anchors [S, A]."""

    anchors: Tensor
    positions: Tensor


class Guess(NamedTuple):
    """Of the mask rows [S, A, B - 1]: logits [..., ids], candidates (columns of the logits) and unary [..., k]."""

    hidden: Tensor
    logits: Tensor
    candidates: Tensor
    unary: Tensor


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.weight, self.eps)


class GroupedConv(nn.Module):
    """y[i, c] = sum_t (base[side, t, c] + d[i, side, t, c // group]) x[i - t, c] within a block; starts as identity."""

    def __init__(self, config: DFlashConfig):
        super().__init__()
        groups = config.hidden // config.conv_group
        self.taps, self.group = config.conv_taps, config.conv_group
        self.base_kernel = nn.Parameter(torch.zeros(2, config.conv_taps, config.hidden))
        self.kernel_projection = nn.Linear(config.hidden, 2 * config.conv_taps * groups, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1
            self.kernel_projection.weight.zero_()

    def kernel(self, x: Tensor) -> Tensor:
        return self.kernel_projection(x).unflatten(-1, (2, self.taps, -1))

    def forward(self, x: Tensor, kernel: Tensor, side: int) -> Tensor:
        """x [S, A, B, H]."""
        y = torch.zeros_like(x)
        for t in range(self.taps):
            earlier = functional.pad(x, (0, 0, t, 0))[..., : x.shape[-2], :] if t else x
            spread = (
                self.base_kernel[side, t].to(x.dtype).unflatten(-1, (-1, self.group)) + kernel[..., side, t, :, None]
            )
            y = y + spread.flatten(-2) * earlier
        return y


class Attention(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        c, linear = config, lambda i, o: nn.Linear(i, o, bias=False)
        self.kv_heads, self.head_dim, self.scale = c.kv_heads, c.head_dim, c.head_dim**-0.5
        self.q_proj, self.o_proj = linear(c.hidden, c.heads * c.head_dim), linear(c.heads * c.head_dim, c.hidden)
        self.k_proj, self.v_proj = (linear(c.hidden, c.kv_heads * c.head_dim) for _ in range(2))
        self.q_norm, self.k_norm = RMSNorm(c.head_dim, c.eps), RMSNorm(c.head_dim, c.eps)

    def keys_values(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """k (normed and turned) and v [..., kv, d]."""
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        return turned(k, turn), self.v_proj(x).unflatten(-1, (-1, self.head_dim))

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], context: tuple[Tensor, Tensor], seen: Tensor, own: Tensor
    ) -> Tensor:
        """x [S, A, B, H]; context k, v [S, T, kv, d]; seen [S, A, B, T] and own [B, B] say which keys are visible."""
        s, a, b, _ = x.shape
        q = turned(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), turn)
        k, v = self.keys_values(x, turn)
        # [S, A, B, kv, g, d] -> [S, kv, g, A, B, d]: query heads beside the key head that they read
        q = q.unflatten(3, (self.kv_heads, -1)).permute(0, 3, 4, 1, 2, 5)
        groups = q.shape[2]
        k, v = (part.permute(0, 3, 1, 2, 4).unsqueeze(2) for part in (k, v))  # [S, kv, 1, A, B, d]
        ck, cv = (part.transpose(1, 2) for part in context)  # [S, kv, T, d]
        far = torch.matmul(q.reshape(s, self.kv_heads, groups * a * b, -1), ck.transpose(2, 3))
        far = far.view(s, self.kv_heads, groups, a, b, -1).float() * self.scale
        far = far.masked_fill(~seen[:, None, None], float("-inf"))
        near = torch.matmul(q, k.transpose(-1, -2)).float() * self.scale
        near = near.masked_fill(~own, float("-inf"))
        top = torch.maximum(far.amax(-1, keepdim=True), near.amax(-1, keepdim=True)).detach()
        far, near = (far - top).exp(), (near - top).exp()
        total = far.sum(-1, keepdim=True) + near.sum(-1, keepdim=True)
        mix = torch.matmul(far.to(cv.dtype).view(s, self.kv_heads, groups * a * b, -1), cv)
        mix = mix.view(s, self.kv_heads, groups, a, b, -1).float() + torch.matmul(near.to(v.dtype), v).float()
        mix = (mix / total).to(x.dtype).permute(0, 3, 4, 1, 2, 5).reshape(s, a, b, -1)
        return self.o_proj(mix)


class MLP(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(config.hidden, config.width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(config.width, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)
        self.attention_conv = GroupedConv(config) if config.conv_taps else None
        self.mlp_conv = GroupedConv(config) if config.conv_taps else None

    def forward(self, x: Tensor, dtype: torch.dtype, *where: object) -> Tensor:
        """x [S, A, B, H] float32, the stream; its branches compute in `dtype`."""
        h = self.input_layernorm(x).to(dtype)
        x = x + self._around(self.attention_conv, h, lambda h: self.self_attn(h, *where))
        return x + self._around(self.mlp_conv, self.post_attention_layernorm(x).to(dtype), self.mlp)

    def _around(self, conv: GroupedConv | None, x: Tensor, sublayer: object) -> Tensor:
        if conv is None:
            return sublayer(x)  # type: ignore[operator]
        kernel = conv.kernel(x)
        return conv(sublayer(conv(x, kernel, 0)), kernel, 1)  # type: ignore[operator]


class Selector(nn.Module):
    def __init__(self, config: DFlashConfig):
        super().__init__()
        rank = config.selector.rank if config.selector else 1
        self.predecessor_codebook = nn.Parameter(torch.randn(config.vocab, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.vocab, rank))
        self.hidden_projection = nn.Linear(config.hidden, rank, bias=False)


class DFlash2(nn.Module):
    """The drafter. embedding and head [vocab, H] are the trunk's, frozen; ids: the draft vocabulary, all if None."""

    cos: Tensor
    sin: Tensor
    embedding: Tensor
    head: Tensor
    ids: Tensor
    column: Tensor

    def __init__(
        self, config: DFlashConfig, embedding: Tensor, head: Tensor, positions: int, ids: Tensor | None = None
    ):
        super().__init__()
        c = self.config = config
        self.fc = nn.Linear(len(c.taps) * c.hidden, c.hidden, bias=False)
        self.hidden_norm, self.norm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.layers = nn.ModuleList(Layer(c) for _ in c.layers)
        self.candidate_selector = Selector(c) if c.selector else None
        rotation = table(c.rope, positions + c.block)
        keep = lambda name, value: self.register_buffer(name, value, persistent=False)
        keep("cos", torch.from_numpy(rotation.cos))
        keep("sin", torch.from_numpy(rotation.sin))
        keep("embedding", embedding)
        keep("ids", torch.arange(len(head)) if ids is None else ids)
        keep("head", head if ids is None else head[ids.to(head.device)])
        column = torch.full((len(head),), -1)
        column[self.ids.cpu()] = torch.arange(len(self.ids))
        keep("column", column)  # of a token id among the draft's, -1 for those it cannot say

    def context(self, taps: Tensor) -> Tensor:
        """Tapped states [..., n_taps * H] -> the rows that keys and values are made of."""
        return self.hidden_norm(self.fc(taps))

    def block(self, blocks: Blocks, context: Tensor) -> Tensor:
        """hidden [S, A, B, H] after the final norm; context [S, T, H] of positions 0 .. T - 1."""
        c = self.config
        s, a = blocks.anchors.shape
        rows = torch.arange(c.block, device=context.device)
        at = blocks.positions[..., None] + rows
        ids = torch.where(rows == 0, blocks.anchors[..., None], c.mask_id)
        x = functional.embedding(ids, self.embedding) * c.embedding_scale
        x = x.float()
        turn = (self.cos[at][..., None, :], self.sin[at][..., None, :])
        keys = torch.arange(context.shape[1], device=context.device)
        key_turn = (self.cos[keys][:, None], self.sin[keys][:, None])
        before = keys < blocks.positions[..., None, None]
        module: Any
        for module, layer in zip(self.layers, c.layers, strict=True):
            near = before if layer.window is None else before & (at[..., None] - keys < layer.window)
            seen = near.expand(s, a, c.block, -1)
            x = module(x, context.dtype, turn, module.self_attn.keys_values(context, key_turn), seen, _own(layer, rows))
        return self.norm(x).to(context.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., columns of the draft vocabulary]."""
        logits = functional.linear(hidden, self.head)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def guess(self, taps: Tensor, blocks: Blocks) -> Guess:
        """What the mask rows of blocks say, before any is chosen."""
        # in one piece, or the head would be multiplied block by block
        hidden = self.block(blocks, self.context(taps))[..., 1:, :].contiguous()
        logits = self.logits(hidden)
        unary, candidates = logits.topk(self.config.selector.top_k if self.config.selector else 1, -1)
        return Guess(hidden, logits, candidates, unary)

    def scores(self, guess: Guess, predecessor: Tensor, row: int | slice = slice(None)) -> Tensor:
        """Of the candidates [..., k] of a row, or all, after the token ids `predecessor` [...]."""
        hidden, unary, candidates = (part[:, :, row] for part in (guess.hidden, guess.unary, guess.candidates))
        if self.candidate_selector is None:
            return unary.float()
        selector = self.candidate_selector
        weighed = functional.embedding(predecessor, selector.predecessor_codebook) * selector.hidden_projection(hidden)
        successors = functional.embedding(self.ids[candidates], selector.successor_codebook)
        return unary.float() + (weighed[..., None, :] * successors).sum(-1).float()


def turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """x [..., heads, d] rotated, its pairs half a head apart."""
    cos, sin = turn
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def _own(layer: DFlashLayer, rows: Tensor) -> Tensor:
    """Which rows of its own block a row sees, bool [B, B]."""
    gap = rows[:, None] - rows
    seen = gap >= 0 if layer.causal else torch.ones_like(gap, dtype=torch.bool)
    return seen if layer.window is None else seen & (gap.abs() < layer.window)
