"""The sampled law, the order of the cuts, penalties, log-probabilities, and purity."""

import tracemalloc

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

import turbospark.engine.sampler as module
from tests.engine.law import follows, law_of
from turbospark.engine.params import SamplingParams
from turbospark.engine.sampler import Drawn, Sampler, draw_from, largest, survivors
from turbospark.errors import TurbosparkError

LOGITS = np.array([1.0, -0.5, 2.0, 0.3, 2.0, -3.0, 1.4, 0.3], np.float32)
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def sampler(vocab_size=8, prompt=(), **asked):
    return Sampler(SamplingParams(**{"seed": 1, **NEUTRAL, **asked}).resolve({}, vocab_size), prompt, vocab_size)


def random_logits(seed, size, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_k": 5},
        {"top_p": 0.8},
        {"top_p": 0.5, "temperature": 0.9},
        {"min_p": 0.25},
        {"temperature": 1.3, "top_k": 6, "top_p": 0.9, "min_p": 0.2},
    ],
)
def test_drawn_tokens_follow_the_enumerated_law(asked):
    counts = np.zeros(8, int)
    for seed in range(1500):
        draw = sampler(seed=seed, **asked).draw
        for position in (7, 8):
            counts[draw(LOGITS, position).token] += 1
    law = law_of(LOGITS.tolist(), **asked)
    assert follows(counts, law)
    assert not follows(counts, np.roll(law, 1))
    assert not follows(counts, law_of(LOGITS.tolist(), **{**asked, "temperature": 2.5}))


def test_a_draw_is_a_pure_function_of_logits_seed_position_and_history():
    first, second = sampler(seed=3), sampler(seed=3)
    tokens = [first.draw(LOGITS, position).token for position in range(60)]
    assert [second.draw(LOGITS, position).token for position in reversed(range(60))] == tokens[::-1]
    assert [sampler(seed=4).draw(LOGITS, position).token for position in range(60)] != tokens


def test_tokens_given_as_extra_count_as_recorded_ones():
    asked = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "prompt": [3, 6]}
    tentative, final = sampler(**asked), sampler(**asked)
    final.record([2, 2])
    final.record([5])
    assert np.array_equal(tentative.shape(LOGITS, [2, 2, 5]), final.shape(LOGITS))
    assert not np.array_equal(tentative.shape(LOGITS), final.shape(LOGITS))
    tentative.record([2])
    assert np.array_equal(tentative.shape(LOGITS, [2, 5]), final.shape(LOGITS))


def test_repetition_looks_at_prompt_and_output_and_the_others_at_the_output():
    one = sampler(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.25, prompt=[0, 1])
    one.record([2, 5, 2])
    expected = LOGITS.astype(np.float64)
    expected[0] = 1.0 / 2
    expected[1] = -0.5 * 2
    expected[2] = 2.0 / 2 - 1.0 - 2 * 0.25
    expected[5] = -3.0 * 2 - 1.0 - 0.25
    assert np.array_equal(one.shape(LOGITS), expected)


def test_the_bias_comes_before_the_repetition_penalty():
    one = sampler(logit_bias={1: 2.5}, repetition_penalty=2.0, prompt=[1])
    assert one.shape(LOGITS)[1] == (-0.5 + 2.5) / 2


def test_without_bias_and_penalties_the_logits_are_not_copied():
    assert sampler().shape(LOGITS) is LOGITS


def test_cuts_and_repetition_agree_with_transformers():
    for seed, asked in enumerate(
        [
            {"top_k": 7},
            {"top_p": 0.7},
            {"min_p": 0.1},
            {"temperature": 0.5, "top_k": 20, "top_p": 0.9},
            {"temperature": 2.0, "top_p": 0.95, "min_p": 0.05},
            {"temperature": 1.5, "top_k": 40, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.4},
        ]
    ):
        logits, prompt = random_logits(seed, 100), [5, 9, 5, 42]
        p = SamplingParams(**{**NEUTRAL, **asked}).resolve({}, 100)
        warpers = [hf.RepetitionPenaltyLogitsProcessor(p.repetition_penalty)]
        warpers.append(hf.TemperatureLogitsWarper(p.temperature))
        warpers += [hf.TopKLogitsWarper(p.top_k)] if p.top_k else []
        warpers += [hf.TopPLogitsWarper(p.top_p), hf.MinPLogitsWarper(p.min_p)]
        scores = torch.from_numpy(logits)[None].double()
        for warper in warpers:
            scores = warper(torch.tensor([prompt]), scores)
        kept = np.flatnonzero(torch.isfinite(scores[0]).numpy())
        ids, values = survivors(Sampler(p, prompt, 100).shape(logits), p)
        assert ids.tolist() == kept.tolist()
        assert len(ids) < 100
        np.testing.assert_allclose(values / p.temperature, scores[0, kept].numpy(), rtol=1e-12)


