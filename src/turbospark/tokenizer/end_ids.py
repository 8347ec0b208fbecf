"""Which tokens end a text: every declaration of the files, and control tokens with a name that says so."""

from __future__ import annotations

from collections.abc import Iterable

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.vocabulary import CONTROL, Vocabulary

# Names that chat models give the end of a turn or of a text. The list is llama.cpp's, but only tokens that the
# file itself types as control count (Gemma's `</s>` is a strike-through tag), and its names for filling in the
# middle are left out: files that mean those declare them.
MARKERS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
    "<eos>",
    "<turn|>",
    "[e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)


def end_sources(vocabulary: Vocabulary, declared: Iterable[tuple[str, int]]) -> dict[int, list[str]]:
    """Each end id -> where it comes from, in order of id.

    declared: (name of the declaration, id). Raises `bad_tokenizer` for an id outside the vocabulary.
    """
    sources: dict[int, list[str]] = {}
    for source, token_id in declared:
        if not 0 <= token_id < len(vocabulary):
            message = f"{source} is {token_id}, but the vocabulary has {len(vocabulary)} tokens"
            raise TurbosparkError("bad_tokenizer", message, "the tokenizer files do not belong together")
        sources.setdefault(token_id, []).append(source)
    found = {text: vocabulary.ids[text] for text in MARKERS if text in vocabulary.ids}
    named = {text: token_id for text, token_id in found.items() if vocabulary.kinds[token_id] == CONTROL}
    if named.keys() & {"<|return|>", "<|flush|>"} and named.keys() & {"<|call|>", "<|calls|>"}:
        named.pop("<|end|>", None)  # it ends a message there, and others follow in the same turn
    for text, token_id in named.items():
        sources.setdefault(token_id, []).append(f"named {text}")
    return dict(sorted(sources.items()))
