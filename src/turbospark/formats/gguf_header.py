"""Steps through a GGUF header: every length is checked against the file before it is followed.

Source: the GGUF specification (ggml/docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from turbospark.errors import TurbosparkError
from turbospark.formats.mapped import MappedFile
from turbospark.formats.message import shown

TYPE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
U32, BOOL, STRING, ARRAY, U64 = 4, 7, 8, 9, 10
LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", 5: "i", 6: "f", BOOL: "?", U64: "Q", 11: "q", 12: "d"}
NUMBERS = {code: struct.Struct("<" + letter) for code, letter in LETTERS.items()}
MAX_ENTRIES = 1 << 22  # of an array; the largest vocabularies have 2^18 tokens and 2^19 merges
MAX_BYTES = 1 << 26  # of a string or an array; the largest are whole tokenizers of 2^25


def type_name(code: int) -> str:
    """The name of a value type, for messages."""
    return TYPE_NAMES[code] if code < len(TYPE_NAMES) else f"unknown type {code}"


class LazyArray(NamedTuple):
    """`length` entries of type `code` in bytes `start` to `stop` of the file."""

    code: int
    length: int
    start: int
    stop: int


class Header:
    """A place `at` in the header of a file. `what` names the part read, for the error if it does not fit."""

    def __init__(self, file: MappedFile):
        self.file = file
        self.data = memoryview(file.map)
        self.at = 0

    def step(self, count: int, what: str) -> int:
        """Moves over `count` bytes and returns where they begin."""
        start = self.at
        if count > self.file.size - start:
            raise self.file.cut(what, count, start)
        self.at = start + count
        return start

    def number(self, code: int, what: str) -> Any:
        layout = NUMBERS[code]
        start = self.step(layout.size, what)
        if code == BOOL and self.data[start] > 1:
            raise self.refuse(f"{what} is a bool and must be 0 or 1, has {self.data[start]}")
        return layout.unpack_from(self.data, start)[0]

    def count(self, what: str, least: int) -> int:
        """A 64-bit count of entries of `least` bytes or more each; refused when the file cannot hold them."""
        count = self.number(U64, f"the number of {what}")
        if count * least > self.file.size - self.at:
            raise self.file.cut(f"{count} {what}", count * least, self.at)
        return count

    def string(self, what: str, limit: int = MAX_BYTES) -> str:
        """Text; bytes that are not UTF-8 come as lone surrogates, see GGUFMetadata."""
        length = self.number(U64, f"the length of {what}")
        if length > limit:
            raise self.refuse(f"{what} has {length} bytes, at most {limit} are allowed")
        start = self.step(length, what)
        return str(self.data[start : self.at], "utf-8", "surrogateescape")

    def value(self, key: str, only: int | None = None) -> Any:
        """A number, a bool, a string, or an array passed over and kept for later. `only` fixes the type.

        Arrays of arrays are refused, as by llama.cpp: nothing writes them.
        """
        what = f"the value of {shown(key)}"
        code = self.number(U32, f"the type of {shown(key)}")
        if only is not None and code != only:
            raise self.refuse(f"{what} must be {type_name(only)}, is {type_name(code)}")
        if code == STRING:
            return self.string(what)
        if code == ARRAY:
            return self._array(what)
        if code not in NUMBERS:
            raise self.refuse(f"{what} has {type_name(code)}, known are 0 to {len(TYPE_NAMES) - 1}")
        return self.number(code, what)

    def _array(self, what: str) -> LazyArray:
        code = self.number(U32, f"the element type of {what}")
        if code != STRING and code not in NUMBERS:
            kinds = "numbers, bools or strings"
            raise self.refuse(f"{what} is an array of {type_name(code)}, arrays of {kinds} are read")
        size = 8 if code == STRING else NUMBERS[code].size
        length = self.count(f"{type_name(code)} entries in {what}", size)
        if length > MAX_ENTRIES:
            raise self.refuse(f"{what} has {length} entries, at most {MAX_ENTRIES} are read")
        start = self.at
        if code == STRING:
            self._pass_strings(length, what)
        else:
            self.step(length * size, what)
        if self.at - start > MAX_BYTES:
            raise self.refuse(f"{what} has {self.at - start} bytes, at most {MAX_BYTES} are read")
        if code == BOOL and length and self.file.data[start : self.at].max() > 1:
            raise self.refuse(f"{what} holds bools that are neither 0 nor 1")
        return LazyArray(code, length, start, self.at)

    def _pass_strings(self, count: int, what: str) -> None:
        data, at, size, length = self.data, self.at, self.file.size, NUMBERS[U64].unpack_from
        for index in range(count):
            stop = at + 8
            if stop <= size:
                stop += length(data, at)[0]
            if stop > size:
                raise self.file.cut(f"string {index} of {count} in {what}", stop - at, at)
            at = stop
        self.at = at

    def entries(self, array: LazyArray) -> list[Any]:
        """The entries of an array that was passed over."""
        if array.code != STRING:
            return np.frombuffer(self.data, "<" + LETTERS[array.code], array.length, array.start).tolist()
        data, at, length = self.data[array.start : array.stop].tobytes(), 0, NUMBERS[U64].unpack_from
        texts = []
        for _ in range(array.length):
            start = at + 8
            at = start + length(data, at)[0]
            texts.append(data[start:at].decode("utf-8", "surrogateescape"))
        return texts

    def refuse(self, message: str) -> TurbosparkError:
        return TurbosparkError("bad_gguf", f"{self.file.path}: {message}")


class GGUFMetadata(Mapping[str, Any]):
    """The key-value section. Values are int, float, bool, str, or a list of one of them.

    An array is read when it is first asked for, then kept; `count` tells its length without reading it. Bytes
    that are not UTF-8 are kept as lone surrogates: `text.encode("utf-8", "surrogateescape")` gives them back.
    """

    def __init__(self, header: Header, values: dict[str, Any]):
        self._header = header
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, LazyArray):
            self._header.file.check_size()
            value = self._values[key] = self._header.entries(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def count(self, key: str) -> int | None:
        """Number of entries of an array; None where there is no such array."""
        value = self._values.get(key)
        if isinstance(value, LazyArray):
            return value.length
        return len(value) if isinstance(value, list) else None
