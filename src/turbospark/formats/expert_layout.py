"""packed_experts/ of an install: a file a layer, an expert a stride, and layout.json to say what lies where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import Span, TensorInfo
from turbospark.formats.dtypes import AFFINE, CODE_OF
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown
from turbospark.formats.resident_index import size_fault

ROLES = ("gate", "up", "down")
PAGE = 4096  # an expert begins on one, so that it is one read past the page cache
MAX_LAYERS, MAX_EXPERTS = 4096, 1 << 16


def read_layout(
    folder: Path, content: Mapping[str, Any], template: str, lead: int
) -> tuple[dict[str, TensorInfo], dict[Path, MappedFile]]:
    """The experts' tensors, named by `template`, and the layers' files; the first one is of layer `lead`.

    content: the object of layout.json. Raises `bad_install`, and what MappedFile raises.
    """
    path = folder / "layout.json"
    tensors: dict[str, TensorInfo] = {}
    maps: dict[Path, MappedFile] = {}
    for position, layer in enumerate(_list(path, content, "layers", MAX_LAYERS)):
        name = layer.get("file")
        if not isinstance(name, str) or Path(name).name != name or "\0" in name or name in (".", ".."):
            raise _bad(path, f"the file of layer {position} is {shown(name)}, must be a name beside it")
        if folder / name in maps:
            raise _bad(path, f"{name} is the file of two layers")
        file = maps[folder / name] = MappedFile(folder / name)
        for number, expert in enumerate(_list(path, layer, "experts", MAX_EXPERTS)):
            if expert.get("expert", number) != number:
                raise _bad(path, f"{name}: expert {shown(expert.get('expert'))} stands in the place of {number}")
            for role, info in _expert(path, file, f"{name}, expert {number}", expert).items():
                tensor = template.replace("{layer}", str(lead + position)).replace("{expert}", str(number))
                tensor = tensor.replace("{role}", role)
                tensors[tensor] = info._replace(name=tensor)
    return tensors, maps


def _expert(path: Path, file: MappedFile, where: str, expert: Mapping[str, Any]) -> dict[str, TensorInfo]:
    begin, size = _whole(path, expert, "offset", where), _whole(path, expert, "size", where)
    if begin + size > file.size:
        raise file.cut(f"{where.split(', ')[-1]}", size, begin)
    parts = expert.get("tensors")
    if not isinstance(parts, dict):
        raise _bad(path, f"{where} has no tensors")
    beside = {f"{role}_{kind}" for role in ROLES for kind in ("scales", "biases")}
    if missing := set(ROLES) - set(parts):
        raise _bad(path, f"{where} lacks {', '.join(sorted(missing))}")
    if others := set(parts) - set(ROLES) - beside:
        raise _bad(path, f"{where} has {shown(sorted(others)[0])}, known are {', '.join(ROLES)} with scales and biases")
    spans = {}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise _bad(path, f"{where}: {name} must be an object")
        span = Span(_whole(path, part, "offset", where), _whole(path, part, "size", where))
        if span.offset + span.nbytes > size:
            message = f"{where}: {name} ends at byte {span.offset + span.nbytes} of {size}"
            raise _bad(path, message)
        if name in beside and str(part.get("dtype")).lower() != "bf16":
            raise _bad(path, f"{where}: {name} has dtype {shown(part.get('dtype'))}, bf16 is read")
        spans[name] = Span(begin + span.offset, span.nbytes)
    return {role: _tensor(path, file, f"{where}: {role}", parts[role], role, spans) for role in ROLES}


def _tensor(
    path: Path, file: MappedFile, where: str, part: Mapping[str, Any], role: str, spans: Mapping[str, Span]
) -> TensorInfo:
    shape = part.get("shape")
    whole = isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 0 < n < 1 << 32 for n in shape)
    if not whole or not isinstance(shape, list):
        raise _bad(path, f"{where} has shape {shown(shape)}, must be two numbers, rows and columns")
    scales, biases = spans.get(f"{role}_scales"), spans.get(f"{role}_biases")
    span, format = spans[role], str(part.get("dtype")).upper()
    if scales is not None:  # the codes' width is their size
        widths = {bits: name for name, bits in AFFINE.items()}
        format = widths.get(8 * span.nbytes // prod(shape), format)
    if format not in CODE_OF:
        raise _bad(path, f"{where} has dtype {shown(part.get('dtype'))}, which is not known")
    info = TensorInfo(role, format, tuple(shape), file.path, span.offset, span.nbytes, scales, biases)
    if fault := size_fault(info):
        raise _bad(path, f"{where} {fault}")
    return info


def layer_entry(position: int, stride: int, experts: Sequence[Mapping[str, TensorInfo]]) -> dict[str, Any]:
    """A layer of layout.json, counted from the first with experts. The tensors' offsets count from the beginning of the
    layer's file."""
    described = []
    for number, roles in enumerate(experts):
        begin, tensors = number * stride, {}
        for role, info in roles.items():
            shape = {"dtype": info.format.lower(), "shape": list(info.shape)}
            tensors[role] = {"offset": info.offset - begin, "size": info.nbytes, **shape}
            for kind, span in (("scales", info.scales), ("biases", info.biases)):
                if span is not None:
                    groups = [info.shape[0], span.nbytes // 2 // info.shape[0]]
                    place = {"offset": span.offset - begin, "size": span.nbytes}
                    tensors[f"{role}_{kind}"] = {**place, "dtype": "bf16", "shape": groups}
        described.append({"expert": number, "offset": begin, "size": stride, "tensors": tensors})
    return {"layer": position, "file": layer_file(position), "expertStride": stride, "experts": described}


def layer_file(position: int) -> str:
    return f"layer_{position:02d}.bin"


def _list(path: Path, section: Mapping[str, Any], name: str, most: int) -> list[dict[str, Any]]:
    value = section.get(name)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _bad(path, f"{name} must be a list of objects, is {shown(value)}")
    if len(value) > most:
        raise _bad(path, f"{name} has {len(value)} entries, at most {most} are read")
    return value


def _whole(path: Path, section: Mapping[str, Any], name: str, where: str) -> int:
    value = section.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise _bad(path, f"{where}: {name} is {shown(value)}, must be a number of bytes")
    return value


def _bad(path: Path, fault: str) -> TurbosparkError:
    return TurbosparkError("bad_install", f"{path}: {fault}", "turbospark verify tells more")
