"""What an install will hold and where, known from headers before a byte is written: the same source, the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Span, TensorInfo
from turbospark.formats.expert_layout import PAGE, ROLES, layer_entry, layer_file
from turbospark.formats.install_names import LAYOUT, WEIGHTS
from turbospark.formats.message import listed
from turbospark.formats.resident_index import ALIGNMENT, index_bytes
from turbospark.store.content import Files, content, sized

FLOATS = ("F32", "F16", "BF16")
FORMATS = {"q8_0": ("Q8_0", 32), "int4": ("INT4", 64)}  # what --quantize may ask for, and the columns it needs
# the choice of experts is the one product whose rounding changes which weights are used
ROUTERS = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "mlp.gate.weight", "mlp.shared_expert_gate.weight")
FP8, FP8_SCALES = ("F8_E4M3", "F8_E5M2"), ("_scale_inv", "_scale")
MTP = ("mtp.", "model.mtp.")
DRAFTERS = ("dflash.", "mtp.")  # stay as they are: their rounding costs acceptance at every step
GGUF_EXPERTS = "blk.{layer}.ffn_{role}_exps.{expert}.weight"
HF_EXPERTS = "layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"
_GGUF = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps(?:\.(\d+))?\.weight")
_HF = re.compile(r"(.*?)layers\.(\d+)\.mlp\.experts\.(?:(\d+)\.)?(gate|up|down|gate_up)_proj(?:\.weight)?")

Expert = dict[str, "Placed"]


class Placed(NamedTuple):
    """A tensor of the install: where its bytes come from, and where they will lie, in which format."""

    source: TensorInfo
    target: TensorInfo


@dataclass(frozen=True)
class Plan:
    """resident: in order of the file. experts: by layer, from the first that has some. template: how they are named."""

    resident: Sequence[Placed]
    experts: Sequence[Sequence[Expert]]
    strides: Sequence[int]
    template: str | None

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the files with tensors, and of the layout."""
        found = {name: stride * len(layer) for name, stride, layer in self._layers()}
        if found:
            found[LAYOUT] = len(self.layout())
        end = max((span.offset + span.nbytes for placed in self.resident for span in placed.target.spans), default=0)
        return {**found, WEIGHTS: max(end, len(self.index()))}

    def files(self, source: Files) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Each file's name and bytes, the experts first."""
        for name, stride, layer in self._layers():
            yield name, _joined(source, [placed for expert in layer for placed in expert.values()], b"", stride)
        if self.experts:
            yield LAYOUT, [self.layout()]
        yield WEIGHTS, _joined(source, self.resident, self.index(), 1)

    def index(self) -> bytes:
        return index_bytes([placed.target for placed in self.resident])

    def layout(self) -> bytes:
        layers = [
            layer_entry(i, stride, [{role: p.target for role, p in e.items()} for e in layer])
            for i, (stride, layer) in enumerate(zip(self.strides, self.experts, strict=True))
        ]
        whole = {"numLayers": len(layers), "expertsPerLayer": len(self.experts[0]), "layers": layers}
        return json.dumps({"expertStride": max(self.strides), **whole}).encode()

    def _layers(self) -> Iterator[tuple[str, int, Sequence[Expert]]]:
        for i, (stride, layer) in enumerate(zip(self.strides, self.experts, strict=True)):
            yield f"packed_experts/{layer_file(i)}", stride, layer


def make_plan(
    kind: str,
    tensors: Iterable[TensorInfo],
    layers: int,
    quantize: str | None,
    scale_block: tuple[int, int] = (128, 128),
) -> Plan:
    """The plan of a source's tensors; routed experts of the trunk's `layers` are packed, whatever form they have.

    scale_block: rows and columns that a scale of FP8 covers. quantize: "q8_0" or "int4" for matrices of a source in
    plain floats; routers, vectors and rows that are no whole blocks stay. Raises `already_quantised`,
    `unsupported_layout`, `unsupported_tensor`.
    """
    tensors = list(tensors)
    if quantize is not None:
        _check_plain(tensors, quantize)
    rest, found, template = _sorted(kind, _apart(tensors, scale_block), layers)
    lead = min(found, default=0)
    if sorted(found) != list(range(lead, lead + len(found))) or len({len(e) for e in found.values()}) > 1:
        message = f"routed experts are in layers {sorted(found)}, {[len(found[i]) for i in sorted(found)]} of them"
        raise TurbosparkError("unsupported_layout", message, "as many in every layer from one on are packed")
    experts, strides = [], []
    for layer in sorted(found):
        packed, stride = _pack([found[layer][e] for e in sorted(found[layer])], quantize)
        experts.append(packed)
        strides.append(stride)
    return Plan(_place(rest, quantize), experts, strides, template)


def _check_plain(tensors: Sequence[TensorInfo], quantize: str) -> None:
    if quantize not in FORMATS:
        raise TurbosparkError("invalid_parameter", f"quantize is {quantize!r}, must be one of {', '.join(FORMATS)}")
    trunk = [info for info in tensors if not info.name.startswith(DRAFTERS) and len(info.shape) > 1]
    others = [f"{info.name} ({info.format})" for info in trunk if info.format not in FLOATS]
    if others:
        message = f"the source is quantised already: {listed(others, 3)}"
        raise TurbosparkError("already_quantised", message, "import it as it is, or take the original in plain floats")


