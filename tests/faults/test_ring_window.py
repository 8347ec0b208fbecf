"""Fault 12: a ring shows a sliding layer exactly the last W committed rows, after any appends and rejections."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.parity.harness import feed, some_ids
from tests.tiny.memory import VOCAB, tiny_llama
from turbospark.cache.kv import KVCache
from turbospark.cache.session import Session
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows

KERNELS = ReferenceKernels()
HEADS, KV_HEADS, WIDTH = 4, 2, 8


def written_out(q: np.ndarray, history: list[tuple[np.ndarray, np.ndarray]], window: int) -> np.ndarray:
    """Attention of one row over the last `window` of (k, v), itself among them, in float64."""
    k, v = (np.stack(part).astype(np.float64) for part in zip(*history[-window:], strict=True))
    group = np.arange(HEADS) // (HEADS // KV_HEADS)
    scores = np.einsum("hd,thd->ht", q, k[:, group])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("ht,thd->hd", weights / weights.sum(1, keepdims=True), v[:, group])


@pytest.mark.parametrize(("window", "slack"), [(1, 63), (5, 59), (16, 16), (40, 24), (64, 64), (100, 28)])
def test_attention_sees_the_last_rows_committed(window, slack):
    """Also appends longer than the window, and commits after the ring has gone round."""
    random, numbers = Random(window), np.random.default_rng(window)
    cache = KVCache(KERNELS, 2, 5000, KV_HEADS, WIDTH, WIDTH, window, slack)
    session = Session([cache], 2, 5000)
    history: list[tuple[np.ndarray, np.ndarray]] = []
    while len(history) < 5 * cache.capacity:
        count = random.choice([1, slack, random.randint(1, slack)])
        q = numbers.standard_normal((count, HEADS, WIDTH)).astype(np.float32)
        k, v = numbers.standard_normal((2, count, KV_HEADS, WIDTH)).astype(np.float32)
        kept = random.choice([count, random.randint(0, count)])
        rows = Rows.of([(1, len(history), [0] * count, 0)])
        session.begin(rows)
        cache.append(rows, k, v)
        out = KERNELS.attention(q, cache.k, cache.v, rows, scale=1.0, window=window, softcap=None)
        for i in range(count):
            seen = [*history[-window:], *zip(k[: i + 1], v[: i + 1], strict=True)]
            np.testing.assert_allclose(out[i], written_out(q[i], seen, window), atol=1e-5)
        session.commit(1, kept)
        history += zip(k[:kept], v[:kept], strict=True)


def test_a_ring_gives_the_logits_of_a_cache_that_keeps_everything():
    """The same tiny model with room for all positions, and with a ring that goes round five times."""
    model, ids = tiny_llama(context=640, window=20), some_ids(600, VOCAB)

    def logits(chunk: int) -> tuple[np.ndarray, int]:
        session = Session(model.caches(1, chunk), 1, model.max_context)
        parts = [feed(model, session, [(0, ids[i : i + chunk])]) for i in range(0, len(ids), chunk)]
        return np.concatenate(parts), session.layers[0].capacity

    (whole, everything), (pieces, ring) = logits(620), logits(40)
    assert (everything, ring) == (640, 64)
    np.testing.assert_array_equal(pieces, whole)


def test_a_rejected_block_takes_nothing_from_the_window():
    model, ids = tiny_llama(context=640, window=48), some_ids(200, VOCAB)
    with_blocks, plain = (Session(model.caches(1, 16), 1, model.max_context) for _ in range(2))
    assert with_blocks.layers[0].capacity == 64
    for start in range(0, len(ids), 8):
        wrong = [(i + 1) % VOCAB for i in some_ids(15, VOCAB, start)]
        feed(model, with_blocks, [(0, [ids[start], *wrong])], certain=False)
        with_blocks.commit(0, 1)
        step = feed(model, with_blocks, [(0, ids[start + 1 : start + 8])])
        np.testing.assert_array_equal(step, feed(model, plain, [(0, ids[start : start + 8])])[1:])
