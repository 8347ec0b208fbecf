"""What a layer hands a backend beside its rows: the small weights and numbers of one sublayer.

`trace(name, value)` reports named intermediates; a backend that fuses operations reports those it forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospark.config.model import MLA, Attention, GatedDelta

Report = Callable[[str, Any], None]


@dataclass(frozen=True)
class Norm:
    """An RMS norm: weight [n] and eps."""

    weight: Any
    eps: float


@dataclass(frozen=True)
class Heads:
    """Grouped-query attention between its projections: head norms where there are any, and the rotation table."""

    config: Attention
    q_norm: Norm | None
    k_norm: Norm | None
    rotation: Any
    trace: Report


@dataclass(frozen=True)
class AttentionBranch:
    """Attention as a branch of the stream: `qkv` and `o` are what `Kernels.group` made of its matrices."""

    before: Norm
    qkv: Any
    heads: Heads
    o: Any
    after: Norm | None


@dataclass(frozen=True)
class Latents:
    """Latent attention between its projections: k_up [heads, latent, nope], v_up [heads, value, latent]."""

    config: MLA
    norm: Norm
    k_up: Any
    v_up: Any
    rotation: Any
    trace: Report


@dataclass(frozen=True)
class Delta:
    """Gated DeltaNet between its projections: conv [channels, taps], a_neg and dt_bias [Hv], the gated norm [dv].

    key_head: int array [Hv], the key head each value head reads.
    """

    config: GatedDelta
    conv: Any
    a_neg: Any
    dt_bias: Any
    norm: Norm
    key_head: Any
    trace: Report


@dataclass(frozen=True)
class FeedForwardBranch:
    """A gated feed-forward as a branch of the stream."""

    before: Norm
    mlp: GatedMLP
    after: Norm | None


@dataclass(frozen=True)
class GatedMLP:
    """gate and up [width, H], down [H, width]."""

    gate: Any
    up: Any
    down: Any
    activation: str
    trace: Report


@dataclass(frozen=True)
class Conv:
    """A convolution around a drafter's sublayer; `width` channels share a kernel.

    base [2, taps, H], its two sides; projection: what `Kernels.group` made of a matrix [2 * taps * H / width, H], which
    gives what is added to them, from the sublayer's input.
    """

    base: Any
    projection: Any
    width: int


@dataclass(frozen=True)
class Reading:
    """How a drafter reads the target's states: by `fc` and a norm to the rows that keys and values are made of.

    fc: what `Kernels.group` made of one matrix; layers: of each what it made of k and v, and the heads.
    """

    fc: Any
    norm: Norm
    layers: Sequence[tuple[Any, Heads]]


@dataclass(frozen=True)
class Scoring:
    """How a drafter finds the outputs of its target's head that score best.

    coarse: a matrix whose output i stands for the head's output ids[i]; ids int64, ascending. The `near` best by it are
    scored by `head` [N, H]; without that its own scores are exact. projection: [rank, H], whose products weigh a
    selector's codebooks.
    """

    coarse: Any
    ids: np.ndarray
    projection: Any
    near: int
    head: Any = None


@dataclass(frozen=True)
class BlockLayer:
    """A layer of a drafter's block: attention and a gated feed-forward, each between its convolution's sides.

    window: how near the keys are that a row sees, None all. causal: it does not see the rows of its block after it.
    """

    window: int | None
    causal: bool
    attention: AttentionBranch
    attention_conv: Conv | None
    feed_forward: FeedForwardBranch
    feed_forward_conv: Conv | None
