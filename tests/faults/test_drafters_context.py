"""Faults 14, 25, 26, 30-33 with real drafters: what they read of the context, and that no answer depends on them."""

import numpy as np
import pytest

from tests.draft.matrix import SLOTS, Trunk
from tests.engine.law import follows
from tests.parity.harness import some_ids
from tests.tiny.dflash import WINDOW, dflash_config, write_dflash
from tests.tiny.oracle import params, plain, run
from tests.tiny.trunks import VOCAB
from turbospark.draft.load import load_drafter
from turbospark.engine.loop import Engine
from turbospark.kernels.rows import Rows

DRAFTED = [("llama", "dflash2"), ("llama", "dflash"), ("llama", "ngram"), ("hybrid", "mtp"), ("deepseek2", "mtp")]


@pytest.fixture(scope="module")
def trunks(tmp_path_factory):
    return {family: Trunk(tmp_path_factory.mktemp(family), family, "reference") for family, _ in DRAFTED}


@pytest.fixture
def pair(request, trunks):
    """A trunk and the maker of its drafter."""
    family, name = request.param
    return trunks[family], lambda: trunks[family].drafter(name, [])


each = pytest.mark.parametrize("pair", DRAFTED, indirect=True, ids=["-".join(p) for p in DRAFTED])


def said(trunk, drafter, prompts, count=5, slots=1, **fields):
    """The proposals of every round, and the requests."""
    engine, rounds, requests = Engine(trunk.model, slots, 32, drafter), [], []
    propose = drafter.propose
    drafter.propose = lambda *args: rounds.append(propose(*args)) or rounds[-1]
    for prompt in prompts:
        rounds.clear()
        fields = {"max_new": 12, "speculative": count, **fields}
        requests.append(run(engine, engine.submit(prompt, params(trunk.model, **fields))))
    return list(rounds), requests


@each
@pytest.mark.parametrize("tail", [0, 1, 7])
def test_fault_14_after_a_prefix_hit_it_drafts_as_after_the_whole_prompt(pair, tail):
    """The second prompt begins like the first; the reused rows are never shown to the drafter again."""
    trunk, make = pair
    first = some_ids(45, VOCAB, 1)
    second = [*first, *some_ids(tail, VOCAB, 2)]
    warm, requests = said(trunk, make(), [first, second])
    assert requests[1].stats.reused_tokens >= 32
    fresh, (alone,) = said(trunk, make(), [second])
    assert requests[1].output == alone.output
    # the last reused row may have been followed by another token before; later rounds stand on the same rows
    assert warm[-4:] == fresh[-4:]


@each
def test_fault_14_a_diverging_prompt_is_answered_as_if_alone(pair):
    trunk, make = pair
    first = some_ids(45, VOCAB, 1)
    second = [*first[:40], *some_ids(9, VOCAB, 5)]
    _, requests = said(trunk, make(), [first, second, first])
    for request, prompt in zip(requests, (first, second, first), strict=True):
        assert request.output == plain(trunk.model, prompt, max_new=12).output


@pytest.mark.parametrize("second", [True, False])
def test_fault_25_past_the_window_a_drafter_sees_the_window(trunks, tmp_path, second):
    """Rows older than the window change no proposal; the youngest row outside and the oldest inside are told apart."""
    trunk = trunks["llama"]
    kinds = ["sliding_attention"] * 2
    folder = write_dflash(
        tmp_path / "d", dflash_config(trunk.lm.config, second, layer_types=kinds, num_hidden_layers=2)
    )
    model = load_drafter(folder, trunk.model, trunk.lm.checkpoint, 1, 64)
    hidden = trunk.lm.config.hidden
    random = np.random.default_rng(0)

    def block(states, count=3):
        drafter = load_drafter(folder, trunk.model, trunk.lm.checkpoint, 1, 64)
        length = len(states[0])
        drafter.admit(0, [1] * length, None, 0)
        for start in range(0, length, 7):
            rows = Rows.of([(0, start, [1] * len(states[0][start : start + 7]), 1)])
            drafter.observe(rows, {t: s[start : start + 7] for t, s in zip(drafter.taps, states, strict=True)})
        scores = []
        drafter.propose(
            Rows.of([(0, length, [2], 1)]), [count], lambda s, p, ids, row: scores.append(row) or int(ids[0])
        )
        return np.concatenate([np.ravel(row) for row in scores])

    for length in range(15, 51, 5):
        states = [random.standard_normal((length, hidden)).astype(np.float32) for _ in model.taps]
        right = block(states)
        changed = lambda row, states=states: [np.where(np.arange(len(s))[:, None] == row, s + 1, s) for s in states]
        # the block's first row, the anchor at `length`, sees keys nearer than the window
        oldest = length - WINDOW + 1
        if oldest > 0:
            np.testing.assert_array_equal(block(changed(oldest - 1)), right)
        assert (block(changed(max(oldest, 0) + 2)) != right).any()


