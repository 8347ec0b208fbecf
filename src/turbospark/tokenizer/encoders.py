"""Encoders of the `tokenizers` library, built from a vocabulary and its merges or scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.pretokenizers import PreTokenizer
from turbospark.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

if TYPE_CHECKING:
    import tokenizers


def byte_level(vocabulary: Vocabulary, merges: Sequence[str], pre: PreTokenizer) -> tokenizers.Tokenizer:
    """Byte-level BPE. merges: "left right", the earliest first. Raises `bad_tokenizer` for merges without a token."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    pairs: dict[tuple[str, str], None] = {}  # the first of equal merges counts
    for merge in merges:
        left, _, right = merge[1:].partition(
            " "
        )  # a part is never empty, so the first character is no separator
        pairs[merge[:1] + left, right] = None
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    for left, right in pairs:
        if not (left in ids and right in ids and left + right in ids):
            message = f"the merge {left + ' ' + right!r} joins or makes a token that is not in the vocabulary"
            raise TurbosparkError("bad_tokenizer", f"{message} of {len(ids)} tokens")
    encoder = Tokenizer(models.BPE(ids, list(pairs), ignore_merges=pre.ignore_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    _add_special(encoder, vocabulary)
    return encoder


def _add_special(encoder: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Control tokens are found in a text on request, user-defined ones always."""
    from tokenizers import AddedToken

    kinds = list(vocabulary.kinds)
    control = [text for text, kind in zip(vocabulary.texts, kinds, strict=True) if kind in (CONTROL, UNKNOWN)]
    user = [text for text, kind in zip(vocabulary.texts, kinds, strict=True) if kind == USER_DEFINED]
    encoder.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in control])
    encoder.add_tokens([AddedToken(text, normalized=False, special=False) for text in user])


def sentencepiece(vocabulary: Vocabulary, scores: Sequence[float], adds_space: bool) -> tokenizers.Tokenizer:
    raise NotImplementedError
