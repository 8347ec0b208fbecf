"""SentencePiece BPE from pieces and scores: the best-scored neighbours merge first, the leftmost of equals.

The `tokenizers` library would want a list of merges. Scores do not say how a piece is cut in two, so every cut would
be listed (515,000 for Gemma 3), which costs two seconds at each start; here a merge is one look-up in a dictionary.
Source: Kudo and Richardson, "SentencePiece" (2018); llama.cpp for the space after special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.special import SpecialTokens
from turbospark.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
)

CACHED_WORDS, CACHED_LENGTH = 1 << 16, 64


class SentencePiece:
    """An `Encoder`. Characters that are no piece are spelt in byte tokens.

    scores: one per id, higher merges first. adds_space: one space goes before the text, and before what follows a
    special token. Raises `bad_tokenizer` unless all 256 byte tokens are there.
    """

    def __init__(self, vocabulary: Vocabulary, scores: Sequence[float], adds_space: bool):
        pieces = vocabulary.of_kind(NORMAL, USER_DEFINED, UNUSED)
        self._ids = vocabulary.ids
        self._costs = {text: -scores[token_id] for text, token_id in pieces.items()}
        self._bytes = {int(text[3:5], 16): token_id for text, token_id in vocabulary.of_kind(BYTE).items()}
        if len(self._bytes) != 256:
            raise TurbosparkError("bad_tokenizer", f"the vocabulary needs 256 byte tokens, has {len(self._bytes)}")
        self._special = SpecialTokens(vocabulary.of_kind(CONTROL, UNKNOWN, USER_DEFINED))
        self._user_defined = SpecialTokens(vocabulary.of_kind(USER_DEFINED))
        self._start = SPACE if adds_space else ""
        # Where no piece has a space behind another character, no merge crosses that border.
        crossing = re.compile(f"[^{SPACE}]{SPACE}")
        crosses = any(map(crossing.search, pieces))
        self._word = re.compile("(?s).+" if crosses else f"{SPACE}*[^{SPACE}]+|{SPACE}+")
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str, special: bool) -> list[int]:
        tokens = self._special if special else self._user_defined
        ids: list[int] = []
        for part in tokens.split(text):
            if isinstance(part, int):
                ids.append(part)
                continue
            for word in self._word.findall(self._start + part.replace(" ", SPACE)):
                ids += self._known.get(word) or self._spell(word)
        return ids

    def _spell(self, word: str) -> list[int]:
        """Ids of one word; short ones are remembered."""
        ids: list[int] = []
        for piece in self._merge(word):
            if piece in self._costs:
                ids.append(self._ids[piece])
            else:
                ids += [self._bytes[byte] for byte in piece.encode()]
        if len(word) <= CACHED_LENGTH and len(self._known) < CACHED_WORDS:
            self._known[word] = ids
        return ids

    def _merge(self, word: str) -> list[str]:
        """The word in pieces. A merge grows its left symbol and empties the right one."""
        costs = self._costs
        symbols = list(word)
        after = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        pairs = map(str.__add__, word, word[1:])
        queue = [(costs[pair], left, pair) for left, pair in enumerate(pairs) if pair in costs]
        heapify(queue)
        while queue:
            _, left, pair = heappop(queue)
            right = after[left]
            if not symbols[left] or right < 0 or len(symbols[left]) + len(symbols[right]) != len(pair):
                continue  # one of the two has merged with another since
            symbols[left], symbols[right] = pair, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
                if (longer := pair + symbols[after[left]]) in costs:
                    heappush(queue, (costs[longer], left, longer))
            if before[left] >= 0 and (longer := symbols[before[left]] + pair) in costs:
                heappush(queue, (costs[longer], before[left], longer))
        return [symbol for symbol in symbols if symbol]