def test_fault_25_memory_is_bounded_by_window_chunk_and_block(trunks, tmp_path):
    trunk = trunks["llama"]
    folder = write_dflash(tmp_path / "d", dflash_config(trunk.lm.config))
    drafter = load_drafter(folder, trunk.model, trunk.lm.checkpoint, 1, 32)
    assert trunk.model.max_context > 1000
    assert all(cache.capacity <= 64 for cache in drafter.context.caches)  # 16 + 32 + 16 rows in whole blocks


@pytest.mark.parametrize("mask", [0, 4, VOCAB - 1])
def test_fault_26_a_mask_id_that_is_a_real_token_is_known_by_its_place(trunks, tmp_path, mask):
    """The mask's own token as anchor, in the prompt and among the answers."""
    trunk = trunks["llama"]
    folder = write_dflash(tmp_path / "d", dflash_config(trunk.lm.config, mask_token_id=mask))
    prompt, bias = [mask, 1, mask, mask], {mask: 4.0}
    drafter = load_drafter(folder, trunk.model, trunk.lm.checkpoint, 1, 32)
    _, (request,) = said(trunk, drafter, [prompt], max_new=30, logit_bias=bias)
    assert request.output == plain(trunk.model, prompt, max_new=30, logit_bias=bias).output
    assert mask in request.output


@each
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_fault_30_the_law_of_three_tokens_is_the_targets(pair, temperature):
    """Few seeds here, as each is a run; `tests/engine/test_accept.py` has many. Each seed's tokens are the same too."""
    trunk, make = pair
    drafter, counts = make(), np.zeros(VOCAB, int)
    engine = Engine(trunk.model, SLOTS, 32, drafter)
    alone = Engine(trunk.model, SLOTS, 32)
    for seed in range(60):
        fields = {"max_new": 3, "temperature": temperature, "seed": seed, "top_p": 1.0, "speculative": 2}
        drafted = run(engine, engine.submit([5, 5, 5], params(trunk.model, **fields))).output
        assert drafted == run(alone, alone.submit([5, 5, 5], params(trunk.model, **fields))).output
        counts[drafted[0]] += 1
    logits = trunk.lm.logits([5, 5, 5])[-1].astype(np.float64) / temperature
    law = np.exp(logits - logits.max())
    assert follows(counts, law / law.sum())


@each
def test_fault_31_the_same_seed_twice_beside_another_and_after_a_cancelled_one(pair):
    trunk, make = pair
    fields = {"max_new": 20, "temperature": 0.9, "seed": 11, "speculative": 4}
    engine = Engine(trunk.model, SLOTS, 32, make())
    submit = lambda prompt, **more: engine.submit(prompt, params(trunk.model, **{**fields, **more}))
    expected = plain(trunk.model, [3, 1, 4], **fields).output
    assert run(engine, submit([3, 1, 4])).output == expected
    other = submit(some_ids(30, VOCAB, 8), seed=5)
    assert run(engine, submit([3, 1, 4])).output == expected
    engine.cancel(other)
    assert run(engine, submit([3, 1, 4])).output == expected


@each
def test_faults_32_and_33_penalties_bias_and_logprobs_are_those_of_plain_decoding(pair):
    trunk, make = pair
    fields = {
        "max_new": 25,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "logit_bias": {2: 1.5},
        "logprobs": 2,
    }
    drafted = Engine(trunk.model, 1, 32, make())
    request = run(drafted, drafted.submit([1, 2, 3], params(trunk.model, speculative=6, **fields)))
    expected = plain(trunk.model, [1, 2, 3], **fields)
    assert request.drawn == expected.drawn
    assert len(request.drawn) == 25
