"""What a training run is told, and the drafter configuration that follows for a trunk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from turbospark.config.model import ModelConfig
from turbospark.errors import TurbosparkError
from turbospark.train.trunk import attention_of


@dataclass(frozen=True)
class Settings:
    """Defaults resemble the first SmolLM2 run (docs/training.md). taps: trunk layers, spread over the depth if None.

    steps or seconds: how long; with seconds the schedule follows the clock. draft_ids: size of the reduced
    vocabulary, 0 for all ids. soft: the share of the trunk's own distribution in the target. noisy: the share of
    the selector's loss under the noise of the draw. sequences: written in groups of `together`, each of `length`
    positions.
    """

    steps: int | None = None
    seconds: float | None = None
    seed: int = 0
    layers: int = 4
    block: int = 8
    window: int = 512
    rank: int = 64
    top_k: int = 8
    conv_taps: int = 2
    conv_group: int = 16
    taps: tuple[int, ...] | None = None
    draft_ids: int = 12288
    sequences: int = 12288
    together: int = 2048
    length: int = 704
    batch: int = 24
    anchors: int = 128
    rate: float = 1e-3
    gamma: float = 4.0
    soft: float = 0.7
    noisy: float = 0.0
    warmup: float = 0.04
    decay: float = 0.01
    clip: float = 1.0
    code: float = 0.4
    arithmetic: float = 0.2
    prose: float = 0.2
    made: float = 0.4

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "window",
            "rank",
            "top_k",
            "conv_taps",
            "conv_group",
            "sequences",
            "together",
            "batch",
            "anchors",
        ):
            self._at_least(name, 1)
        self._at_least("block", 2)
        self._at_least("length", 64)
        if self.steps is None and self.seconds is None:
            raise TurbosparkError("invalid_parameter", "training needs steps or seconds, has neither")
        if self.steps is not None:
            self._at_least("steps", 1)
        shares = self.code + self.arithmetic + self.prose
        if min(self.code, self.arithmetic, self.prose) < 0 or shares > 1 + 1e-9:
            message = (
                f"the shares of code, arithmetic and prose must be 0 or more and at most 1 together, have {shares:g}"
            )
            raise TurbosparkError("invalid_parameter", message)

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise TurbosparkError(
                "invalid_parameter", f"{name} must be a whole number of at least {least}, has {value!r}"
            )

    @property
    def kept(self) -> dict[str, Any]:
        """What a resumed run must share with its checkpoint: all but how long it goes on."""
        return {k: v for k, v in asdict(self).items() if k not in ("steps", "seconds")}


def spread_taps(layers: int) -> tuple[int, ...]:
    """Five layers, or fewer of a shallow trunk, from the second to the third last."""
    first, last = min(1, layers - 1), max(layers - 2, 0)
    count = min(5, last - first + 1) if last > first else 1
    return tuple(sorted({first + round(i * (last - first) / max(count - 1, 1)) for i in range(count)}))


def drafter_config(settings: Settings, trunk: ModelConfig, mask_id: int, fingerprint: str) -> dict[str, Any]:
    """The config.json of the published layout."""
    mixer = attention_of(trunk)
    taps = settings.taps or spread_taps(len(trunk.layers))
    outside = [t for t in taps if not 0 <= t < len(trunk.layers)]
    if outside:
        message = f"tap {outside[0]} is no layer of the trunk, which has {len(trunk.layers)}, numbered from 0"
        raise TurbosparkError("invalid_parameter", message)
    if trunk.hidden % settings.conv_group:
        message = f"conv_group must divide the hidden size {trunk.hidden}, has {settings.conv_group}"
        raise TurbosparkError("invalid_parameter", message)
    ids = min(settings.draft_ids or trunk.vocab, trunk.vocab)
    if settings.top_k > ids:
        message = f"top_k must be at most the draft vocabulary's {ids} ids, has {settings.top_k}"
        raise TurbosparkError("invalid_parameter", message)
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": trunk.hidden,
        "vocab_size": trunk.vocab,
        **({"draft_vocab_size": ids} if ids < trunk.vocab else {}),
        "intermediate_size": trunk.layers[0].ffn.width,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": trunk.eps,
        "rope_theta": mixer.rope.theta,
        "max_position_embeddings": trunk.context,
        "layer_types": ["sliding_attention"] * settings.layers,
        "use_sliding_window": True,
        "sliding_window": settings.window,
        "is_causal": False,
        "num_target_layers": len(trunk.layers),
        "dtype": "bfloat16",
        "dflash_config": {
            "block_size": settings.block,
            "mask_token_id": mask_id,
            "target_layer_ids": list(taps),
            "conv_kernel_size": settings.conv_taps,
            "conv_group_size": settings.conv_group,
            "selector_rank": settings.rank,
            "selector_top_k": settings.top_k,
        },
        "trunk_fingerprint": fingerprint,
    }