def test_the_head_of_top_p_grows_until_it_holds_the_mass(monkeypatch):
    logits = random_logits(1, 3000, 0.5)
    p = SamplingParams(**{**NEUTRAL, "top_p": 0.97}).resolve({}, 3000)
    whole, _ = survivors(logits, p)
    assert 1024 < len(whole) < 3000
    assert np.array_equal(whole, np.flatnonzero(law_of(logits.tolist(), top_p=0.97)))
    monkeypatch.setattr(module, "_HEAD", 3)
    assert np.array_equal(survivors(logits, p)[0], whole)


def test_equal_logits_at_a_border_leave_the_lowest_ids():
    logits = np.array([1, 2, 1, 3, 1, 2, 1], np.float32)
    assert largest(logits, 2).tolist() == [1, 3]
    assert largest(logits, 4).tolist() == [0, 1, 3, 5]
    assert largest(logits, 5).tolist() == [0, 1, 2, 3, 5]
    flat = SamplingParams(**{**NEUTRAL, "top_p": 0.5}).resolve({}, 8)
    assert survivors(np.zeros(8, np.float32), flat)[0].tolist() == [0, 1, 2, 3]


def test_greedy_is_the_first_of_the_best_after_bias_and_penalties():
    assert sampler(temperature=0).draw(LOGITS, 3).token == 2
    assert sampler(temperature=0, logit_bias={2: -0.1}).draw(LOGITS, 3).token == 4
    assert sampler(temperature=0, repetition_penalty=1.1, prompt=[2]).draw(LOGITS, 3).token == 4
    assert sampler(temperature=0, logit_bias={1: 2.5, 0: 1.0}).draw(LOGITS, 3).token == 0


def test_only_survivors_are_given_noise(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "gumbel", lambda seed, position, ids: asked.append(ids.tolist()) or np.zeros(len(ids)))
    sampler(top_k=3).draw(LOGITS, 0)
    sampler(temperature=0).draw(LOGITS, 0)
    assert asked == [[2, 4, 6]]


def test_plain_greedy_allocates_nothing_of_the_vocabularys_size():
    one, logits = sampler(262_144, temperature=0), random_logits(0, 262_144)
    tracemalloc.start()
    token = one.draw(logits, 0).token
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert token == int(np.flatnonzero(logits == logits.max())[0])
    assert peak < 16_384


def test_a_subset_with_the_same_scores_draws_the_same_token():
    for seed in range(50):
        logits = random_logits(seed, 300)
        token = sampler(300, seed=seed, temperature=0.8, top_k=10).draw(logits, 4).token
        candidates = np.random.default_rng(seed).permutation(largest(logits, 10))
        assert draw_from(candidates, logits[candidates], 0.8, seed, 4) == token


def test_a_subset_in_any_order_breaks_greedy_ties_to_the_lowest_id():
    assert draw_from(np.array([9, 4, 7]), np.array([1.0, 1.0, 0.0]), 0.0, 0, 0) == 4


def test_logprobs_are_those_of_the_raw_logits():
    exact = LOGITS.astype(np.float64) - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    asked = {"temperature": 0.3, "logit_bias": {5: 9.0, 2: -1.0}, "repetition_penalty": 2.0, "prompt": [4]}
    drawn = sampler(logprobs=3, **asked).draw(LOGITS, 0)
    assert drawn.token == 5
    assert drawn.logprob == pytest.approx(exact[5], rel=1e-12)
    assert [token for token, _ in drawn.top] == [2, 4, 6]
    assert [value for _, value in drawn.top] == pytest.approx([exact[2], exact[4], exact[6]], rel=1e-12)


def test_logprobs_come_only_when_asked_for():
    assert sampler(temperature=0).draw(LOGITS, 0) == Drawn(2, None, ())
    only = sampler(temperature=0, logprobs=0).draw(LOGITS, 0)
    assert only.logprob < 0
    assert only.top == ()
    assert [token for token, _ in sampler(logprobs=8).draw(LOGITS, 0).top] == [2, 4, 6, 0, 3, 7, 1, 5]


def test_asking_for_logprobs_changes_no_token():
    for seed in range(100):
        assert sampler(seed=seed).draw(LOGITS, 2).token == sampler(seed=seed, logprobs=2).draw(LOGITS, 2).token


def test_rows_of_another_width_are_refused_with_both_numbers():
    with pytest.raises(TurbosparkError, match=r"needs \[8\], has \[9\]"):
        sampler().draw(np.zeros(9, np.float32), 0)


@pytest.mark.parametrize("token", [-1, 8])
def test_a_history_outside_the_vocabulary_is_refused(token):
    with pytest.raises(TurbosparkError, match=f"token id {token} .* 8 tokens"):
        sampler(repetition_penalty=1.1, prompt=[0, token])
    with pytest.raises(TurbosparkError, match=f"token id {token} .* 8 tokens"):
        sampler(presence_penalty=1.0).record([token])