def _apart(tensors: Sequence[TensorInfo], scale_block: tuple[int, int]) -> list[TensorInfo]:
    """With FP8 stacks and their scales as tensors an expert; as they are, where a scale covers rows of two of them."""
    named = {info.name: info for info in tensors}
    pieces: list[TensorInfo] = []
    for info in tensors:
        match = _HF.fullmatch(info.name)
        if match is None or match[3] is not None or info.format not in FP8 or match[1].startswith(MTP):
            continue
        scales = next((named.pop(info.name + end) for end in FP8_SCALES if info.name + end in named), None)
        if scales is None or not _fits(info, scales, match[4], scale_block):
            return list(tensors)
        template = match[1] + HF_EXPERTS.replace("{layer}", match[2])
        for whole in (named.pop(info.name), scales):
            for e, role, piece in _split(whole, match[4]):
                name = template.replace("{expert}", str(e)).replace("{role}", role)
                pieces.append(piece._replace(name=name + whole.name.removeprefix(info.name)))
    return [*named.values(), *pieces]


def _fits(info: TensorInfo, scales: TensorInfo, role: str, scale_block: tuple[int, int]) -> bool:
    """Whether each expert's rows have scales of their own."""
    if len(info.shape) != 3:
        return False
    count, out, columns = info.shape
    whole = role != "gate_up" or (out // 2) % scale_block[0] == 0
    return whole and scales.shape == (count, -(-out // scale_block[0]), -(-columns // scale_block[1]))


def _sorted(
    kind: str, tensors: Iterable[TensorInfo], layers: int
) -> tuple[list[TensorInfo], dict[int, dict[int, dict[str, TensorInfo]]], str | None]:
    """What stays together, the experts by layer, number and role, and the template of their names."""
    rest: list[TensorInfo] = []
    found: dict[int, dict[int, dict[str, TensorInfo]]] = {}
    template = None
    for info in tensors:
        match = (_GGUF if kind == "gguf" else _HF).fullmatch(info.name)
        if match is None:
            rest.append(info)
            continue
        if kind == "gguf":
            prefix, (layer, role, number) = "", match.groups()
        else:
            prefix, layer, number, role = match.groups()
        stacked = number is None
        # FP8 stacks that are still whole have scales for rows of two experts
        if int(layer) >= layers or prefix.startswith(MTP) or (stacked and info.format in FP8):
            rest.append(info)
            continue
        template = GGUF_EXPERTS if kind == "gguf" else prefix + HF_EXPERTS
        here = found.setdefault(int(layer), {})
        for e, part, piece in _split(info, role) if stacked else [(int(number), role, info)]:
            here.setdefault(e, {})[part] = piece
    return rest, found, template


def _split(info: TensorInfo, role: str) -> Iterator[tuple[int, str, TensorInfo]]:
    """Each expert's part of a stack; of a fused one the upper half of the rows is gate, the lower one up."""
    count, out, columns = info.shape
    roles = ("gate", "up") if role == "gate_up" else (role,)
    size, rows = info.nbytes // count // len(roles), out // len(roles)
    for e in range(count):
        for i, part in enumerate(roles):
            offset = info.offset + (e * len(roles) + i) * size
            yield e, part, info._replace(shape=(rows, columns), offset=offset, nbytes=size)


def _format(info: TensorInfo, quantize: str | None) -> str:
    matrix = len(info.shape) == 2 and 1 not in info.shape and info.format in FLOATS
    if quantize is None or not matrix or info.name.endswith(ROUTERS) or info.name.startswith(DRAFTERS):
        return info.format
    format, block = FORMATS[quantize]
    return info.format if info.shape[1] % block else format


def _pack(experts: Sequence[Mapping[str, TensorInfo]], quantize: str | None) -> tuple[list[Expert], int]:
    """Offsets count from the beginning of the layer's file; every expert takes the stride of the largest."""
    ordered = [[expert[role] for role in ROLES if role in expert] for expert in experts]
    strides = [_end(_put(infos, 0, quantize)) for infos in ordered]
    stride = -(-max(strides) // PAGE) * PAGE
    packed = []
    for number, infos in enumerate(ordered):
        placed = _put(infos, number * stride, quantize)
        packed.append(dict(zip([role for role in ROLES if role in experts[number]], placed, strict=True)))
    return packed, stride


def _place(infos: Sequence[TensorInfo], quantize: str | None) -> list[Placed]:
    begin = len(index_bytes([placed.target for placed in _put(infos, 0, quantize)]))
    return _put(infos, begin, quantize)


def _put(infos: Sequence[TensorInfo], at: int, quantize: str | None) -> list[Placed]:
    """One after the other from byte `at` on, each aligned, its scales and biases right behind it."""
    placed = []
    for info in infos:
        format = _format(info, quantize)
        nbytes, beside = sized(info, format)
        at = -(-at // ALIGNMENT) * ALIGNMENT
        scales, biases = (Span(at + nbytes + i * beside, beside) if beside else None for i in range(2))
        placed.append(
            Placed(info, info._replace(format=format, offset=at, nbytes=nbytes, scales=scales, biases=biases))
        )
        at += nbytes + 2 * beside
    return placed


def _end(placed: Sequence[Placed]) -> int:
    return max(span.offset + span.nbytes for one in placed for span in one.target.spans)


def _joined(source: Files, placed: Sequence[Placed], head: bytes, stride: int) -> Iterator[bytes]:
    """The head, each tensor at its offset, and zeros up to a multiple of the stride."""
    at = len(head)
    if head:
        yield head
    for one in placed:
        if one.target.offset > at:
            yield bytes(one.target.offset - at)
        yield from content(source, one.source, one.target.format)
        at = one.target.offset + one.target.total
    if at % stride:
        yield bytes(stride - at % stride)


def arch_of_experts(plan: Plan) -> dict[str, Any]:
    """The manifest's own numbers on packed experts."""
    count = len(plan.experts[0]) if plan.experts else 0
    return {"expertsPerLayer": count, "numLayers": len(plan.experts), "expertStride": max(plan.strides, default=0)}
