"""The sizes nearly every family declares under the same names."""

from __future__ import annotations

from dataclasses import dataclass

from turbospark.config.keys import Keys
from turbospark.errors import TurbosparkError


@dataclass(frozen=True)
class Geometry:
    """heads, kv_heads and widths (of the dense feed-forward) are given for every layer."""

    hidden: int
    vocab: int
    context: int
    eps: float
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    head_dim: int
    widths: tuple[int, ...]
    window: int | None
    tied: bool


def gguf_geometry(keys: Keys) -> Geometry:
    """`{arch}.*`; the loader adds vocab_size and tied from the tensors where the keys do not say."""
    layers = keys.layers("block_count", minimum=1)
    hidden = keys.int("embedding_length", minimum=1)
    heads = keys.per_layer("attention.head_count", layers)
    kv_heads = keys.per_layer("attention.head_count_kv", layers, heads[0])
    if keys.has("attention.key_length") and keys.int("attention.key_length") != keys.int("attention.value_length"):
        raise keys.wrong("attention.value_length", keys.get("attention.value_length"), "equal to attention.key_length")
    _check_heads(keys, hidden, heads, kv_heads)
    return Geometry(
        hidden,
        keys.int("vocab_size", minimum=1),
        keys.int("context_length", minimum=1),
        keys.float("attention.layer_norm_rms_epsilon", minimum=0),
        heads,
        kv_heads,
        keys.int("attention.key_length", hidden // heads[0], minimum=1),
        keys.per_layer("feed_forward_length", layers, 0),
        keys.int("attention.sliding_window", 0) or None,
        keys.bool("tied", False),
    )


def hf_geometry(keys: Keys) -> Geometry:
    """A flat config.json with the usual names."""
    layers = keys.layers("num_hidden_layers", minimum=1)
    hidden = keys.int("hidden_size", minimum=1)
    heads = (keys.int("num_attention_heads", minimum=1),) * layers
    kv_heads = (keys.int("num_key_value_heads", heads[0], minimum=1),) * layers
    _check_heads(keys, hidden, heads, kv_heads)
    return Geometry(
        hidden,
        keys.int("vocab_size", minimum=1),
        keys.int("max_position_embeddings", minimum=1),
        keys.float("rms_norm_eps", minimum=0),
        heads,
        kv_heads,
        keys.int("head_dim", hidden // heads[0], minimum=1),
        (keys.int("intermediate_size", 0),) * layers,
        keys.int("sliding_window", 0) or None,
        keys.bool("tie_word_embeddings", False),
    )


def _check_heads(keys: Keys, hidden: int, heads: tuple[int, ...], kv_heads: tuple[int, ...]) -> None:
    for h, kv in zip(heads, kv_heads, strict=True):
        if h < 1 or kv < 1 or h % kv:
            raise TurbosparkError(
                "bad_config", f"{keys.where}: {h} attention heads cannot be shared among {kv} key/value heads"
            )
