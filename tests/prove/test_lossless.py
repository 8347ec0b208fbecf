"""Tokens equal to plain decoding for every drafter, 1..15 proposals, three temperatures, three families, one request
and three at once, over 1,000 generated tokens. Not part of the suite: `make prove`.

Of three requests at once each has its own number of proposals and temperature, so that blocks of every size meet others
in one forward; over the fifteen runs each of the 45 settings comes once. Plain decoding is run once for all drafters.

TURBOSPARK_PROVE_TOKENS and TURBOSPARK_PROVE_BACKENDS (separated by commas) change how long and where.
"""

import os
from itertools import product

import pytest

from tests.draft.matrix import PAIRS, TEMPERATURES, Trunk

TOKENS = int(os.environ.get("TURBOSPARK_PROVE_TOKENS", "1000"))
BACKENDS = os.environ.get("TURBOSPARK_PROVE_BACKENDS", "reference,cpu").split(",")
MOST = 15  # proposals
TOGETHER = [[(1 + (r + 5 * i) % MOST, TEMPERATURES[(r + i) % 3]) for i in range(3)] for r in range(MOST)]
TRUNKS: dict[tuple[str, str], Trunk] = {}

pytestmark = pytest.mark.prove
everywhere = pytest.mark.parametrize(
    ("trunk", "drafter"),
    [((family, backend), drafter) for backend in BACKENDS for family, drafter in PAIRS],
    indirect=["trunk"],
    ids=[f"{backend}-{family}-{drafter}" for backend in BACKENDS for family, drafter in PAIRS],
)


@pytest.fixture
def trunk(request, tmp_path_factory):
    key = request.param
    if key not in TRUNKS:
        # two threads have nothing to share in so small a model
        TRUNKS[key] = Trunk(tmp_path_factory.mktemp(key[0]), *key, threads=1 if key[1] == "cpu" else None)
    return TRUNKS[key]


@everywhere
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("proposals", range(1, MOST + 1))
def test_one_request_gets_the_tokens_of_plain_decoding(trunk, drafter, proposals, temperature):
    trunk.check(drafter, [(proposals, temperature)], TOKENS)


@everywhere
@pytest.mark.parametrize("settings", TOGETHER, ids=lambda settings: "+".join(f"{n}@{t}" for n, t in settings))
def test_three_at_once_get_the_tokens_of_plain_decoding(trunk, drafter, settings):
    trunk.check(drafter, settings, TOKENS)


def test_every_setting_is_among_those_of_three_at_once():
    assert {setting for run in TOGETHER for setting in run} == set(product(range(1, MOST + 1), TEMPERATURES))
