"""Encoding with the `tokenizers` library, and the byte-level BPE that is built for it from GGUF metadata."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.pretokenizers import PreTokenizer
from turbospark.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary, byte_alphabet, raw_bytes

if TYPE_CHECKING:
    import tokenizers


class LibraryEncoder:
    """An `Encoder` over a tokenizer of the library; nothing is put before or after a text.

    count: ids from here on are left out of what `encode` gives.
    """

    def __init__(self, backend: tokenizers.Tokenizer, count: int):
        self._backend = backend
        self._count = count
        self._lock = Lock()

    def encode(self, text: str, special: bool) -> list[int]:
        with self._lock:  # the switch belongs to the whole backend
            self._backend.encode_special_tokens = not special
            ids = self._backend.encode(text, add_special_tokens=False).ids
        return [token_id for token_id in ids if token_id < self._count]


def byte_level(vocabulary: Vocabulary, merges: Sequence[str], pre: PreTokenizer) -> LibraryEncoder:
    """Byte-level BPE. merges: "left right", the earliest first; raises `bad_tokenizer` where one makes no token."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    ids = vocabulary.ids
    if broken := [text for text in ids if not text.isascii() and raw_bytes(text) != text.encode("utf-8", "replace")]:
        raise TurbosparkError("bad_tokenizer", f"the token {broken[0]!r} is not UTF-8")
    # A byte without a token gives none, but it stands between its neighbours while they merge, as in llama.cpp.
    stand_ins = {char: len(ids) + byte for byte, char in enumerate(byte_alphabet()) if char not in ids}
    pairs: dict[tuple[str, str], None] = {}  # the first of equal merges counts
    for merge in merges:
        cut = merge.find(" ", 1)  # a part is never empty
        left, right = merge[:cut], merge[cut + 1 :]
        if left + right not in ids or left not in ids or right not in ids:
            message = f"the merge {merge!r} needs {left!r}, {right!r} and {left + right!r}"
            raise TurbosparkError("bad_tokenizer", f"{message}, not all of them are among the {len(ids)} tokens")
        pairs[left, right] = None
    backend = Tokenizer(models.BPE(stand_ins | ids, list(pairs), ignore_merges=pre.ignore_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    control = [AddedToken(text, normalized=False, special=True) for text in vocabulary.of_kind(CONTROL, UNKNOWN)]
    user = [AddedToken(text, normalized=False, special=False) for text in vocabulary.of_kind(USER_DEFINED)]
    backend.add_special_tokens(control)
    backend.add_tokens(user)
    return LibraryEncoder(backend, len(ids))
