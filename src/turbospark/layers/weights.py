"""Named weights of a model, each checked against the shape its config asks for and used once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from turbospark import quant
from turbospark.config.model import ModelConfig
from turbospark.errors import TurbosparkError
from turbospark.experts.base import ExpertStore, Parts, Residency
from turbospark.experts.mapped import Mapped
from turbospark.kernels.api import Kernels
from turbospark.kernels.parts import Norm
from turbospark.layers.trace import Trace
from turbospark.quant.tensor import QTensor

FP8_SCALES = ("_scale_inv", "_scale")


class Source(Protocol):
    """What a checkpoint offers: shapes by file name, and the tensors themselves."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...

    def open(self, name: str) -> QTensor: ...


class Weights:
    """Weights under one prefix. `locate(canonical name)` gives the names a file may use for it, first found wins."""

    def __init__(
        self,
        source: Source,
        locate: Callable[[str], Iterable[str]],
        kernels: Kernels,
        trace: Trace,
        scale_block: tuple[int, int],
        residency: Residency | None = None,
    ):
        self.kernels = kernels
        self.scale_block = scale_block  # of FP8 weights
        self.prefix = ""
        self._source, self._locate, self._trace = source, locate, trace
        self.residency = residency or Mapped()
        self._used: set[str] = set()
        self._missing: list[str] = []

    def scope(self, prefix: str) -> Weights:
        """The weights below a prefix, such as "blk.3."; they share the record of what was used."""
        inner = object.__new__(Weights)
        inner.__dict__.update(self.__dict__)
        inner.prefix = self.prefix + prefix
        return inner

    @property
    def trace(self) -> Callable[[str, Any], None]:
        return self._trace.scoped(self.prefix)

    def has(self, name: str, suffix: str = ".weight") -> bool:
        return self._find(name + suffix) is not None

    def shape(self, name: str, suffix: str = ".weight") -> tuple[int, ...]:
        """The shape the file gives a tensor, () when it has none of that name."""
        found = self._find(name + suffix)
        return () if found is None else tuple(self._source.tensors[found].shape)

    def tensor(self, name: str, shape: tuple[int, ...], suffix: str = ".weight") -> QTensor:
        """The tensor where the model's residency holds it, or a stand-in when it is missing, which `check` will report.

        Axes of length one do not count in the comparison of shapes.
        """
        return self.residency.core(self._stored(name, shape, suffix))

    def _stored(self, name: str, shape: tuple[int, ...], suffix: str = ".weight") -> QTensor:
        """The same as a view into its file."""
        found = self._find(name + suffix)
        if found is None:
            self._missing.append(next(iter(self._locate(self.prefix + name + suffix))))
            row = np.zeros(4 * shape[-1], np.uint8)
            return QTensor(name, "F32", shape, np.broadcast_to(row, (*shape[:-1], len(row))))
        self._used.add(found)
        have = tuple(self._source.tensors[found].shape)
        if _essential(have) != _essential(shape):
            raise TurbosparkError(
                "shape_mismatch",
                f"tensor {found} has shape {list(have)}, the configuration asks for {list(shape)}",
                "the file's weights and its configuration do not belong together",
            )
        return self._with_scales(self._source.open(found))

    def matrix(self, name: str, *shape: int, suffix: str = ".weight") -> Any:
        """A backend's weight, [out, in] or [heads, out, in]."""
        return self.kernels.weight(self.tensor(name, shape, suffix))

    def values(self, name: str, *shape: int, suffix: str = ".weight") -> np.ndarray:
        """The decoded float32 values of a small tensor."""
        return quant.decode(self.tensor(name, shape, suffix)).reshape(shape)

    def vector(self, name: str, *shape: int, suffix: str = ".weight", offset: bool = False) -> Any:
        """A small array on the device; `offset` norms are stored as w and mean 1 + w."""
        return self.kernels.vector(self.values(name, *shape, suffix=suffix) + np.float32(offset))

    def norm(self, name: str, n: int, model: ModelConfig) -> Norm:
        """One of the trunk's RMS norms, by the model's eps and convention."""
        return Norm(self.vector(name, n, offset=model.norm_offset), model.eps)

    def experts(self, count: int, width: int, hidden: int) -> ExpertStore:
        """Every routed expert of a layer."""
        return self.residency.experts(self.expert_parts(count, width, hidden), self.kernels)

    def expert_parts(self, count: int, width: int, hidden: int) -> list[Parts]:
        """Gate, up and down of every routed expert, in the file: stacked, gate and up fused, or a tensor an expert."""
        fused_end = next((end for end in ("", ".weight") if self.has("ffn_gate_up_exps", end)), None)  # HF, GGUF
        if fused_end is not None:
            fused = self._stored("ffn_gate_up_exps", (count, 2 * width, hidden), fused_end)
            down = self._stored("ffn_down_exps", (count, hidden, width), fused_end)
            return [(fused[e][:width], fused[e][width:], down[e]) for e in range(count)]
        if self.has("ffn_gate_exps.0"):
            one = lambda role, e, *shape: self._stored(f"ffn_{role}_exps.{e}", shape)
            return [
                (one("gate", e, width, hidden), one("up", e, width, hidden), one("down", e, hidden, width))
                for e in range(count)
            ]
        gate = self._stored("ffn_gate_exps", (count, width, hidden))
        up = self._stored("ffn_up_exps", (count, width, hidden))
        down = self._stored("ffn_down_exps", (count, hidden, width))
        return [(gate[e], up[e], down[e]) for e in range(count)]

    def check(self, ignore: Callable[[str], bool]) -> None:
        """Refuses, by name, what is missing and what nothing used; `ignore` names what may stay unused."""
        if self._missing:
            names = ", ".join(self._missing[:6]) + (", ..." if len(self._missing) > 6 else "")
            raise TurbosparkError("missing_tensor", f"{len(self._missing)} tensors are missing: {names}")
        unused = [name for name in self._source.tensors if name not in self._used and not ignore(name)]
        if unused:
            names = ", ".join(unused[:6]) + (", ..." if len(unused) > 6 else "")
            raise TurbosparkError(
                "unused_tensor",
                f"{len(unused)} tensors have no place in this model: {names}",
                "running without them would give other answers; is the architecture what the configuration says?",
            )

    def _find(self, name: str) -> str | None:
        return next((n for n in self._locate(self.prefix + name) if n in self._source.tensors), None)

    def _with_scales(self, tensor: QTensor) -> QTensor:
        if tensor.format not in ("F8_E4M3", "F8_E5M2"):
            return tensor
        for suffix in FP8_SCALES:
            name = tensor.name + suffix
            if name in self._source.tensors:
                self._used.add(name)
                return quant.with_scales(tensor, self._source.open(name), self.scale_block)
        raise TurbosparkError(
            "missing_scale",
            f"tensor {tensor.name} is {tensor.format} and has no {tensor.name}{FP8_SCALES[0]} beside it",
        )


def _essential(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)
