"""What a model is, said once: every number its forward depends on, whatever kind of file it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched past the trained context.

    kind: "linear", "llama3" or "yarn". `attention_factor` scales cos and sin. The other fields belong to the kinds
    that read them: low/high frequency factors to llama3, betas to yarn.
    """

    kind: str
    factor: float
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Rotation of `dim` of a head's elements; pairs are (2i, 2i+1) if interleaved, else (i, i + dim/2)."""

    theta: float
    dim: int
    interleaved: bool
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention; `window` keys are visible to a sliding layer, all to one without.

    bias: of the projections q, k and v; output_bias: of the one after the mix.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    scale: float
    window: int | None = None
    softcap: float | None = None
    qk_norm: bool = False
    gated: bool = False
    bias: bool = False
    output_bias: bool = False


@dataclass(frozen=True)
class MLA:
    """Multi-head latent attention, absorbed: the cache holds one row of latent + rope values a token."""

    heads: int
    q_rank: int | None
    latent: int
    nope_dim: int
    value_dim: int
    rope: Rope
    scale: float
    norm_eps: float


@dataclass(frozen=True)
class GatedDelta:
    """Gated DeltaNet: `tiled` says value head v reads key head v mod key_heads, else v // (value/key heads).

    `log_decay`: the decay is stored as A_log and means -exp(A_log).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    tiled: bool
    log_decay: bool

    @property
    def channels(self) -> int:
        """Width of the convolved q, k, v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class Dense:
    """Gated feed-forward of `width`: activation "silu" or "gelu_tanh"."""

    width: int
    activation: str = "silu"


@dataclass(frozen=True)
class MoE:
    """Routed experts. `scoring` is "softmax" or "sigmoid"; `group_rank` ranks groups by their "max" or "top2" sum.

    `bias`: a correction added to scores for selection only. `shared_width` 0 means no shared expert.
    """

    experts: int
    used: int
    width: int
    scoring: str = "softmax"
    renormalise: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    group_rank: str = "max"
    bias: bool = False
    shared_width: int = 0
    shared_gate: bool = False
    activation: str = "silu"


@dataclass(frozen=True)
class Layer:
    """mixer: Attention, MLA or GatedDelta; ffn: Dense or MoE. Which ones occur is the family's business."""

    mixer: Any
    ffn: Any


@dataclass(frozen=True)
class ModelConfig:
    """`norm_offset`: trunk norms are stored as w and mean 1 + w. `generation`: the files' sampling defaults.

    scale_block: rows and columns that one scale of an FP8 weight covers.
    """

    family: str
    hidden: int
    vocab: int
    context: int
    eps: float
    layers: tuple[Layer, ...]
    tied: bool
    norm_offset: bool = False
    embedding_scale: float = 1.0
    output_softcap: float | None = None
    mtp_layers: int = 0
    scale_block: tuple[int, int] = (128, 128)
    generation: Mapping[str, Any] = field(default_factory=dict)
