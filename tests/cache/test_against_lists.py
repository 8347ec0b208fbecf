"""Every kind of cache against a Python list of ids, under random appends, commits, checkpoints and restores."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.cache.kinds import BLOCK, CONTEXT, DELTA, KERNELS, KINDS, SLACK, SLOTS, WINDOW, append, make, step, values
from turbospark.cache.base import LayerCache
from turbospark.cache.recurrent import RecurrentCache
from turbospark.cache.session import SNAPSHOTS, Session
from turbospark.kernels.rows import Rows


@cache
def recurrent_after(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """State and window after a text fed row by row, all of it certain, into a fresh cache."""
    fresh = RecurrentCache(KERNELS, 1, DELTA, BLOCK)
    if text:
        fresh.state[0], fresh.window[0] = recurrent_after(text[:-1])
        step(fresh, Rows.of([(0, len(text) - 1, list(text[-1:]), 1)]), [text])
    return fresh.state[0], fresh.window[0]


class Caches:
    """Two slots of a session over one or more layers; `texts` and `marks` are the model."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds
        self.layers = [make(kind) for kind in kinds]
        self.session = Session(self.layers, SLOTS, CONTEXT)
        self.texts = [b""] * SLOTS
        self.marks: list[list[int]] = [[] for _ in range(SLOTS)]  # lengths of the checkpoints a slot still has

    def forward(self, random: Random) -> None:
        """Rows for one or both slots, the last of them uncertain; then a commit of some."""
        parts, texts = [], []
        for slot in random.sample(range(SLOTS), random.randint(1, SLOTS)):
            ids = some_ids(random, SLACK)
            certain = random.randint(max(0, len(ids) - BLOCK), len(ids))
            parts.append((slot, len(self.texts[slot]), list(ids), certain))
            texts += [self.texts[slot] + ids[: i + 1] for i in range(len(ids))]
        rows = Rows.of(parts)
        self.session.begin(rows)
        for layer in self.layers:
            append(layer, rows, texts)
        for slot, _, ids, certain in parts:
            kept = random.randint(certain, len(ids))
            self.session.commit(slot, kept)
            self.texts[slot] += bytes(ids[:kept])

    def checkpoint(self, random: Random) -> None:
        slot = random.randrange(SLOTS)
        self.session.checkpoint(slot)
        self.marks[slot] = [*self.marks[slot], len(self.texts[slot])][-SNAPSHOTS:]

    def start(self, random: Random) -> None:
        """A new text that begins like a slot's: what can be had of it is found, and a slot is set to its end."""
        source = random.randrange(SLOTS)
        end = len(self.texts[source])
        short = random.randint(max(0, end - SLACK - 2), end)  # about as far as a ring can go back
        cut = random.choice([end, end, short, short, random.randint(0, end), *self.marks[source]])
        text = self.texts[source][:cut] + some_ids(random, 4)
        found = self.session.find(text)
        assert self.least(text) <= (found.length if found else 0) <= max(common(t, text[:-1]) for t in self.texts)
        if found is None:
            self.reset(random)
            return
        slot = random.choice([found.slot, random.randrange(SLOTS)])
        self.session.adopt(slot, found)
        self.texts[slot] = text[: found.length]
        self.marks[slot] = [length for length in self.marks[found.slot] if length <= found.length]

    def least(self, text: bytes) -> int:
        """The least that must be found: any length if rows tell all, else ends and checkpoints."""
        lengths = [0]
        for slot, have in enumerate(self.texts):
            shared = common(have, text[:-1])
            lengths += [length for length in (len(have), *self.marks[slot]) if length <= shared]
            if not {"ring", "recurrent"} & set(self.kinds):
                lengths.append(shared)
        return max(lengths)

    def reset(self, random: Random) -> None:
        slot = random.randrange(SLOTS)
        self.session.reset(slot)
        self.texts[slot], self.marks[slot] = b"", []

    def check(self) -> None:
        for slot, text in enumerate(self.texts):
            assert self.session.cursors[slot].tokens == list(text)
            for kind, layer in zip(self.kinds, self.layers, strict=True):
                check(kind, layer, slot, text)


def check(kind: str, layer: LayerCache, slot: int, text: bytes) -> None:
    if isinstance(layer, RecurrentCache):
        state, window = recurrent_after(text)
        np.testing.assert_array_equal(layer.state[slot], state)
        np.testing.assert_array_equal(layer.window[slot], window)
        return
    heads, capacity, width = layer.k.shape[1:]
    first = max(0, len(text) - WINDOW + 1) if kind == "ring" else 0  # what the next row sees
    seen = range(first, len(text))
    rows = [values(heads * width, text[: p + 1]).reshape(heads, width) for p in seen]
    k = np.stack([np.zeros((heads, width)), *rows], 1)[:, 1:]
    v = (k if kind == "latent" else -k)[..., : layer.v.shape[3]]
    at = np.array(seen, int) % capacity
    np.testing.assert_array_equal(layer.k[slot][:, at], k)
    np.testing.assert_array_equal(layer.v[slot][:, at], v)


def some_ids(random: Random, most: int) -> bytes:
    """Ids of three kinds, so that texts often begin alike."""
    return bytes(random.choices(range(3), k=random.randint(1, most)))


def common(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


ACTIONS = ("forward",) * 24 + ("checkpoint",) * 6 + ("start",) * 12 + ("reset",)
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1 << 32)), min_size=40, max_size=60)


@pytest.mark.parametrize(
    ("kinds", "examples"),
    [(("full",), 20), (("latent",), 15), (("ring",), 150), (("recurrent",), 12), (KINDS, 12)],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_cache_holds_what_a_list_would(kinds, examples):
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(steps=steps)
    def holds(steps):
        caches = Caches(kinds)
        for action, seed in steps:
            getattr(caches, action)(Random(seed))
            caches.check()

    holds()
