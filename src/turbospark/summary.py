"""What a model's headers tell: its sizes, what it needs, how its texts end, and whether it would run here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from turbospark.config.model import ModelConfig
from turbospark.config.registry import read_config
from turbospark.errors import TurbosparkError
from turbospark.footprint import PROGRAM, Footprint
from turbospark.formats import open_checkpoint
from turbospark.formats.checkpoint import PLAIN, Checkpoint, TensorInfo
from turbospark.formats.message import listed, shown
from turbospark.kernels.api import Kernels
from turbospark.kernels.headers import HeaderKernels
from turbospark.memory import Memory, own_bytes, read_memory
from turbospark.models.registry import model_class
from turbospark.placement import Asked, Placement, place, sizes
from turbospark.quant.formats import FORMATS
from turbospark.quant.tensor import QTensor
from turbospark.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Problem:
    """A reason why the model would not run, as the error it would end in."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Stored:
    """The tensors of one number format."""

    format: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class EndToken:
    """A token that ends an answer, and the declarations that say so."""

    id: int
    text: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """config, parameters, footprint and tokenizer are None where they could not be known; `problems` then say why.

    install: whether it is one; `kind` is then that of its source. drafter: whether one was added to it.
    tokenizer: whether there is one. chat_template and end_tokens are None without.
    """

    path: Path
    kind: str
    files: int
    architecture: str
    config: ModelConfig | None
    parameters: int | None
    tensors: int
    nbytes: int
    formats: tuple[Stored, ...]
    placement: Placement | None
    memory: Memory
    tokenizer: bool | None
    chat_template: bool | None
    end_tokens: tuple[EndToken, ...] | None
    problems: tuple[Problem, ...]
    install: bool = False
    drafter: bool = False

    @property
    def runs(self) -> bool:
        return not self.problems

    @property
    def footprint(self) -> Footprint | None:
        return None if self.placement is None else self.placement.footprint

    def as_json(self) -> dict[str, Any]:
        """Plain values only; layers come as groups of equal ones."""
        data = {**asdict(replace(self, config=None)), "path": str(self.path), "runs": self.runs, "footprint": None}
        if self.footprint is not None:
            data["footprint"] = {**data["placement"].pop("footprint"), "total": self.footprint.total}
        if self.config is not None:
            config = {**asdict(replace(self.config, layers=())), "generation": dict(self.config.generation)}
            parts = {part: groups(getattr(layer, part) for layer in self.config.layers) for part in ("mixer", "ffn")}
            config["layers"] = len(self.config.layers)
            config |= {f"{part}s": [_tagged(p, count) for p, count in found] for part, found in parts.items()}
            data["config"] = config
        return data


def summarise(
    path: str | os.PathLike[str], max_context: int | None = None, chunk: int = 256, asked: Asked | None = None
) -> Summary:
    """The summary of a GGUF file, HF folder or install, for one sequence at a time and without a drafter.

    Only headers, configuration and small vectors are read. Raises what opening raises; everything after that is
    listed in `problems`.
    """
    checkpoint, memory = open_checkpoint(Path(path)), read_memory()
    config = parameters = placement = tokenizer = has_tokenizer = None
    problems: list[Problem] = []
    unread = [info for info in checkpoint.tensors.values() if info.format not in FORMATS and info.format not in PLAIN]
    with _listed(problems):
        config = read_config(checkpoint)
    if config is not None:
        with _listed(problems):
            parameters = _check_tensors(checkpoint, config, unread, problems)
        with _listed(problems):
            found, own = sizes(config, checkpoint), max(own_bytes(), PROGRAM)
            placement = place(config, found, memory, asked or Asked(), max_context, 1, chunk, own)
    with _listed(problems):
        tokenizer = load_tokenizer(checkpoint)
        has_tokenizer = tokenizer is not None
    return Summary(
        checkpoint.path,
        checkpoint.kind,
        len(checkpoint.files),
        _architecture(checkpoint),
        config,
        parameters,
        len(checkpoint.tensors),
        checkpoint.nbytes,
        _stored(checkpoint.tensors.values()),
        placement,
        memory,
        has_tokenizer,
        None if tokenizer is None else tokenizer.has_chat_template,
        None if tokenizer is None else _end_tokens(tokenizer),
        tuple(problems),
        checkpoint.manifest is not None,
        checkpoint.drafter is not None,
    )


def groups(parts: Iterable[Any]) -> list[tuple[Any, int]]:
    """Equal parts of a model's layers and how many of each there are, in order of first use."""
    return list(Counter(parts).items())


@contextmanager
def _listed(problems: list[Problem]):
    try:
        yield
    except TurbosparkError as error:
        problems.append(Problem(error.code, error.message, error.hint))


class _Readable:
    """A checkpoint whose unreadable tensors open as F32 zeros, so that they can be listed together."""

    def __init__(self, checkpoint: Checkpoint, unread: list[TensorInfo]):
        self.tensors = checkpoint.tensors
        self.opened: set[str] = set()
        self._checkpoint, self._unread = checkpoint, {info.name for info in unread}

    def open(self, name: str) -> QTensor:
        if name not in self._unread:
            return self._checkpoint.open(name)
        self.opened.add(name)
        *rows, columns = self.tensors[name].shape
        return QTensor(name, "F32", (*rows, columns), np.broadcast_to(np.uint8(0), (*rows, 4 * columns)))


def _check_tensors(
    checkpoint: Checkpoint, config: ModelConfig, unread: list[TensorInfo], problems: list[Problem]
) -> int:
    """Builds the model from headers: every tensor there, of its shape, and used. Returns the parameter count."""
    kernels, source = HeaderKernels(), _Readable(checkpoint, unread)
    try:
        model_class(config.family)(config, source, checkpoint.kind, cast(Kernels, kernels), config.context)
    finally:
        used = [info for info in unread if info.name in source.opened]
        for kind in _stored(used):
            names = [info.name for info in used if info.format == kind.format]
            message = f"{kind.tensors} tensors have format {kind.format}, which is not supported: {listed(names, 6)}"
            problems.append(Problem("unsupported_format", message, f"supported: {', '.join(FORMATS)}"))
    return kernels.parameters


def _stored(tensors: Iterable[TensorInfo]) -> tuple[Stored, ...]:
    """By format, the one with most bytes first."""
    counts: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for info in tensors:
        counts[info.format] += 1
        nbytes[info.format] += info.nbytes
    return tuple(Stored(name, counts[name], total) for name, total in nbytes.most_common())


def _architecture(checkpoint: Checkpoint) -> str:
    key = {"gguf": "general.architecture", "hf": "model_type", "install": "family"}[checkpoint.kind]
    declared = checkpoint.metadata.get(key)
    return declared if isinstance(declared, str) else shown(declared)


def _end_tokens(tokenizer: Any) -> tuple[EndToken, ...]:
    sources = sorted(tokenizer.end_sources.items())
    return tuple(EndToken(i, tokenizer.token_text(i), tuple(told)) for i, told in sources)


def _tagged(part: Any, count: int) -> dict[str, Any]:
    return {"kind": type(part).__name__, "count": count, **asdict(part)}
