"""Noise in torch that is a pure function of (key, position, id): a sequence's answer and its drafts can share it."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def mixed(h: Tensor) -> Tensor:
    """32-bit words in int64, scrambled (the finaliser of MurmurHash3)."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def gumbel(keys: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise, float32 of the broadcast shape of three integer tensors."""
    stream = mixed((keys * 0x9E3779B1 + positions * 0x27D4EB2F) & _MASK)
    word = mixed(mixed((ids * 0x9E3779B1) & _MASK) ^ stream)
    uniform = ((word >> 9).to(torch.float32) + 0.5) * 2.0**-23  # exact, so below 1
    return -torch.log(-torch.log(uniform))
