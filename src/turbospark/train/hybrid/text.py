"""Texts to train on: documents from files, a tokenizer of their own, tokens, and beginnings for a drafter's data."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.pretokenizers import pre_tokenizer

END, MASK = "<|endoftext|>", "<|mask|>"
PRE = "qwen2"  # how words are cut, by the name a GGUF file knows it by
HELD_OUT = 50  # one document in so many is never trained on
LARGEST = 300_000  # bytes of a document; larger ones are tables as a rule
BEGINNINGS, JUDGED = 8192, 12


class Document(NamedTuple):
    kind: str
    text: str

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.text.encode()) % HELD_OUT == 0


def documents(sources: Sequence[str]) -> Iterator[Document]:
    """Each different text of the files of `KIND=PATTERN`; of kind "brown" without its parts of speech."""
    seen = set()
    for source in sources:
        kind, equals, pattern = source.partition("=")
        paths = sorted(path for path in glob(pattern, recursive=True) if Path(path).is_file())
        if not equals or not paths:
            raise TurbosparkError("no_texts", f"{source!r} names no files", "KIND=PATTERN, such as code=lib/**/*.py")
        for path in paths:
            data = Path(path).read_bytes()
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                continue  # tests of other encodings
            text = untagged(text) if kind == "brown" else text
            if len(data) <= LARGEST and text.strip() and text not in seen:
                seen.add(text)
                yield Document("prose" if kind == "brown" else kind, text)


def untagged(text: str) -> str:
    """The Brown corpus's `word/tag` as plain sentences, a line each."""
    text = re.sub(r"(\S+)/[^\s/]+", r"\1", text)
    text = re.sub(r"[ \t]+", " ", text).replace("`` ", '"').replace(" ''", '"')
    return re.sub(r"\n\s*\n\s*", "\n", re.sub(r" ([,.;:?!])", r"\1", text)).strip() + "\n"


def train_tokenizer(found: Sequence[Document], vocab: int) -> Tokenizer:
    """Byte-level BPE; the first two ids are the end of a text and a mask."""
    tokenizer = Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre_tokenizer(PRE).patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in found), trainer)
    if tokenizer.get_vocab_size() != vocab:
        message = f"the texts give {tokenizer.get_vocab_size()} tokens, {vocab} are asked for"
        raise TurbosparkError("too_few_texts", message, "give more texts or a smaller --vocab")
    return tokenizer


def encoded(tokenizer: Tokenizer, found: Sequence[Document]) -> np.ndarray:
    """All texts, an end before each, uint16."""
    end = tokenizer.token_to_id(END)
    parts = tokenizer.encode_batch([d.text for d in found], add_special_tokens=False)
    return np.concatenate([np.array([end, *part.ids], np.uint16) for part in parts])


def beginning(r: random.Random, text: str, shortest: int = 100, longest: int = 400) -> str:
    """Some whole lines from within a text, as many as there are up to `longest` characters."""
    starts = [m.end() for m in re.finditer(r"\n(?=\S)", text[: max(len(text) - longest, 0)])] or [0]
    start, size = r.choice(starts), r.randint(shortest, longest)
    whole = text[start : start + size]
    return whole[: whole.rfind("\n") + 1] or whole


def prepare(sources: Sequence[str], out: Path, vocab: int, seed: int = 0) -> dict[str, int]:
    """Writes tokenizer.json, train.npy, held_out.npy, beginnings.jsonl and held_out.jsonl; returns their sizes."""
    out.mkdir(parents=True, exist_ok=True)
    r = random.Random(seed)
    found = list(documents(sources))
    r.shuffle(found)
    kept, judged = [d for d in found if not d.held_out], [d for d in found if d.held_out]
    tokenizer = train_tokenizer(kept, vocab)
    tokenizer.save(str(out / "tokenizer.json"))
    kinds = tuple(dict.fromkeys(d.kind for d in found))
    sizes = {f"documents of {kind}": sum(d.kind == kind for d in found) for kind in kinds}
    for name, part in (("train", kept), ("held_out", judged)):
        tokens = encoded(tokenizer, part)
        np.save(out / f"{name}.npy", tokens)
        sizes[f"{name} tokens"] = len(tokens)
    draw = lambda d: {"kind": d.kind, "text": beginning(r, d.text)}
    weights = [len(d.text) for d in kept]
    _write(out / "beginnings.jsonl", [draw(d) for d in r.choices(kept, weights, k=BEGINNINGS)])
    first = lambda kind: [d for d in judged if d.kind == kind][:JUDGED]
    _write(out / "held_out.jsonl", [draw(d) for kind in kinds for d in first(kind)])
    return sizes


def _write(path: Path, lines: Sequence[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
