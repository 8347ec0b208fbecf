"""Accepting a block draws what plain decoding draws, whatever was proposed."""

import numpy as np
import pytest

from tests.engine.law import follows, law_of
from turbospark.engine.accept import accept
from turbospark.engine.params import SamplingParams
from turbospark.engine.sampler import Sampler
from turbospark.errors import TurbosparkError

VOCAB = 8
PROMPT = [1, 6]
TABLE = (np.random.default_rng(5).standard_normal((VOCAB, VOCAB)) * 1.5).astype(np.float32)


def logits_after(history):
    """A target that looks two tokens back."""
    return TABLE[history[-1]] + 0.5 * TABLE[:, history[-2]]


def sampler(**asked):
    return Sampler(SamplingParams(**{"top_p": 1.0, **asked}).resolve({}, VOCAB), PROMPT, VOCAB)


def plain(count, **asked):
    one, history, drawn = sampler(**asked), list(PROMPT), []
    for _ in range(count):
        drawn.append(one.draw(logits_after(history), len(history)))
        history.append(drawn[-1].token)
        one.record(history[-1:])
    return drawn


def drafted(count, propose, **asked):
    """The same through blocks: the drawn tokens, and the size of every block."""
    one, history, drawn, sizes = sampler(**asked), list(PROMPT), [], []
    while len(drawn) < count:
        proposals = propose(len(drawn), count - len(drawn) - 1)
        rows = [logits_after(history + proposals[:i]) for i in range(len(proposals) + 1)]
        block = accept(np.stack(rows), proposals, one, len(history))
        one.record([d.token for d in block])
        history += [d.token for d in block]
        drawn += block
        sizes.append(len(block))
    return drawn, sizes


ASKED = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 4, "top_k": 4, "logprobs": 2},
    {
        "temperature": 1.2,
        "seed": 5,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.7,
        "logit_bias": {3: 1.0},
        "top_p": 0.9,
    },
]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("wrong_every", [1, 2, 3, 5, 99])
def test_any_proposals_give_plain_decoding(asked, wrong_every):
    expected = plain(20, **asked)
    known = [d.token for d in expected]

    def propose(start, room):
        block = known[start : start + min(room, 5)]
        return [(t + 1) % VOCAB if (start + i + 1) % wrong_every == 0 else t for i, t in enumerate(block)]

    drawn, sizes = drafted(20, propose, **asked)
    assert drawn == expected
    assert max(sizes) == min(wrong_every, 6)


def test_a_block_ends_with_the_first_difference_and_keeps_it():
    expected = [d.token for d in plain(4, temperature=1.0, seed=9)]
    proposals = [expected[0], (expected[1] + 1) % VOCAB, expected[2]]
    rows = np.stack([logits_after(PROMPT + proposals[:i]) for i in range(4)])
    block = accept(rows, proposals, sampler(temperature=1.0, seed=9), len(PROMPT))
    assert [d.token for d in block] == expected[:2]


def test_a_block_without_proposals_is_one_draw():
    block = accept(logits_after(PROMPT)[None], [], sampler(temperature=1.0, seed=9), 2)
    assert block == plain(1, temperature=1.0, seed=9)


def test_a_perfect_block_adds_the_bonus_token():
    expected = [d.token for d in plain(4, temperature=1.0, seed=9)]
    rows = np.stack([logits_after(PROMPT + expected[:i]) for i in range(4)])
    block = accept(rows, expected[:3], sampler(temperature=1.0, seed=9), len(PROMPT))
    assert [d.token for d in block] == expected


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_bad_row_fails_only_once_plain_decoding_would_reach_it(bad):
    expected = [d.token for d in plain(3, temperature=1.0, seed=9)]
    rows = np.stack([logits_after(PROMPT + expected[:i]) for i in range(3)])
    rows[bad, 4] = np.nan
    if bad == 0:
        with pytest.raises(TurbosparkError, match="position 2"):
            accept(rows, expected[:2], sampler(temperature=1.0, seed=9), len(PROMPT))
        return
    block = accept(rows, expected[:2], sampler(temperature=1.0, seed=9), len(PROMPT))
    assert [d.token for d in block] == expected[:bad]


def test_rows_and_proposals_must_match():
    with pytest.raises(TurbosparkError, match="2 proposals needs 3 rows, has 2"):
        accept(TABLE[:2], [1, 2], sampler(temperature=1.0, seed=9), 2)


def test_drafted_tokens_follow_the_exact_law_of_three_tokens():
    # Fault 30. The proposals lean to the likely tokens, so that acceptance would show in a wrong law.
    law = np.zeros((VOCAB,) * 3)
    for a, pa in enumerate(law_of(logits_after(PROMPT).tolist())):
        for b, pb in enumerate(law_of(logits_after([*PROMPT, a]).tolist())):
            law[a, b] = pa * pb * law_of(logits_after([*PROMPT, a, b]).tolist())
    likely = TABLE.argmax(axis=1)
    counts, sizes = np.zeros(law.shape, int), []
    for seed in range(8000):
        guess = int(likely[PROMPT[-1]]) if seed % 2 else seed // 2 % VOCAB
        drawn, blocks = drafted(
            3, lambda _, room, guess=guess: [guess, int(likely[guess])][:room], temperature=1.0, seed=seed
        )
        counts[tuple(d.token for d in drawn)] += 1
        sizes += blocks
    assert follows(counts, law)
    assert not follows(counts, np.swapaxes(law, 0, 1))
    assert {1, 2, 3} == set(sizes)
