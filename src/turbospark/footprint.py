"""What a model needs in memory, known before anything is allocated; and the context that leaves room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from turbospark.config.model import MLA, Attention, Dense, ModelConfig
from turbospark.errors import TurbosparkError
from turbospark.kernels.api import Kernels
from turbospark.kernels.headers import HeaderKernels
from turbospark.memory import Memory
from turbospark.models.caches import MAX_BLOCK, layer_caches
from turbospark.units import size

WORKING = 300_000_000  # the program, its libraries and the intermediates of a step
PROGRAM = 125_000_000  # the program and its libraries before a model is opened, where that is not measured
OPENING = 40_000_000  # what it grows by from there to the first token: kernels, tables, names
SPARE = 16_000_000  # of that, what is still left when experts fill their slots
MIN_AUTO_CONTEXT = 2048  # an automatic context goes below it only where the cache would not fit otherwise
BLOCK = 64  # caches grow by this many positions

Caches = Callable[[int, int, int], int]  # bytes at a context, for slots, with chunks of so many rows
NO_CACHES: Caches = lambda context, slots, chunk: 0


@dataclass(frozen=True)
class Footprint:
    """Bytes. `cache` is for `slots` sequences of `context` positions, rotation tables and a drafter's caches included.

    Where a model's routed experts are counted apart, `experts` is what they take in memory, and `weights` all others.
    """

    context: int
    slots: int
    weights: int
    cache: int
    working: int = WORKING
    experts: int = 0
    drafter: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.experts + self.cache + self.drafter + self.working


def step_bytes(config: ModelConfig, chunk: int) -> int:
    """The most that the intermediates of a step of `chunk` prompt rows take, and the logits of a block.

    By what the cpu backend keeps for a row: 20 bytes for each inner value of a dense layer, 16 and 6 for each inner and
    outer value of an expert, 8 for each value of a latent query (activations in float32 and in 8 bits).
    """
    inner = lambda ffn: (
        20 * ffn.width
        if isinstance(ffn, Dense)
        else ffn.used * (16 * ffn.width + 6 * config.hidden) + 20 * ffn.shared_width
    )
    latent = lambda mixer: 8 * mixer.heads * (mixer.latent + mixer.rope.dim) if isinstance(mixer, MLA) else 0
    row = max(max(inner(layer.ffn), latent(layer.mixer)) for layer in config.layers) + 16 * config.hidden
    return chunk * row + 4 * MAX_BLOCK * config.vocab


def measure(
    config: ModelConfig,
    weights: int,
    context: int,
    slots: int,
    chunk: int,
    working: int = WORKING,
    beside: Caches = NO_CACHES,
) -> Footprint:
    """The footprint at a context; `weights` are the bytes of the stored tensors, `beside` tells a drafter's caches."""
    caches = layer_caches(config, cast(Kernels, HeaderKernels()), context, slots, chunk)
    ropes = {layer.mixer.rope for layer in config.layers if isinstance(layer.mixer, Attention | MLA)} - {None}
    tables = sum(4 * context * rope.dim for rope in ropes if rope is not None)  # a cosine and a sine for each pair
    cache = sum(cache.nbytes for cache in caches) + tables + beside(context, slots, chunk)
    return Footprint(context, slots, weights, cache, working)


def choose_context(
    config: ModelConfig,
    weights: int,
    memory: Memory,
    asked: int | None,
    slots: int,
    chunk: int,
    working: int = WORKING,
    beside: Caches = NO_CACHES,
) -> Footprint:
    """The footprint at the context asked for, or at the model's own as far as memory goes.

    Raises `bad_context` for more positions than the model was made for, `not_enough_memory` when the cache alone is
    larger than what may be used. Weights are mapped, so that too little memory for them makes a model slow, not wrong.
    """
    whole = isinstance(asked, int) and not isinstance(asked, bool)
    if asked is not None and not (whole and 1 <= asked <= config.context):
        message = f"max_context is {asked!r}, this model has 1 to {config.context}"
        raise TurbosparkError("bad_context", message, "ask for at most the model's own")
    at = lambda context: measure(config, weights, context, slots, chunk, working, beside)
    largest = lambda fits: _largest(config.context, lambda context: fits(at(context)))
    if asked is not None:
        chosen = at(asked)
    else:
        most = largest(lambda footprint: footprint.total <= memory.budget)
        chosen = at(max(most, min(config.context, MIN_AUTO_CONTEXT)))
    if chosen.cache <= memory.available:
        return chosen
    most = largest(lambda footprint: footprint.cache <= memory.available)
    if asked is None and most:
        return at(most)
    message = f"a context of {chosen.context} needs {size(chosen.cache)} of cache, {size(memory.available)} may be used"
    raise TurbosparkError("not_enough_memory", message, f"a max_context of {most} fits" if most else "")


def _largest(own: int, fits) -> int:
    """The largest context that fits: the model's own or a whole number of blocks; 0 when there is none."""
    if fits(own):
        return own
    low, high = 0, own // BLOCK  # in blocks; `low` fits
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * BLOCK) else (low, middle - 1)
    return low * BLOCK
