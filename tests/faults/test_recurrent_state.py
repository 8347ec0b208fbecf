"""Faults 8-11 and 13: a recurrent trunk's state after partial commits, splits, any length, and from a prefix.

The tiny hybrid has heads of unequal widths (keys 8, values 12), so that a transposed state cannot pass.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.parity.harness import check_prefix_hit, feed, new_session, some_ids
from tests.tiny.oracle import Oracle, params, plain, run
from tests.tiny.qwen3_5 import VOCAB, tiny_qwen
from turbospark.cache.recurrent import RecurrentCache
from turbospark.cache.session import Session
from turbospark.config.model import GatedDelta
from turbospark.engine.loop import Engine
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows

KEY, VALUE, HEADS = 8, 12, 6
KERNELS = ReferenceKernels()


@pytest.fixture(scope="module")
def model():
    return tiny_qwen()


def states(session: Session, slot: int = 0) -> list[np.ndarray]:
    """State and convolution window of every recurrent layer."""
    recurrent = [layer for layer in session.layers if isinstance(layer, RecurrentCache)]
    return [part[slot].copy() for layer in recurrent for part in (layer.state, layer.window)]


def after(model, ids, size=None) -> tuple[Session, np.ndarray]:
    """A fresh session over the ids, fed `size` at a time, and the logits on the way."""
    session, size = new_session(model), size or len(ids)
    return session, np.concatenate([feed(model, session, [(0, ids[i : i + size])]) for i in range(0, len(ids), size)])


def assert_same_state(ours: Session, theirs: Session, slot: int = 0) -> None:
    assert len(states(theirs)) == 4
    for one, other in zip(states(ours, slot), states(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("certain", [0, 1, 2])
def test_fault_8_a_partial_commit_is_a_fresh_run_over_what_was_kept(model, size, certain):
    prompt, block, rest = some_ids(11, VOCAB), some_ids(size, VOCAB, 1), some_ids(3, VOCAB, 2)
    for kept in range(min(certain, size), size + 1):
        session, _ = after(model, prompt)
        rows = Rows.of([(0, len(prompt), block, min(certain, size))])
        session.begin(rows)
        model(rows, session.layers)
        session.commit(0, kept)
        fresh, _ = after(model, [*prompt, *block[:kept]])
        assert_same_state(session, fresh)
        np.testing.assert_array_equal(feed(model, session, [(0, rest)]), feed(model, fresh, [(0, rest)]))


def test_fault_8_blocks_after_blocks_leave_no_trace_of_what_was_rejected(model):
    random, session, kept_ids = np.random.default_rng(3), new_session(model), some_ids(5, VOCAB)
    feed(model, session, [(0, kept_ids)])
    for _ in range(20):
        block = random.integers(0, VOCAB, random.integers(1, 10)).tolist()
        kept = int(random.integers(1, len(block) + 1))
        feed(model, session, [(0, block)], certain=False)
        session.commit(0, kept)
        kept_ids += block[:kept]
    fresh, _ = after(model, kept_ids)
    assert_same_state(session, fresh)


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
@pytest.mark.parametrize("every", [1, 2, 3, 1000], ids=["all wrong", "half wrong", "a third wrong", "all right"])
def test_fault_8_a_drafter_changes_no_token_of_a_recurrent_trunk(moe, every):
    model, prompt = tiny_qwen(moe), some_ids(9, VOCAB, 7)
    expected = plain(model, prompt, max_new=30)
    drafter = Oracle(expected.context, wrong=lambda position: position % every == 0)
    engine = Engine(model, slots=1, drafter=drafter)
    request = run(engine, engine.submit(prompt, params(model, max_new=30)))
    assert request.output == expected.output
    assert request.stats.proposed > 0
    fresh, _ = after(model, engine.session.cursors[0].tokens)
    assert_same_state(engine.session, fresh)


def test_fault_9_a_prompt_in_pieces_of_any_size_is_the_whole_prompt(model):
    ids = some_ids(70, VOCAB)
    whole, logits = after(model, ids)
    for size in range(1, 70):
        pieces, theirs = after(model, ids, size)
        np.testing.assert_array_equal(theirs, logits, err_msg=f"pieces of {size}")
        assert_same_state(pieces, whole)


def inputs(length: int, decay: float) -> tuple[np.ndarray, ...]:
    """q, k, v, g and beta of one sequence; `decay` is the mean of -g."""
    random = np.random.default_rng(length)
    normal = lambda *shape: random.standard_normal((length, HEADS, *shape)).astype(np.float32)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    g = -random.exponential(decay, (length, HEADS)).astype(np.float32)
    return unit(normal(KEY)) * np.float32(KEY**-0.5), unit(normal(KEY)), normal(VALUE), g, 1 / (1 + np.exp(-normal()))


def written_out(q, k, v, g, beta) -> tuple[np.ndarray, np.ndarray]:
    """S_t = exp(g) (I - beta k k^T) S_(t-1) + beta k v^T and o = S^T q, as the paper has it, in float64."""
    q, k, v, g, beta = (part.astype(np.float64) for part in (q, k, v, g, beta))
    out, state = np.zeros(v.shape), np.zeros((HEADS, KEY, VALUE))
    for t in range(len(q)):
        forget = np.eye(KEY) - beta[t, :, None, None] * k[t, :, :, None] * k[t, :, None, :]
        state = np.exp(g[t])[:, None, None] * (forget @ state)
        state = state + beta[t, :, None, None] * k[t, :, :, None] * v[t, :, None, :]
        out[t] = np.einsum("hk,hkv->hv", q[t], state)
    return out, state


def empty_cache(block: int = 16) -> RecurrentCache:
    config = GatedDelta(2, HEADS, KEY, VALUE, 4, tiled=False, log_decay=True)
    return RecurrentCache(KERNELS, 1, config, block)


@pytest.mark.parametrize("decay", [1e-4, 0.05, 3.0, 40.0])
def test_fault_10_every_length_is_the_plain_recurrence(decay):
    """Decays from nearly none to so strong that exp(g) is nothing in float32."""
    for length in range(1, 131):
        rows, made, cache = Rows.of([(0, 0, [0] * length, length)]), inputs(length, decay), empty_cache()
        out = KERNELS.delta_rule(*made, cache, rows)
        expected, state = written_out(*made)
        np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
        np.testing.assert_allclose(cache.state[0], state, rtol=0, atol=2e-6 * np.abs(state).max())


def test_fault_11_prefill_steps_and_commits_keep_the_state_in_one_layout():
    made = inputs(30, 0.1)
    whole, steps, taped = empty_cache(), empty_cache(), empty_cache()
    run_rows = lambda cache, start, stop, certain: KERNELS.delta_rule(
        *(part[start:stop] for part in made), cache, Rows.of([(0, start, [0] * (stop - start), certain)])
    )
    out = run_rows(whole, 0, 30, 30)
    stepped = np.concatenate([run_rows(steps, i, i + 1, 1) for i in range(30)])
    parts = []
    for start in range(0, 30, 10):
        parts.append(run_rows(taped, start, start + 10, 1))
        KERNELS.commit_delta(taped, 0, 9)
    np.testing.assert_array_equal(stepped, out)
    np.testing.assert_array_equal(np.concatenate(parts), out)
    np.testing.assert_array_equal(steps.state, whole.state)
    np.testing.assert_array_equal(taped.state, whole.state)
    np.testing.assert_allclose(whole.state[0], written_out(*made)[1], atol=1e-5)


def test_fault_13_identical_longer_and_diverging_prompts_answer_as_a_fresh_engine_would(model):
    check_prefix_hit(model, some_ids(70, VOCAB))


@pytest.mark.parametrize("slot", [0, 1], ids=["in place", "into another slot"])
@pytest.mark.parametrize("further", [0, 1, 17], ids=lambda n: f"{n} rows on")
def test_fault_13_a_checkpoint_that_was_left_behind_is_returned_to(model, slot, further):
    prompt, rest = some_ids(20, VOCAB), some_ids(6, VOCAB, 5)
    session, _ = after(model, prompt)
    session.checkpoint(0)
    if further:
        feed(model, session, [(0, some_ids(further, VOCAB, 6))])
    feed(model, session, [(0, some_ids(4, VOCAB, 8))], certain=False)  # a block of which only one row stays
    session.commit(0, 1)
    found = session.find([*prompt, *rest])
    assert found.length == len(prompt)
    session.adopt(slot, found)
    fresh, _ = after(model, prompt)
    assert_same_state(session, fresh, slot)
    np.testing.assert_array_equal(feed(model, session, [(slot, rest)]), feed(model, fresh, [(0, rest)]))
    assert_same_state(session, fresh, slot)


def test_fault_13_a_shorter_prompt_than_any_checkpoint_starts_anew(model):
    prompt = some_ids(20, VOCAB)
    session, _ = after(model, prompt)
    session.checkpoint(0)
    assert session.find(prompt[:15]) is None
    engine = Engine(model, slots=1)
    run(engine, engine.submit(prompt, params(model, max_new=4)))
    short = run(engine, engine.submit(prompt[:15], params(model, max_new=4)))
    assert (short.output, short.stats.reused_tokens) == (plain(model, prompt[:15], max_new=4).output, 0)
