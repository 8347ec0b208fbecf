"""A sample of the proof that drafting changes no token; `make prove` runs the whole of it."""

from collections import Counter

import pytest

from tests.draft.matrix import FAMILIES, PAIRS, PROMPTS, Scripted, Trunk
from turbospark.engine.request import Stats

SAMPLE = [(1, 0.0, 3), (4, 0.7, 1), (15, 1.3, 3)]  # proposals, temperature, requests at once
TOKENS = 30


@pytest.fixture(scope="module")
def trunks(tmp_path_factory):
    return {family: Trunk(tmp_path_factory.mktemp(family), family, "reference") for family in FAMILIES}


@pytest.mark.parametrize("setting", SAMPLE, ids=["one", "four", "fifteen"])
@pytest.mark.parametrize(("family", "drafter"), PAIRS)
def test_tokens_are_those_of_plain_decoding(trunks, family, drafter, setting):
    proposals, temperature, requests = setting
    trunks[family].check(drafter, [(proposals, temperature)] * requests, TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_of_every_block_is_taken(trunks, family, monkeypatch):
    """A script that is right up to each place in turn: all j of all k occur, and no token changes."""
    trunk, taken = trunks[family], Counter()
    count = Stats.round

    def watched(self, proposed, accepted, *times):
        taken[proposed, accepted] += 1
        return count(self, proposed, accepted, *times)

    monkeypatch.setattr(Stats, "round", watched)
    expected = trunk.plain(0.7, 1, 180)
    for proposals in range(1, 16):
        drafter = InTurn([*PROMPTS[0], *expected[0]])
        assert trunk.answers(drafter, proposals, 0.7, 1, 180) == expected
    missing = {(k, j) for k in range(1, 16) for j in range(k + 1)} - set(taken)
    assert not missing


class InTurn(Scripted):
    """Wrong at the first place, at the second, and so on, then nowhere, then again from the first."""

    def __init__(self, future):
        super().__init__(future, count=15)
        self.turn = 0

    def propose(self, anchors, count, draw):
        self.wrong = lambda position: False
        (tokens,) = super().propose(anchors, count, draw)
        place = self.turn % (count[0] + 1)
        self.turn += 1
        return [[(t + 1) % 11 if i == place else t for i, t in enumerate(tokens)]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wrong", [lambda position: True, lambda position: position % 2 == 0])
def test_a_drafter_that_is_wrong_changes_nothing(trunks, family, wrong):
    trunk = trunks[family]
    expected = trunk.plain(1.3, 3, TOKENS)
    drafter = Scripted(*([*p, *e] for p, e in zip(PROMPTS, expected, strict=True)), count=15, wrong=wrong)
    assert trunk.answers(drafter, 5, 1.3, 3, TOKENS) == expected
