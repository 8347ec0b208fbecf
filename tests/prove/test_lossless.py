"""Tokens equal to plain decoding for every drafter, 1..15 proposals, three temperatures, three families, one request
and three at once, over 1,000 generated tokens. Not part of the suite: `make prove`.

TURBOSPARK_PROVE_TOKENS and TURBOSPARK_PROVE_BACKENDS (separated by commas) change how long and where.
"""

import os

import pytest

from tests.draft.matrix import PAIRS, TEMPERATURES, Trunk

TOKENS = int(os.environ.get("TURBOSPARK_PROVE_TOKENS", "1000"))
BACKENDS = os.environ.get("TURBOSPARK_PROVE_BACKENDS", "reference,cpu").split(",")
TRUNKS: dict[tuple[str, str], Trunk] = {}


@pytest.fixture
def trunk(request, tmp_path_factory):
    key = request.param
    if key not in TRUNKS:
        TRUNKS[key] = Trunk(tmp_path_factory.mktemp(key[0]), *key)
    return TRUNKS[key]


@pytest.mark.prove
@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    ("trunk", "drafter"),
    [((family, backend), drafter) for backend in BACKENDS for family, drafter in PAIRS],
    indirect=["trunk"],
    ids=[f"{backend}-{family}-{drafter}" for backend in BACKENDS for family, drafter in PAIRS],
)
def test_tokens_are_those_of_plain_decoding(trunk, drafter, temperature, requests):
    for proposals in range(1, 16):
        trunk.check(drafter, proposals, temperature, requests, TOKENS)
