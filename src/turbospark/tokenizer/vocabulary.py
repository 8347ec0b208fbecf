"""What each token id stands for: its text in the file, its kind, and the exact bytes it adds to a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Literal

from turbospark.errors import TurbosparkError

# Kinds of tokens, numbered as in GGUF's `tokenizer.ggml.token_type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SILENT = frozenset({0, UNKNOWN, CONTROL, UNUSED})  # kinds that add nothing to a text
SPACE = "\u2581"  # how SentencePiece writes a space

Style = Literal["byte_level", "spm"]


def byte_alphabet() -> list[str]:
    """The character that byte-level BPE writes for each byte 0..255 (GPT-2's table).

    Printable Latin-1 stands for itself, the other 68 bytes take U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def raw_bytes(text: str) -> bytes:
    """The bytes of a string from a file; those that were not UTF-8 come back as they were."""
    return text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Vocabulary:
    """texts and kinds (one byte each) are by id; `style` is how the text of a normal token spells its bytes."""

    texts: Sequence[str]
    kinds: bytes
    style: Style

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        return {char: byte for byte, char in enumerate(byte_alphabet())}

    @cached_property
    def ids(self) -> dict[str, int]:
        """Text -> id. Raises `bad_tokenizer` when two ids have one text."""
        ids = dict(zip(self.texts, range(len(self.texts)), strict=True))
        if len(ids) != len(self.texts):
            second = next(token_id for token_id, text in enumerate(self.texts) if ids[text] != token_id)
            text = self.texts[second]
            raise TurbosparkError("bad_tokenizer", f"token {text!r} has two ids, {second} and {ids[text]}")
        return ids

    def of_kind(self, *kinds: int) -> dict[str, int]:
        """Text -> id of all tokens of these kinds, in order of id."""
        chosen = bytes(kind in kinds for kind in range(256))
        return dict(compress(self.ids.items(), self.kinds.translate(chosen)))

    def check(self, token_id: int) -> int:
        """The id as an int. Raises `token_out_of_range`."""
        if not 0 <= token_id < len(self.texts):
            message = f"token id {token_id} is outside the vocabulary of {len(self.texts)} tokens"
            raise TurbosparkError("token_out_of_range", message, f"ids run from 0 to {len(self.texts) - 1}")
        return int(token_id)

    @cached_property
    def _pieces(self) -> dict[int, bytes]:
        return {}

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token, b"" for control, unknown and unused ones. Raises `token_out_of_range`."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._spell(self.check(token_id))
        return piece

    def _spell(self, token_id: int) -> bytes:
        text, kind = self.texts[token_id], self.kinds[token_id]
        if kind in SILENT:
            return b""
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        if self.style == "spm":
            return raw_bytes(text.replace(SPACE, " "))
        if kind == NORMAL and self._byte_of.keys() >= set(text):
            return bytes(self._byte_of[char] for char in text)
        return raw_bytes(text)
