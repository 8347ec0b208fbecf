"""Whatever holds the experts, however few slots there are and in whatever order reads end: the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.experts.disks import AnyOrder, build, write_mixture
from turbospark.engine.loop import Engine
from turbospark.experts.mapped import Mapped
from turbospark.experts.reader import Reader
from turbospark.experts.resident import InMemory
from turbospark.experts.streamed import Streamed
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.reference import ReferenceKernels

BACKENDS = {"reference": ReferenceKernels, "cpu": CpuKernels}
IDS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 79, 32, 3]


@pytest.fixture(scope="module", params=["gguf", "hf"])
def path(request, tmp_path_factory):
    return write_mixture(tmp_path_factory.mktemp("experts"), request.param)


def logits(model, chunk: int) -> np.ndarray:
    return Engine(model, 1, chunk).logits(IDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_residencies_give_the_same_bits(path, backend):
    make = BACKENDS[backend]
    wanted = logits(build(path, make()), 5)
    for arguments in ((Mapped,), (InMemory, Reader()), (Streamed, 6, Reader())):
        np.testing.assert_array_equal(logits(build(path, make(), *arguments), 5), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ahead", [0, 3])
def test_any_number_of_slots_and_any_order_of_reads_give_the_same_bits(path, backend, ahead):
    """Three experts a row of eight in two layers: from fewer than one row needs to more than there are."""
    make = BACKENDS[backend]
    wanted = logits(build(path, make()), 5)
    for slots in (1, 2, 3, 4, 7, 16, 20):
        for chunk in (1, 5):
            model = build(path, make(), Streamed, slots, AnyOrder(slots), 4.0, ahead)
            np.testing.assert_array_equal(logits(model, chunk), wanted, f"{slots} slots, {chunk} rows")


def test_slots_end_where_the_room_does_and_the_bits_are_the_same(path):
    wanted = logits(build(path, CpuKernels()), 5)
    for least in (3, 6):
        left = [1 << 30] * 3 + [0] * 99
        model = build(path, CpuKernels(), Streamed, 16, Reader(), 64.0, 0, least, lambda left=left: left.pop(0))
        np.testing.assert_array_equal(logits(model, 5), wanted)
        assert len(model.residency.slots) == least + 3
        assert len(left) == 102 - 4  # nobody asks again behind the first no


def test_the_least_recently_used_may_leave_instead(path):
    wanted = logits(build(path, CpuKernels()), 2)
    model = build(path, CpuKernels(), Streamed, 4, AnyOrder(0), 0.0)
    np.testing.assert_array_equal(logits(model, 2), wanted)


def test_an_expert_read_from_one_page_away_is_seen(path):
    """That these comparisons notice: a read that is off by a page changes the logits."""
    wanted = logits(build(path, CpuKernels()), 5)
    reader = AnyOrder(0)
    model = build(path, CpuKernels(), Streamed, 4, reader)
    read = reader.disk.read
    reader.disk.read = lambda r: read(r._replace(offset=r.offset + 4096, needed=0))
    assert not np.array_equal(logits(model, 5), wanted)


def test_a_verified_block_reads_the_union_of_its_experts_once(path):
    model = build(path, CpuKernels(), Streamed, 16, AnyOrder(0))
    logits(model, len(IDS))
    traffic = model.residency.traffic
    first = traffic.copy()
    assert 3 * 2 < first.misses <= 8 * 2
    assert first.hits == 0
    logits(model, len(IDS))
    again = traffic.since(first)
    assert (again.misses, again.bytes_read) == (0, 0)
    assert again.hits == first.misses


def test_a_bounded_store_keeps_experts_between_steps_and_counts(path):
    model = build(path, CpuKernels(), Streamed, 16, Reader())
    logits(model, 1)
    traffic = model.residency.traffic
    assert traffic.tokens == len(IDS)
    assert traffic.hits + traffic.misses == 2 * 3 * len(IDS)
    assert traffic.misses <= 16
    assert traffic.bytes_read > 0
    assert 0 < traffic.hit_rate < 1
