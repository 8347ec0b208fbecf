"""Where weights go: what auto decides for the memory there is, and the sums that are refused."""

from __future__ import annotations

import pytest

from tests.tiny.memory import llama_config
from turbospark.errors import TurbosparkError
from turbospark.footprint import OPENING, step_bytes
from turbospark.memory import Memory
from turbospark.placement import Asked, Sizes, place

MB = 1_000_000
SIZES = Sizes(core=100 * MB, experts=6400 * MB, slot=100 * MB, count=64, used=4, drafter=20 * MB)
DENSE = Sizes(core=100 * MB)


def at(available: int, sizes: Sizes = SIZES, context: int = 64, **asked):
    memory = Memory(100_000 * MB, available, guard=0)
    return place(llama_config(), sizes, memory, Asked(guard="off", **asked), context, 1, 16)


def fixed(placement) -> int:
    return SIZES.core + SIZES.drafter + placement.footprint.cache + OPENING + step_bytes(llama_config(), 16)


def test_auto_keeps_all_experts_where_they_fit_and_streams_where_they_do_not():
    whole = at(100_000 * MB)
    needed = whole.footprint.total
    assert whole.residency == "resident"
    assert needed == fixed(whole) + SIZES.experts
    assert at(needed).residency == "resident"
    less = at(needed - 1)
    assert (less.residency, less.expert_slots) == ("streamed", 63)
    assert "63 of 64" in less.why


def test_streaming_takes_as_many_slots_as_fit_and_the_sum_stays_within():
    base = fixed(at(100_000 * MB))
    for slots in (4, 5, 17):
        found = at(base + slots * SIZES.slot + 7)
        assert found.expert_slots == slots
        assert found.ahead == (SIZES.used // 2 if slots >= 16 else 0)
        assert found.footprint.total == base + slots * SIZES.slot


def test_fewer_slots_than_a_row_needs_are_refused_with_the_parts_of_the_sum():
    base = fixed(at(100_000 * MB))
    with pytest.raises(TurbosparkError) as caught:
        at(base + 4 * SIZES.slot - 1)
    assert caught.value.code == "not_enough_memory"
    for part in ("100 MB core", "400 MB experts", "20.0 MB drafter", "cache", "40.0 MB to work"):
        assert part in caught.value.message


def test_a_stated_memory_is_the_whole_sum():
    found = at(100_000 * MB, memory=2000 * MB)
    assert found.residency == "streamed"
    assert 2000 * MB - SIZES.slot < found.footprint.total <= 2000 * MB
    with pytest.raises(TurbosparkError, match="resident experts need"):
        at(100_000 * MB, memory=2000 * MB, residency="resident")
    with pytest.raises(TurbosparkError, match="this process may have"):
        at(100_000 * MB, memory=100_001 * MB)


def test_a_stated_memory_holds_what_the_process_has_already_and_leaves_less_than_a_slot_unused():
    memory, asked = Memory(100_000 * MB, 90_000 * MB), Asked(memory=2000 * MB)
    whole, less = (place(llama_config(), SIZES, memory, asked, 64, 1, 16, own) for own in (0, 250 * MB))
    assert whole.expert_slots - less.expert_slots in (2, 3)
    for found in (whole, less):
        assert 2000 * MB - SIZES.slot < found.footprint.total <= 2000 * MB
    assert less.footprint.working == whole.footprint.working + 250 * MB
    with pytest.raises(TurbosparkError, match="to work"):
        place(llama_config(), SIZES, memory, asked, 64, 1, 16, 1900 * MB)


def test_a_number_that_is_a_groups_limit_is_held_to_by_the_groups_count():
    group = Memory(2000 * MB, 1900 * MB)  # of the 250 MB that this process has, others pay for 150
    assert group.within(2000 * MB, 0, 250 * MB).available == 1900 * MB
    assert group.within(1999 * MB, 0, 250 * MB).available == 1749 * MB
    assert group.within(1999 * MB, 0, 50 * MB).available == 1900 * MB
    assert group.within(None, 7, 250 * MB) == Memory(2000 * MB, 1900 * MB, guard=7)


def test_a_stated_number_of_slots_is_taken_or_refused():
    assert at(100_000 * MB, expert_slots=9).expert_slots == 9
    with pytest.raises(TurbosparkError, match="30 expert slots of 100 MB need"):
        at(2000 * MB, expert_slots=30)


def test_mapped_experts_need_no_memory_of_their_own():
    assert at(2000 * MB, residency="mapped").footprint.experts == 0


def test_the_guard_is_left_to_the_machine():
    memory = Memory(40_000 * MB, 9000 * MB)
    free, relaxed = (place(llama_config(), SIZES, memory, Asked(guard=g), 64, 1, 16) for g in ("off", "relaxed"))
    assert (free.residency, relaxed.residency) == ("resident", "streamed")
    assert relaxed.footprint.total <= 9000 * MB - (4 << 30)


def test_a_dense_model_is_mapped_and_has_nothing_to_stream():
    assert at(1000 * MB, DENSE).residency == "mapped"
    assert at(1000 * MB, DENSE, residency="resident").residency == "resident"
    for asked in ({"residency": "streamed"}, {"expert_slots": 3}):
        with pytest.raises(TurbosparkError) as caught:
            at(1000 * MB, DENSE, **asked)
        assert caught.value.code == "no_experts"


@pytest.mark.parametrize(
    "asked",
    [
        *({"residency": "disk"}, {"guard": "none"}, {"expert_slots": 0}, {"memory": 1.5}, {"memory": True}),
        {"residency": "mapped", "expert_slots": 3},
    ],
)
def test_what_cannot_be_meant_is_refused(asked):
    with pytest.raises(TurbosparkError) as caught:
        Asked(**asked)
    assert caught.value.code == "invalid_parameter"
