"""Where a model's weights go: decided from the memory there is, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from turbospark.config.model import ModelConfig, MoE
from turbospark.errors import TurbosparkError
from turbospark.experts.base import Residency
from turbospark.experts.mapped import Mapped
from turbospark.experts.reader import PAGE, Disk, Reader
from turbospark.experts.resident import InMemory
from turbospark.experts.streamed import Streamed
from turbospark.footprint import (
    NO_CACHES,
    OPENING,
    SPARE,
    WORKING,
    Caches,
    Footprint,
    choose_context,
    step_bytes,
)
from turbospark.formats.checkpoint import Checkpoint
from turbospark.kernels.api import Kernels
from turbospark.kernels.headers import HeaderKernels
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights
from turbospark.memory import GUARDS, Memory, own_bytes, read_memory
from turbospark.models.names import locator
from turbospark.models.registry import model_class
from turbospark.units import size

RESIDENCIES = ("auto", "resident", "streamed", "mapped")
ROOM_FOR_GUESSES = 4  # times the experts of a row; with fewer slots, guesses would push out what is needed
EXPERTS_SHARE = 0.75  # of what core and program leave, before an automatic context takes the rest


@dataclass(frozen=True)
class Sizes:
    """Bytes: `core` is all but the routed experts; `slot` holds the largest expert. count: experts of all layers.

    used: experts a row needs at once; drafter: what one brings beside the model's own weights; caches: its caches.
    """

    core: int
    experts: int = 0
    slot: int = 0
    count: int = 0
    used: int = 0
    drafter: int = 0
    caches: Caches = NO_CACHES


@dataclass(frozen=True)
class Asked:
    """What the caller wants of it; None and "auto" leave it open. memory: bytes of the whole sum."""

    residency: str = "auto"
    expert_slots: int | None = None
    memory: int | None = None
    guard: str = "relaxed"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("expert_residency", self.residency, RESIDENCIES),
            ("load_guard", self.guard, tuple(GUARDS)),
        ):
            if value not in known:
                raise TurbosparkError("invalid_parameter", f"{name} is {value!r}, known are {', '.join(known)}")
        for name, number in (("expert_cache_slots", self.expert_slots), ("memory", self.memory)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                message = f"{name} must be an integer of at least 1 or None, has {number!r}"
                raise TurbosparkError("invalid_parameter", message)
        if self.expert_slots is not None and self.residency in ("resident", "mapped"):
            message = f"expert_cache_slots={self.expert_slots} is of streamed experts, {self.residency} was asked for"
            raise TurbosparkError("invalid_parameter", message)


@dataclass(frozen=True)
class Placement:
    """What was decided: `why` says it in one line. expert_slots: 0 where nothing is streamed.

    ahead: experts a row that are guessed for the next layer and read ahead. least: slots that there are in any case,
    whatever the process is seen to take when the others are about to be filled; step: bytes of a step's intermediates.
    """

    residency: str
    expert_slots: int
    footprint: Footprint
    why: str
    ahead: int = 0
    least: int = 0
    step: int = 0

    def hold(
        self, checkpoint: Checkpoint, kernels: Kernels, asked: Asked, note: Callable[[str], None] = lambda text: None
    ) -> Residency:
        """What holds the weights so. asked: as `place` was given it."""
        files = checkpoint.maps.values()
        if self.residency == "mapped":
            return Mapped(files)
        reader = Reader(Disk(note))
        if self.residency == "resident":
            return InMemory(files, reader)

        def room() -> int:
            """Bytes that may still be taken, beside those that the caches and a step will."""
            memory = read_memory().within(asked.memory, GUARDS[asked.guard], own_bytes())
            return memory.budget - self.footprint.cache - max(0, self.step - kernels.scratch_bytes) - SPARE

        return Streamed(files, self.expert_slots, reader, ahead=self.ahead, least=self.least, room=room)


def sizes(config: ModelConfig, checkpoint: Checkpoint, drafter: int = 0, caches: Caches = NO_CACHES) -> Sizes:
    """From the headers alone; drafter and caches: what `draft.needs` tells of one."""
    total = slot = count = used = 0
    names = locator(checkpoint.kind, model_class(config.family).names)
    w = Weights(checkpoint, names, HeaderKernels(), Trace(), config.scale_block)  # type: ignore[arg-type]
    for i, layer in enumerate(config.layers):
        if isinstance(layer.ffn, MoE):
            moe = layer.ffn
            parts = w.scope(f"blk.{i}.").expert_parts(moe.experts, moe.width, config.hidden)
            nbytes = [sum(part.nbytes for part in expert) for expert in parts]
            pages = [sum(-(-part.nbytes // PAGE) * PAGE + 2 * PAGE for part in expert) for expert in parts]
            total, count = total + sum(nbytes), count + len(parts)
            slot, used = max(slot, *pages), max(used, moe.used)
    return Sizes(checkpoint.nbytes - total, total, slot, count, used, drafter, caches)


def place(
    config: ModelConfig,
    sizes: Sizes,
    memory: Memory,
    asked: Asked,
    context: int | None,
    slots: int,
    chunk: int,
    own: int = 0,
) -> Placement:
    """own: bytes that this process has before anything of the model is read; a stated memory holds them too.

    Raises `not_enough_memory` with the parts of a sum that does not fit, `no_experts`, and as `choose_context`.
    """
    if asked.memory is not None and asked.memory > memory.total:
        message = f"memory is {size(asked.memory)}, this process may have {size(memory.total)}"
        raise TurbosparkError("not_enough_memory", message)
    memory, step = memory.within(asked.memory, GUARDS[asked.guard], own), step_bytes(config, chunk)
    working = OPENING + step if sizes.count else WORKING
    if asked.memory is not None:  # the sum is held to the number as it was said, and what is taken already is a part
        working += asked.memory - memory.available if sizes.count else 0
        memory = replace(memory, available=asked.memory)
    room = memory.budget
    at = lambda held: choose_context(config, held, memory, context, slots, chunk, working, sizes.caches)
    if not sizes.count:
        return _dense(sizes, asked, room, at)
    fixed = sizes.core + sizes.drafter
    if asked.residency == "mapped":
        footprint = _parts(at(fixed + sizes.experts), sizes, 0)
        return Placement("mapped", 0, footprint, f"experts mapped: {size(sizes.experts)} are read in place")
    if asked.residency == "resident" or (asked.residency == "auto" and asked.expert_slots is None):
        footprint = _parts(at(fixed + sizes.experts), sizes, sizes.experts)
        limit = room if asked.residency == "auto" or asked.memory is not None else memory.available
        if footprint.total <= limit:
            why = f"experts resident: {size(footprint.total)} of {size(limit)} hold them all"
            return Placement("resident", 0, footprint, why)
        if asked.residency == "resident":
            raise _refused("resident experts", footprint, limit)
    return replace(_streamed(sizes, asked, memory, working, at), step=step)


def _dense(sizes: Sizes, asked: Asked, room: int, at) -> Placement:
    if asked.residency == "streamed" or asked.expert_slots is not None:
        raise TurbosparkError("no_experts", "the model has no routed experts: there is nothing to stream")
    footprint = replace(at(sizes.core + sizes.drafter), weights=sizes.core, drafter=sizes.drafter)
    if asked.memory is not None and footprint.total > room:
        raise _refused("the model", footprint, room)
    kind = "resident" if asked.residency == "resident" else "mapped"
    return Placement(kind, 0, footprint, f"weights {kind}: the model has no routed experts")


def _streamed(sizes: Sizes, asked: Asked, memory: Memory, working: int, at) -> Placement:
    fixed, given = sizes.core + sizes.drafter, asked.expert_slots
    limit = memory.budget if asked.memory is not None or given is None else memory.available
    left = limit - fixed - working
    kept = sizes.slot * (given or sizes.used)
    footprint = at(fixed + (kept if given else max(kept, min(sizes.experts, int(EXPERTS_SHARE * left)))))
    fits = max(0, limit - fixed - footprint.cache - working) // sizes.slot
    count = min(given or max(fits, sizes.used), sizes.count)
    footprint = _parts(footprint, sizes, count * sizes.slot)
    if footprint.total > limit:
        raise _refused(f"{count} expert slots of {size(sizes.slot)}", footprint, limit)
    why = f"experts streamed: {count} of {sizes.count} in memory ({size(footprint.experts)} of {size(sizes.experts)})"
    ahead = max(1, sizes.used // 2) if count >= ROOM_FOR_GUESSES * sizes.used else 0
    why = f"{why}, {size(footprint.total)} of {size(limit)} in all"
    return Placement("streamed", count, footprint, why, ahead, given or min(sizes.used, count))


def _parts(footprint: Footprint, sizes: Sizes, experts: int) -> Footprint:
    return replace(footprint, weights=sizes.core, experts=experts, drafter=sizes.drafter)


def _refused(what: str, f: Footprint, limit: int) -> TurbosparkError:
    parts = [("core", f.weights), ("experts", f.experts), ("cache", f.cache), ("drafter", f.drafter)]
    told = " + ".join(f"{size(n)} {name}" for name, n in [*parts, ("to work", f.working)] if n)
    message = f"{what} need {size(f.total)} at {f.context} positions ({told}), {size(limit)} may be used"
    return TurbosparkError("not_enough_memory", message, "a smaller context, more memory, or mapped experts")
