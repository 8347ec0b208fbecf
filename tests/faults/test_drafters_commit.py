"""Fault 8 over every family: after any part of a block the trunk's state is a fresh run's, and no weight was read."""

import numpy as np
import pytest

import turbospark
from tests.parity.harness import feed, new_session, some_ids
from tests.tiny.trunks import FAMILIES, VOCAB, write_trunk
from turbospark.cache.recurrent import RecurrentCache
from turbospark.kernels.api import Kernels
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.reference.matrix import Matrix
from turbospark.kernels.rows import Rows

PROMPT = some_ids(9, VOCAB, 3)
BLOCK = 16


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    path = write_trunk(tmp_path_factory.mktemp("trunk"), request.param, head=False)
    return turbospark.load(path, "reference", slots=1, max_context=64).engine.model


def committed(session, slot=0):
    """What each layer holds of the committed rows."""
    held, length = [], session.length(slot)
    for layer in session.layers:
        if isinstance(layer, RecurrentCache):
            held += [layer.state[slot].copy(), layer.window[slot].copy()]
        else:
            held += [layer.k[slot, :, :length].copy(), layer.v[slot, :, :length].copy()]
    return held


def test_the_state_after_j_of_k_proposals_is_that_of_a_fresh_run(model):
    ids = some_ids(BLOCK, VOCAB, 4)
    fresh = []
    for kept in range(1, BLOCK + 1):
        session = new_session(model, slots=1)
        feed(model, session, [(0, PROMPT)])
        for token in ids[:kept]:
            feed(model, session, [(0, [token])])
        fresh.append(committed(session))
    for size in range(1, BLOCK + 1):
        for kept in range(1, size + 1):
            session = new_session(model, slots=1)
            feed(model, session, [(0, PROMPT)])
            block = [*ids[:kept], *((i + 1) % VOCAB for i in ids[kept:size])]
            feed(model, session, [(0, block)], certain=False)
            session.commit(0, kept)
            for ours, theirs in zip(committed(session), fresh[kept - 1], strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=f"{kept} of {size} rows")


def test_a_commit_reads_no_weight(model, monkeypatch):
    """Counted at the kernels: one small update for each recurrent layer, nothing else."""
    session, called = new_session(model, slots=1), []

    def count(owner, name, word):
        operation = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda self, *a, **options: called.append(word) or operation(self, *a, **options)
        )

    for name in vars(ReferenceKernels):
        if name in vars(Kernels) and callable(getattr(Kernels, name)):
            count(ReferenceKernels, name, name)
    for name in ("values", "rows", "product"):
        count(Matrix, name, "weight")
    recurrent = sum(isinstance(layer, RecurrentCache) for layer in session.layers)
    feed(model, session, [(0, PROMPT)])
    assert "weight" in called
    for kept in range(1, 6):
        at = session.length(0)
        rows = Rows.of([(0, at, some_ids(6, VOCAB, kept), 1)])
        session.begin(rows)
        model(rows, session.layers)
        called.clear()
        session.commit(0, kept)
        assert called == ["commit_delta"] * (recurrent if kept > 1 else 0)
