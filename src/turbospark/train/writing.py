"""Conversations to train on and held-out answers to measure on, both written by the trunk."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from turbospark.train.accepted import Answer
from turbospark.train.data import Corpus, read
from turbospark.train.prompts import HELD_OUT, beginning
from turbospark.train.settings import Settings
from turbospark.train.trunk import Trunk
from turbospark.train.writer import Chat, Start, Writer, Written

Say = Callable[[str], None]
SHORT, KEY = 256, 1 << 24  # tokens of every other answer at most; where the keys of held-out noise begin


def starts(settings: Settings, tokenizer: Any, given: Sequence[str] = ()) -> list[Start]:
    """How each sequence begins; half of them answer greedily, half at temperature 0.8. `given` prompts come in turn."""
    r = random.Random(settings.seed)
    shares = {"code": settings.code, "arithmetic": settings.arithmetic, "prose": settings.prose}
    made = []
    for i in range(settings.sequences):
        words, whole = (given[i % len(given)], True) if given else beginning(r, shares, settings.made)
        ids = tokenizer.encode(words, special=False, bos=False) if words else []
        limit = SHORT if i % 4 < 2 else settings.length
        made.append(Start(ids[: settings.length // 2], whole, 0.8 * (i % 2), limit, settings.seed + i))
    return made


def write(trunk: Trunk, chat: Chat, begins: Sequence[Start], settings: Settings, say: Say) -> Written:
    """All sequences, `together` at a time."""
    parts: list[Written] = []
    began = time.monotonic()
    for first in range(0, len(begins), settings.together):
        part = begins[first : first + settings.together]
        parts.append(Writer(trunk, chat, part, settings.length).run())
        count, spent = sum(int(made.answer.sum()) for made in parts), time.monotonic() - began
        say(f"written {first + len(part)} of {len(begins)} sequences, {count} answer tokens, {spent:.1f} s")
    return Written(*(torch.cat(field) for field in zip(*parts, strict=True)))


def held_out(
    trunk: Trunk,
    chat: Chat,
    tokenizer: Any,
    taps: Sequence[int],
    length: int,
    per_kind: int | None = None,
    asked: Mapping[str, Sequence[str]] = HELD_OUT,
) -> tuple[Corpus, list[Answer]]:
    """The trunk's answers to held-out prompts by kind, of up to `length` tokens, greedy and at temperature 0.8."""
    begins: list[Start] = []
    kinds: list[str] = []
    for temperature in (0.0, 0.8):
        for kind, prompts in asked.items():
            for words in prompts[:per_kind]:
                ids = tokenizer.encode(words, special=False, bos=False)
                begins.append(Start(ids, True, temperature, length, KEY + len(begins)))
                kinds.append(kind)
    longest = max(len(chat.opening(s)) for s in begins)
    made = Writer(trunk, chat, begins, longest + length).run()
    answers = []
    for row, (start, kind) in enumerate(zip(begins, kinds, strict=True)):
        first = len(chat.opening(start))
        said = made.answer[row, first : first + length]
        if not chat.turns:
            ended = torch.isin(made.tokens[row, first : first + length], torch.tensor([*chat.ends]).to(said.device))
            said = said & (ended.long().cumsum(0) - ended.long() == 0)
        last = first + int(said.long().cumprod(0).sum())
        answers.append(Answer(row, kind, first, last, start.temperature, start.key))
    return read(trunk, made, taps), answers
