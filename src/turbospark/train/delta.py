"""The gated delta rule over whole sequences, in chunks of matrix products, and one token at a time (arXiv 2412.06464).

S_i = e^g_i S_{i-1} + k_i u_i^T with u_i = beta_i (v_i - (e^g_i S_{i-1})^T k_i), and o_i = S_i^T q_i. Within a chunk
all u follow at once from a triangular system; from chunk to chunk S goes through an affine map.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK, BASE = 64, 8


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = CHUNK) -> Tensor:
    """float32 [S, T, heads, dv] of q, k [S, T, heads, dk], v [S, T, heads, dv], g, beta [S, T, heads], from S = 0."""
    length = q.shape[1]
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, g, beta = (_chunked(part, chunk) for part in (q, k, v, g, beta))
        total = g.cumsum(-1)
        gap = total[..., :, None] - total[..., None, :]
        lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
        decay = gap.masked_fill(~lower, float("-inf")).exp()  # of row j's u, seen from row i
        strict = (beta[..., None] * decay * (k @ k.transpose(-1, -2))).tril(-1)
        solve = unit_lower_inverse(strict)
        # u = own - read @ S, with S as the chunk finds it
        own = solve @ (beta[..., None] * v)
        read = solve @ ((beta * total.exp())[..., None] * k)
        kept = ((total[..., -1:] - total).exp()[..., None] * k).transpose(-1, -2)
        fade = total[..., -1, None, None].exp()
        state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
        found = []
        into, add = kept @ read, kept @ own
        for i in range(q.shape[2]):
            found.append(state)
            state = fade[:, :, i] * state - into[:, :, i] @ state + add[:, :, i]
        states = torch.stack(found, 2)
        out = (total.exp()[..., None] * q) @ states + (decay * (q @ k.transpose(-1, -2))) @ (own - read @ states)
        return out.flatten(2, 3)[:, :, :length].transpose(1, 2)


def delta_step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One token: q, k [S, heads, dk], v [S, heads, dv], g, beta [S, heads]; `state` [S, heads, dk, dv] moves on."""
    state.mul_(g.exp()[..., None, None])
    u = beta[..., None] * (v - (k[..., None, :] @ state)[..., 0, :])
    state.add_(k[..., :, None] * u[..., None, :])
    return (q[..., None, :] @ state)[..., 0, :]


def unit_lower_inverse(strict: Tensor) -> Tensor:
    """(I + strict)^-1 of strictly lower triangular matrices [..., n, n], n a power of two: by halves, as stable as
    forward substitution, and nothing but products."""
    n = strict.shape[-1]
    size = min(BASE, n)
    eye = torch.eye(size, device=strict.device, dtype=strict.dtype)
    block = strict.unflatten(-1, (-1, size)).unflatten(-3, (-1, size)).diagonal(0, -4, -2).movedim(-1, -3)
    inverse, power = eye - block, block
    for _ in range(size.bit_length() - 2):
        power = power @ power
        inverse = inverse + inverse @ power
    while size < n:
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        halves = strict.unflatten(-1, (-1, 2, size)).unflatten(-4, (-1, 2, size))[..., 1, :, :, 0, :]
        cross = -second @ halves.diagonal(0, -4, -2).movedim(-1, -3) @ first
        top = torch.cat([first, torch.zeros_like(cross)], -1)
        inverse = torch.cat([top, torch.cat([cross, second], -1)], -2)
        size *= 2
    return inverse[..., 0, :, :]


def _chunked(x: Tensor, chunk: int) -> Tensor:
    """[S, T, heads, ...] -> float32 [S, heads, chunks, chunk, ...]; rows of nothing fill the last chunk."""
    x = x.float().transpose(1, 2)
    missing = -x.shape[2] % chunk
    if missing:
        x = functional.pad(x, (0, 0) * (x.ndim - 3) + (0, missing))
    return x.unflatten(2, (-1, chunk))
