"""Shared measures of the parity tests: distances to an oracle, bit-equality of groupings, and sight of noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from turbospark.cache.session import Session
from turbospark.engine.loop import Engine
from turbospark.engine.params import SamplingParams
from turbospark.kernels.rows import Rows
from turbospark.models.base import Model
from turbospark.models.caches import MAX_BLOCK

CHUNK = 32
# every backend, as exact as it can be: what `turbospark.load` is given
BACKENDS = pytest.mark.parametrize(
    "backend", [{"backend": "reference"}, {"backend": "cpu", "exact": True}], ids=lambda given: given["backend"]
)


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest absolute difference of two sets of logits, in standard deviations of the second."""
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes differ: {ours.shape} and {theirs.shape}")
    return float(np.max(np.abs(ours - theirs)) / np.std(theirs))


def some_ids(count: int, vocab: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def feed(
    model: Model, session: Session, parts: Sequence[tuple[int, Sequence[int]]], certain: bool = True
) -> np.ndarray:
    """One forward over (slot, ids) parts at their slots' cursors; commits them when certain. Logits [R, vocab]."""
    rows = Rows.of((slot, session.length(slot), ids, len(ids) if certain else 1) for slot, ids in parts)
    session.begin(rows)
    logits = model.kernels.to_numpy(model.logits(model(rows, session.layers).hidden))
    if certain:
        for slot, ids in parts:
            session.commit(slot, len(ids))
    return logits


def new_session(model: Model, slots: int = 2, chunk: int = 160) -> Session:
    return Session(model.caches(slots, chunk), slots, model.max_context)


def in_pieces(model: Model, ids: Sequence[int], cuts: Sequence[int]) -> np.ndarray:
    """Logits of a prompt fed in pieces that end at `cuts` and at its end."""
    session = new_session(model)
    bounds = [0, *cuts, len(ids)]
    return np.concatenate([feed(model, session, [(0, ids[a:b])]) for a, b in pairwise(bounds)])


def check_groupings(model: Model, length: int = 70) -> None:
    """Bit-equality of a prompt's logits whatever the grouping of its rows."""
    ids = some_ids(length, model.config.vocab)
    whole = in_pieces(model, ids, [])
    single = in_pieces(model, ids, range(1, length))
    np.testing.assert_array_equal(single, whole, err_msg="token by token")
    for cut in range(1, length):
        np.testing.assert_array_equal(in_pieces(model, ids, [cut]), whole, err_msg=f"cut at {cut}")
    chooser = random.Random(1)
    for _ in range(50):
        cuts = sorted(chooser.sample(range(1, length), chooser.randint(2, 12)))
        np.testing.assert_array_equal(in_pieces(model, ids, cuts), whole, err_msg=f"cuts {cuts}")
    check_beside_another(model, ids, whole)
    check_prefix_hit(model, ids)
    check_verify_blocks(model, ids, whole)


def check_beside_another(model: Model, ids: Sequence[int], whole: np.ndarray) -> None:
    other = some_ids(45, model.config.vocab, seed=9)
    session = new_session(model)
    feed(model, session, [(0, other[:7])])
    first = feed(model, session, [(0, other[7:40]), (1, ids[:33])])[33:]
    second = feed(model, session, [(1, ids[33:]), (0, other[40:])])[: len(ids) - 33]
    np.testing.assert_array_equal(np.concatenate([first, second]), whole, err_msg="beside another prompt")


def check_prefix_hit(model: Model, ids: Sequence[int]) -> None:
    """The same prompt after others that share its beginning, through the engine: ids equal to a fresh engine's."""
    greedy = SamplingParams(max_new=6, temperature=0.0).resolve({}, model.config.vocab)

    def answer(engine: Engine, prompt: Sequence[int]) -> tuple[list[int], int]:
        request = engine.submit(list(prompt), greedy)
        while not request.done:
            engine.step()
        return request.output, request.stats.reused_tokens

    longer, diverging = (
        [*ids, *some_ids(9, model.config.vocab, 3)],
        [*ids[:-5], *some_ids(11, model.config.vocab, 4)],
    )
    warm = Engine(model, slots=1, chunk=CHUNK)
    for prompt in (ids, ids, longer, diverging, ids):
        fresh, _ = answer(Engine(model, slots=1, chunk=CHUNK), prompt)
        assert answer(warm, prompt)[0] == fresh
    again, reused = answer(warm, ids)
    assert reused == len(ids) - 1, "an identical prompt must be served from the prefix"
    assert again == fresh


def check_verify_blocks(model: Model, ids: Sequence[int], whole: np.ndarray) -> None:
    """Blocks of 1..16 uncertain rows, right and wrong ones, committed in part, then the rest of the prompt."""
    blocks = {(n, kept) for n in range(1, MAX_BLOCK + 1) for kept in (1, (n + 1) // 2, n)}
    for size, kept in sorted(blocks):
        session = new_session(model)
        got = [feed(model, session, [(0, ids[:20])])]
        block = [*ids[20 : 20 + kept], *[(i + 1) % model.config.vocab for i in ids[20 + kept : 20 + size]]]
        got.append(feed(model, session, [(0, block)], certain=False)[:kept])
        session.commit(0, kept)
        got.append(feed(model, session, [(0, ids[20 + kept :])]))
        np.testing.assert_array_equal(np.concatenate(got), whole, err_msg=f"verify block of {size}, kept {kept}")


def check_sees_noise(
    names: Sequence[str],
    logits_with_noise_on: Callable[[str], np.ndarray],
    theirs: np.ndarray,
    limit: float = 1e-3,
) -> None:
    """Noise of 3 % on any one tensor must show in the logits: else the parity test is blind to it."""
    blind = [name for name in names if difference(logits_with_noise_on(name), theirs) < limit]
    assert not blind, f"3 % of noise is not seen on {blind}"


def with_noise(values: np.ndarray, seed: int = 5) -> np.ndarray:
    """Each value changed by 3 % of itself, up or down."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], values.shape)
    return (values * (1 + 0.03 * signs)).astype(values.dtype)
