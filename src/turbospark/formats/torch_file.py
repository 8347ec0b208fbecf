"""One small PyTorch file: its tensors, read without running anything that the file says.

`torch.save` writes a zip of a pickle and the raw values. A pickle is a program; the few steps that build a tensor, or
a dict of tensors and numbers, are followed here by name, and any other is refused.
"""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turbospark.errors import TurbosparkError
from turbospark.formats.message import shown
from turbospark.quant.tensor import QTensor

MAX_BYTES = 1 << 26  # of one file inside the zip
STORAGES = {
    f"torch {name}Storage": format for name, format in (("Float", "F32"), ("Half", "F16"), ("BFloat16", "BF16"))
}
SIZES = {"F32": 4, "F16": 2, "BF16": 2}
TENSOR, PARAMETER, DICT = (
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "collections OrderedDict",
)
VALUES = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MARK = object()


class Name(str):
    """A function or class that a pickle mentions; nothing is ever imported by it."""


class Storage(NamedTuple):
    format: str
    file: str


def read_torch(path: str | Path) -> Any:
    """What `torch.save` put into a file: a QTensor, or a dict of such and plain values.

    Raises `file_missing`, and `bad_torch_file` for anything but whole float32, float16 or bfloat16 tensors.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _Machine(path, archive).run()
    except FileNotFoundError:
        raise TurbosparkError("file_missing", f"{path} does not exist") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise _bad(path, f"it cannot be read as a zip: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise _bad(path, f"it does not hold what torch.save writes of tensors: {shown(str(error))}") from None


class _Machine:
    """Follows a pickle's steps on a stack of its own."""

    def __init__(self, path: Path, archive: zipfile.ZipFile):
        self.path, self.archive = path, archive
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise _bad(path, f"it has {len(pickles)} pickles named data.pkl, must have 1")
        self.folder = pickles[0].removesuffix("data.pkl")

    def run(self) -> Any:
        stack: list[Any] = []
        memo: dict[Any, Any] = {}
        for step, value, _ in pickletools.genops(self._file("data.pkl")):
            name = step.name
            if name in VALUES:
                stack.append(value)
            elif name in CONSTANTS:
                stack.append(CONSTANTS[name])
            elif name in TUPLES:
                stack[-TUPLES[name] :] = [tuple(stack[-TUPLES[name] :])]
            elif name == "GLOBAL":
                stack.append(Name(value))
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[value] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[value])
            elif name == "MARK":
                stack.append(MARK)
            elif name == "TUPLE":
                stack.append(tuple(_since_mark(stack)))
            elif name == "EMPTY_TUPLE":
                stack.append(())
            elif name == "EMPTY_DICT":
                stack.append({})
            elif name in ("SETITEM", "SETITEMS"):
                pairs = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _since_mark(stack)
                stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
            elif name == "BINPERSID":
                stack.append(self._storage(stack.pop()))
            elif name == "REDUCE":
                arguments = stack.pop()
                stack.append(self._build(stack.pop(), arguments))
            elif name == "STOP":
                return stack.pop()
            elif name != "PROTO":
                raise _bad(self.path, f"its pickle uses {name}, which no tensor needs")
        raise _bad(self.path, "its pickle has no end")

    def _storage(self, said: Any) -> Storage:
        kind, storage, file, *_ = said
        if kind != "storage" or storage not in STORAGES:
            raise _bad(self.path, f"it holds {shown(str(storage))}; known are {', '.join(STORAGES)}")
        return Storage(STORAGES[storage], file)

    def _build(self, what: Any, arguments: Any) -> Any:
        if what == TENSOR and isinstance(what, Name):
            return self._tensor(*arguments[:4])
        if what == PARAMETER and isinstance(what, Name):
            return arguments[0]
        if what == DICT and isinstance(what, Name) and arguments == ():
            return {}
        raise _bad(self.path, f"its pickle calls {shown(str(what))}, which is not run")

    def _tensor(self, storage: Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> QTensor:
        size, shape = SIZES[storage.format], shape or (1,)
        count = prod(shape)
        dense = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if any(n > 1 and step != want for n, step, want in zip(shape, stride or (1,), dense, strict=True)):
            raise _bad(self.path, f"a tensor of shape {list(shape)} has strides {list(stride)}, must have {dense}")
        data = self._file("data/" + storage.file)[offset * size : (offset + count) * size]
        if offset < 0 or len(data) != count * size:
            raise _bad(self.path, f"a tensor of shape {list(shape)} needs {count * size} bytes, has {len(data)}")
        return QTensor(self.path.name, storage.format, shape, np.frombuffer(data, np.uint8).reshape(*shape[:-1], -1))

    def _file(self, name: str) -> bytes:
        info = self.archive.getinfo(self.folder + name)
        if info.file_size > MAX_BYTES:
            raise _bad(self.path, f"{name} in it has {info.file_size} bytes, at most {MAX_BYTES} are read")
        return self.archive.read(info)


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1 - stack[::-1].index(MARK)
    values = stack[at + 1 :]
    del stack[at:]
    return values


def _bad(path: Path, fault: str) -> TurbosparkError:
    hint = "write the tensor with torch.save in PyTorch 1.6 or later, or put it into the safetensors file"
    return TurbosparkError("bad_torch_file", f"{path}: {fault}", hint)
