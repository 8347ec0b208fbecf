"""A loaded model: text in, text out, over the engine that knows ids only."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from turbospark.config.model import ModelConfig
from turbospark.config.registry import read_config
from turbospark.draft.base import Drafter, Policy
from turbospark.engine.loop import NO_TEXT, Engine
from turbospark.engine.params import SamplingParams
from turbospark.engine.request import Request, Stats
from turbospark.engine.sampler import Drawn
from turbospark.errors import TurbosparkError
from turbospark.experts.base import Residency
from turbospark.formats.checkpoint import Checkpoint
from turbospark.kernels.registry import make_kernels
from turbospark.models.base import Model
from turbospark.models.registry import model_class
from turbospark.quant.tensor import QTensor

Progress = Callable[[int, int], None]
Note = Callable[[str], None]
Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]


@dataclass(frozen=True)
class Completion:
    """text, token_ids and logprobs (when asked for) end at the same token; params are as run, the seed included."""

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats
    params: SamplingParams
    logprobs: list[Drawn] | None = None


@dataclass(frozen=True)
class Chunk:
    """What a step added to a streamed answer, nothing while the prompt is read; the last one has a finish_reason."""

    text: str
    token_ids: list[int]
    finish_reason: str | None


class LanguageModel:
    """What `turbospark.load` returns. `tokenizer` is None for a folder without one: prompts are token ids then.

    placement: where the weights are, and why.
    """

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, tokenizer: Any, engine: Engine, placement: Any = None
    ):
        self.checkpoint, self.config, self.tokenizer, self.engine = checkpoint, config, tokenizer, engine
        self.placement = placement

    @property
    def residency(self) -> Residency:
        """How the weights are held; its `traffic` counts what experts cost."""
        return self.engine.model.residency

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Runs one prompt to its end: a string is completed as it is, messages go through the chat template."""
        request = self.submit(prompt, params)
        stream = TextOf(request)
        for _ in stream.chunks(self.engine):
            pass
        return stream.completion()

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """The same, piece by piece. Leaving the loop early cancels the request."""
        request = self.submit(prompt, params)
        yield from TextOf(request).chunks(self.engine)

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """Queues a prompt in the engine, for callers that step it themselves."""
        if not isinstance(params, SamplingParams | None):
            raise TurbosparkError("invalid_parameter", f"params must be SamplingParams, has {type(params).__name__}")
        resolved = (params or SamplingParams()).resolve(self.config.generation, self.config.vocab)
        if isinstance(resolved.speculative, int):
            self.require_drafter(f"speculative={resolved.speculative}")
        if resolved.stop and self.tokenizer is None:
            raise TurbosparkError("no_tokenizer", "stop strings need a tokenizer, and this model has none")
        pieces, ends = (NO_TEXT, ()) if self.tokenizer is None else (self.tokenizer.piece, self.tokenizer.end_ids)
        return self.engine.submit(self.encode(prompt), resolved, pieces=pieces, end_ids=ends)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt."""
        if isinstance(prompt, str):
            return self._text_tokenizer().encode(prompt)
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            tokenizer = self._text_tokenizer()
            return tokenizer.encode(tokenizer.chat(prompt), special=True)
        return _ids(prompt)

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """float32 [T, vocab] at all positions, through the same forward and caches as generation."""
        return self.engine.logits(_ids(token_ids))

    def require_drafter(self, asked_by: str) -> None:
        """Refuses what `asked_by` names where there is no drafter to do it (`no_drafter`)."""
        if self.engine.drafter is None:
            lacks = "no dflash.fc.weight or mtp. tensor is in it, or none was asked for"
            message = f"{asked_by} needs a drafter, and {self.checkpoint.path.name} runs without: {lacks}"
            hint = 'name a drafter\'s folder or file, or "ngram"; "off" and "auto" decode without one'
            raise TurbosparkError("no_drafter", message, hint)

    def _text_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise TurbosparkError("no_tokenizer", "this model has no tokenizer; give token ids")
        return self.tokenizer


class TextOf:
    """Drives the engine until one request ends, and turns its bytes into text.

    It reads from the request, not from the steps' updates: another reader's step may have moved the request on.
    """

    def __init__(self, request: Request):
        from turbospark.tokenizer.stream import Utf8Stream

        self.request = request
        self._utf8 = Utf8Stream()
        self._text: list[str] = []
        self._bytes = self._tokens = 0  # read so far
        self._ended = False

    def chunks(self, engine: Engine) -> Generator[Chunk]:
        """One a step, empty while the prompt is read: a place to leave from, which cancels the request."""
        try:
            while not self._ended:
                if not self.request.done:
                    engine.step()
                yield self._read()
        finally:
            engine.cancel(self.request)
            self._read()  # what was held back when the request was cancelled
        if self.request.error is not None:
            raise self.request.error

    def completion(self) -> Completion:
        request = self.request
        logprobs = request.drawn if request.params.logprobs is not None else None
        return Completion(
            "".join(self._text), request.output, str(request.reason), request.stats, request.params, logprobs
        )

    def _read(self) -> Chunk:
        request = self.request
        data, drawn = request.text[self._bytes :], request.drawn[self._tokens :]
        self._bytes, self._tokens = len(request.text), len(request.drawn)
        self._ended = request.done
        text = self._utf8.push(data) + (self._utf8.close() if request.done else "")
        self._text.append(text)
        return Chunk(text, [d.token for d in drawn], request.reason)


def load(
    path: str | os.PathLike[str],
    backend: str = "auto",
    max_context: int | None = None,
    *,
    slots: int = 4,
    chunk: int = 256,
    drafter: str | os.PathLike[str] | None = None,
    exact: bool = False,
    threads: int | None = None,
    expert_residency: str = "auto",
    expert_cache_slots: int | None = None,
    memory: int | None = None,
    load_guard: str = "relaxed",
    progress: Progress | None = None,
    note: Note | None = None,
) -> LanguageModel:
    """Opens an alias, an install, a GGUF file (single or split) or an HF folder.

    max_context: positions a sequence may have; None takes the model's own, as far as memory goes. slots: requests
    that run at once. chunk: prompt rows of a step. drafter: "auto", "dflash", "mtp", "ngram", or the file or folder of
    one; None allocates nothing. exact: nothing is rounded below float32 on the way, whatever it costs. threads: of the
    CPU kernels, for all models of this process; None leaves them at one for each core. progress: called with bytes of
    weights opened, and of all. note: told of a drafter that was found and does not fit, and of reads that go through
    the page cache.

    expert_residency: "resident", "streamed" or "mapped" (see `docs/decisions.md`); "auto" decides from the memory there
    is, and `placement` of the result says what and why. expert_cache_slots: routed experts, of all layers together,
    that streaming keeps in memory. memory: bytes for weights, caches, drafter and all else. load_guard: "off",
    "relaxed", "balanced" or "strict", what an automatic choice leaves to the machine: 0, 4, 8 or 12 GiB, never more
    than half of it.
    """
    from turbospark.catalog import resolve
    from turbospark.formats import open_checkpoint
    from turbospark.memory import own_bytes, read_memory
    from turbospark.placement import Asked, place, sizes
    from turbospark.tokenizer import load_tokenizer

    for name, value in (("slots", slots), ("chunk", chunk)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TurbosparkError("invalid_parameter", f"{name} must be an integer of at least 1, has {value!r}")
    asked = Asked(expert_residency, expert_cache_slots, memory, load_guard)
    kernels = make_kernels(backend, exact, threads)
    checkpoint = open_checkpoint(resolve(path))
    config = read_config(checkpoint)
    found = sizes(config, checkpoint, *_needs(drafter, checkpoint, config))
    tokenizer = load_tokenizer(checkpoint)  # before memory is counted
    placement = place(config, found, read_memory(), asked, max_context, slots, chunk, own_bytes())
    source = checkpoint if progress is None else Watched(checkpoint, progress)
    residency = placement.hold(checkpoint, kernels, asked, note or (lambda text: None))
    context = placement.footprint.context
    model = model_class(config.family)(config, source, checkpoint.kind, kernels, context, residency)
    engine = Engine(model, slots, chunk, *_speculation(drafter, model, checkpoint, slots, chunk, note))
    return LanguageModel(checkpoint, config, tokenizer, engine, placement)


def _needs(named: str | os.PathLike[str] | None, trunk: Checkpoint, config: ModelConfig) -> tuple[Any, ...]:
    """What the drafter asked for takes in memory; nothing of drafters is imported where none was."""
    if named is None:
        return ()
    from turbospark.draft.needs import needs

    found = needs(named, trunk, config)
    return found.weights, found.caches


def _speculation(
    named: str | os.PathLike[str] | None, model: Model, trunk: Checkpoint, slots: int, chunk: int, note: Note | None
) -> tuple[Drafter | None, Policy | None]:
    """The drafter asked for, and what decides how many tokens it proposes."""
    if named is None:
        return None, None
    from turbospark.draft.adaptive import Adaptive
    from turbospark.draft.load import load_drafter

    drafter = load_drafter(named, model, trunk, slots, chunk, note or (lambda text: None))
    return drafter, None if drafter is None else Adaptive(drafter.trained, slots)


class Watched:
    """A checkpoint that tells how much of it has been opened."""

    def __init__(self, checkpoint: Checkpoint, progress: Progress):
        self.tensors = checkpoint.tensors
        self._checkpoint, self._progress, self._total, self._opened = checkpoint, progress, checkpoint.nbytes, 0

    def open(self, name: str) -> QTensor:
        self._opened += self.tensors[name].nbytes
        self._progress(self._opened, self._total)
        return self._checkpoint.open(name)


def _ids(prompt: Any) -> list[int]:
    ordered = not isinstance(prompt, str | bytes | bytearray | Mapping | Set)
    try:
        ids = [index(i) for i in prompt if not isinstance(i, bool)] if ordered else []
        exact = ordered and len(ids) == len(prompt)
    except TypeError:
        exact = False
    if not exact:
        raise TurbosparkError(
            "bad_prompt",
            f"a prompt is a text, a list of messages or a list of token ids, not {str(prompt)[:60]!r}",
        )
    return ids
