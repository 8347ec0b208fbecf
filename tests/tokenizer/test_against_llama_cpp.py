"""Token ids equal llama.cpp's, on real vocabularies and, for every kind of pre-tokenizer, on a trained one.

Where the two part, the original tokenizer decides. Known places, each shown by a test below or left out of the text:
- llama.cpp takes any token named `</s>` for a control token; in Gemma 3 it is a user-defined tag.
- llama.cpp cuts special tokens longest first, SentencePiece and `tokenizers` leftmost first.
- its regex engine knows neither `\\p{Lu}` nor `\\p{M}` apart from letters, and hides white space beyond ASCII from the
  ranges of DeepSeek's expressions; DeepSeek splits numbers in digits, llama.cpp leaves that to the merges.
- a byte without a token (SmolLM2 has 21) gives nothing in both, but in `tokenizers` its neighbours then merge across
  the gap. Here they do not, as in llama.cpp; a folder with a tokenizer.json follows `tokenizers`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.parity.llama_cpp import LlamaCpp
from tests.tiny.tokenizers import bpe_metadata, spm_metadata, write_model_around
from tests.tokenizer.models import gemma3, smollm2
from tests.tokenizer.text import AWKWARD, characters, chunks, mixed_text, mixture, source_code
from turbospark.formats import open_checkpoint
from turbospark.tokenizer import Tokenizer
from turbospark.tokenizer.from_gguf import from_gguf
from turbospark.tokenizer.pretokenizers import PRE_TOKENIZERS
from turbospark.tokenizer.vocabulary import CONTROL, byte_alphabet


@pytest.fixture(scope="module", params=[smollm2, gemma3])
def model(request: pytest.FixtureRequest) -> tuple[Tokenizer, LlamaCpp]:
    path = request.param()
    return from_gguf(open_checkpoint(path).metadata), LlamaCpp(path)


def differences(ours: Tokenizer, theirs: LlamaCpp, parts: list[str], special: bool) -> list[str]:
    return [part for part in parts if ours.encode(part, special=special, bos=False) != theirs.tokenize(part, special)]


def test_a_megabyte_of_mixed_text(model: tuple[Tokenizer, LlamaCpp]) -> None:
    text = mixed_text()
    assert 1_000_000 < len(text.encode()) < 1_200_000
    assert differences(*model, chunks(text), special=False) == []


def test_texts_of_control_tokens_inside_a_text(model: tuple[Tokenizer, LlamaCpp]) -> None:
    ours = model[0]
    names = sorted(ours.vocabulary.of_kind(CONTROL))
    words = [*names[:20], *names[-20:], *AWKWARD, "<", "|", ">", "<|", "<start_of", "<|im_end|", "\n\n\n\n", "<table>"]
    text = mixture(5_000, words)
    assert differences(*model, chunks(text), special=True) == []
    assert differences(*model, chunks(text), special=False) == []
    control = ours.vocabulary.of_kind(CONTROL).values()
    assert set(control) & set(ours.encode(text))
    assert not set(control) & set(ours.encode(text, special=False, bos=False))


def test_every_character_alone_and_between_signs(model: tuple[Tokenizer, LlamaCpp]) -> None:
    chars = [char for char in map(chr, range(1, 0x3100)) if not unicodedata.category(char).startswith("Cs")]
    text = "".join(f"{char} .{char}. 1{char}" for char in chars)
    assert differences(*model, chunks(text, 600), special=False) == []


@pytest.mark.parametrize("model", [gemma3], indirect=True)
def test_gemmas_strike_through_tag_is_no_end_of_text(model: tuple[Tokenizer, LlamaCpp]) -> None:
    ours, theirs = model
    tag = ours.vocabulary.ids["</s>"]
    assert ours.encode("</s>", special=False, bos=False) == [tag]
    assert theirs.tokenize("</s>", False) != [tag]
    assert tag not in ours.end_ids


def trained_joins(text: str, count: int) -> list[tuple[bytes, bytes]]:
    """Merges learnt without any cutting, so that they cross whatever a pre-tokenizer would cut at."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=256 + count, initial_alphabet=byte_alphabet(), show_progress=False)
    backend.train_from_iterator(chunks(text, 60), trainer)
    byte_of = {char: byte for byte, char in enumerate(byte_alphabet())}
    merges = json.loads(backend.to_str())["model"]["merges"]
    return [(bytes(byte_of[c] for c in left), bytes(byte_of[c] for c in right)) for left, right in merges]


def ascii_cased(text: str, *more: str) -> str:
    """Without what llama.cpp's expressions do not tell apart: marks, and capitals and small letters beyond ASCII."""
    unclear = ("Lu", "Ll", "Lt", "Lm", "Mn", "Mc", "Me", *more)
    return "".join(char for char in text if char.isascii() or unicodedata.category(char) not in unclear)


# Script Han to Unicode, not to llama.cpp: radicals, repetition marks and numerals, the newest extensions.
HAN_UNKNOWN = re.compile(
    "[\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\U00016fe2-\U00016ff1\U00030000-\U000323af]"
)
RESTRICTED = {
    "tekken": ascii_cased,
    "gpt-4o": ascii_cased,
    "kimi-k2": lambda text: HAN_UNKNOWN.sub("", ascii_cased(text.lower())),
    "deepseek-llm": lambda text: "".join(c for c in text if not c.isnumeric() and (c.isascii() or not c.isspace())),
    "deepseek-coder": lambda text: "".join(c for c in text if c.isascii() or not c.isspace()),
}


@pytest.fixture(scope="module")
def sample() -> str:
    return mixture(20_000) + characters(15_000) + source_code(20_000)


@pytest.fixture(scope="module")
def joins(sample: str) -> list[tuple[bytes, bytes]]:
    return trained_joins(sample, 5_000)


KINDS = {pre.patterns: name for name, pre in reversed(PRE_TOKENIZERS.items())}  # one name of each list of patterns


@pytest.mark.parametrize("pre", KINDS.values())
def test_each_pre_tokenizer_cuts_as_llama_cpp_does(pre: str, sample: str, joins: Any, tmp_path: Path) -> None:
    metadata = bpe_metadata(joins, pre=pre)
    text = RESTRICTED.get(pre, str)(sample)
    assert len(text) > 35_000
    theirs = LlamaCpp(write_model_around(tmp_path / "model.gguf", metadata))
    assert differences(from_gguf(metadata), theirs, chunks(text, 1000), special=True) == []


def test_every_name_of_a_pre_tokenizer_is_known_to_llama_cpp(tmp_path: Path) -> None:
    for name in PRE_TOKENIZERS:
        metadata = bpe_metadata(pre=name, add_bos_token=None)
        theirs = LlamaCpp(write_model_around(tmp_path / "model.gguf", metadata))
        assert theirs.tokenize("hello", False) == from_gguf(metadata).encode("hello", bos=False), name


def test_a_missing_merge_or_another_pattern_is_seen(sample: str, joins: Any, tmp_path: Path) -> None:
    metadata = bpe_metadata(joins, pre="qwen2")
    theirs = LlamaCpp(write_model_around(tmp_path / "model.gguf", metadata))
    parts = chunks(sample, 1000)[:12]
    merges = metadata["tokenizer.ggml.merges"]
    assert differences(from_gguf(metadata), theirs, parts, special=True) == []
    assert differences(from_gguf(metadata | {"tokenizer.ggml.merges": merges[1:]}), theirs, parts, special=True)
    for other in ("llama3", "qwen35", "smollm", "gpt-2"):
        assert differences(from_gguf(metadata | {"tokenizer.ggml.pre": other}), theirs, parts, special=True), other


PIECES = ["\u2581", *"abcdef", "ab", "bc", "abc", "cd", "\u2581a", "\u2581ab", "de", "def", "cdef", "\u2581\u2581"]


SCORES = {
    "falling": [-float(i) for i in range(len(PIECES))],
    "equal": [-1.0] * len(PIECES),
    "shuffled": [-float(7 * i % 19) for i in range(len(PIECES))],
}
WORDS = [*"abcdefabcdef", " ", "  ", "\u2581", "\n", "<s>", "<think>", "<unk>", "x", "\u4f60", "\U0001f600", "<0x41>"]


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_by_score(scores: str, add_space_prefix: bool, tmp_path: Path) -> None:
    made = {
        name: spm_metadata(dict(zip(PIECES, values, strict=True)), add_space_prefix=add_space_prefix)
        for name, values in SCORES.items()
    }
    theirs = LlamaCpp(write_model_around(tmp_path / "model.gguf", made[scores]))
    parts = chunks(mixture(3_000, WORDS), 300)
    for special in (True, False):
        for name, metadata in made.items():
            assert bool(differences(from_gguf(metadata), theirs, parts, special)) == (name != scores)
