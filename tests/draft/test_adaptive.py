"""The controller by simulation: near plain decoding where drafting cannot pay, else near the best block."""

import numpy as np
import pytest

from tests.draft.simulate import LONGEST, Workload, best_fixed, seconds
from turbospark.draft.adaptive import Adaptive
from turbospark.draft.costs import Costs

SEEDS = range(6)


def flat(rate):
    rates = np.full(LONGEST, rate)
    return lambda t: rates


def falling(first, factor):
    rates = first * factor ** np.arange(LONGEST)
    return lambda t: rates


def switching(*regimes, every):
    tables = [np.full(LONGEST, rate) for rate in regimes]
    return lambda t: tables[t // every % len(tables)]


VERIFY = {
    "cpu": lambda m: 1 + 0.16 * (m - 1),
    "gpu": lambda m: 1 + 0.01 * (m - 1),
    "stairs": lambda m: 1 + 0.35 * ((m - 1) // 4),
    "steep": lambda m: 1 + 0.5 * (m - 1),
    "jump": lambda m: 1.0 if m == 1 else 1.5 + 0.02 * m,
}
DRAFT = {
    "block": lambda counts: 0.25,
    "dear": lambda counts: 0.6 + 0.02 * max(counts),
    "steps": lambda counts: 0.06 * max(counts),
    "free": lambda counts: 0.002,
}
HOPELESS = [
    ("cpu", "block", flat(0.0)),
    ("cpu", "block", flat(0.1)),
    ("gpu", "dear", flat(0.3)),
    ("steep", "steps", flat(0.3)),
    ("steep", "dear", falling(0.6, 0.9)),
    ("jump", "free", flat(0.2)),
    ("stairs", "dear", flat(0.15)),
    ("steep", "block", switching(0.5, 0.05, every=60)),
]
PAYING = [
    ("cpu", "block", flat(0.8)),
    ("cpu", "steps", flat(0.7)),
    ("gpu", "block", flat(0.5)),
    ("gpu", "dear", falling(0.9, 0.97)),
    ("stairs", "free", falling(0.85, 0.93)),
    ("stairs", "block", flat(0.7)),
    ("jump", "block", flat(0.9)),
    ("steep", "free", flat(0.9)),
]

ALL = [Workload(accept, VERIFY[verify], DRAFT[draft], 0.05) for verify, draft, accept in PAYING]


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(("verify", "draft", "accept"), HOPELESS)
def test_where_drafting_cannot_pay_it_stays_within_3_percent_of_plain(verify, draft, accept, noise):
    workload = Workload(accept, VERIFY[verify], DRAFT[draft], noise)
    for seed in SEEDS:
        plain = seconds(workload, 0, seed)
        assert seconds(workload, Adaptive(LONGEST, 1), seed) <= 1.03 * plain


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(("verify", "draft", "accept"), PAYING)
def test_where_drafting_pays_it_stays_within_5_percent_of_the_best_fixed_block(verify, draft, accept, noise):
    """The first answer, which finds out what everything costs, within 8."""
    workload = Workload(accept, VERIFY[verify], DRAFT[draft], noise)
    first = second = 0.0
    for seed in SEEDS:
        policy = Adaptive(LONGEST, 1)
        first += seconds(workload, policy, seed)
        second += seconds(workload, policy, seed + 100)
    assert first <= 1.08 * best_fixed(workload, SEEDS)
    assert second <= 1.05 * best_fixed(workload, [seed + 100 for seed in SEEDS])


@pytest.mark.parametrize(("verify", "draft", "accept"), HOPELESS)
def test_a_short_answer_loses_little_where_drafting_cannot_pay(verify, draft, accept):
    workload = Workload(accept, VERIFY[verify], DRAFT[draft], 0.05, first_call=1.2)
    for tokens in (60, 120):
        ours = sum(seconds(workload, Adaptive(LONGEST, 1), seed, tokens) for seed in SEEDS)
        assert ours <= len(SEEDS) * (1.02 * tokens + 2.5)


def test_a_shallow_drafter_over_steep_costs_gets_near_the_best_block():
    """As a small trunk's are on a processor: a row more costs a fifth of a step, a draft half of one."""
    verify = lambda m: float(np.interp(m, [1, 2, 3, 4, 6, 8, 16], [1, 1.12, 1.45, 1.51, 1.94, 2.5, 5.0]))
    draft = lambda counts: 0.36 + 0.04 * max(counts)
    for first, factor in ((0.87, 0.98), (0.76, 1.0)):
        workload = Workload(falling(first, factor), verify, draft, 0.08)
        ours = sum(seconds(workload, Adaptive(7, 1), seed) for seed in range(12))
        assert ours <= 1.05 * best_fixed(workload, range(12))


def test_what_a_first_call_seems_to_cost_does_not_lead_to_ever_larger_blocks():
    """Calls that cost far more than thought: each is told by a second one before a larger block is tried."""
    policy, asked = Adaptive(LONGEST, 1), []
    for _ in range(400):
        (count,) = policy.choose([0], [LONGEST])
        asked.append(count)
        policy.learn([0], [count], [count], [0], 0.6 * (count > 0), 1 + 0.5 * count)
    assert sum(1.6 + 0.5 * count - 1 for count in asked if count) <= 2.0 + 0.02 * 400 + 2.5


def test_over_all_paying_workloads_the_first_answer_is_within_5_percent_too():
    ours = [sum(seconds(workload, Adaptive(LONGEST, 1), seed) for seed in SEEDS) for workload in ALL]
    ratios = [t / best_fixed(workload, SEEDS) for t, workload in zip(ours, ALL, strict=True)]
    assert np.mean(ratios) <= 1.05


@pytest.mark.parametrize(
    ("verify", "draft", "accept"),
    [
        ("cpu", "block", switching(0.9, 0.1, every=300)),
        ("cpu", "block", switching(0.1, 0.9, every=300)),
        ("gpu", "dear", switching(0.9, 0.05, every=300)),
        ("cpu", "steps", switching(0.85, 0.15, every=150)),
    ],
)
def test_changes_of_regime_within_an_answer_are_followed(verify, draft, accept):
    workload = Workload(accept, VERIFY[verify], DRAFT[draft], 0.05)
    ours = sum(seconds(workload, Adaptive(LONGEST, 1), seed) for seed in SEEDS)
    assert ours <= 1.05 * best_fixed(workload, SEEDS)


@pytest.mark.parametrize(("verify", "draft", "accept"), [HOPELESS[1], PAYING[0], PAYING[5]])
def test_several_requests_at_once(verify, draft, accept):
    workload = Workload(accept, VERIFY[verify], DRAFT[draft], 0.05)
    ours = 0.0
    for seed in SEEDS:
        policy = Adaptive(LONGEST, 3)
        seconds(workload, policy, seed + 100, tokens=300, requests=3)
        ours += seconds(workload, policy, seed, tokens=300, requests=3)
    assert ours <= 1.05 * best_fixed(workload, SEEDS, tokens=300, requests=3)


def test_requests_of_their_own_kind_get_their_own_counts():
    good, bad = np.full(LONGEST, 0.9), np.full(LONGEST, 0.02)
    policy, random = Adaptive(LONGEST, 2), np.random.default_rng(0)
    asked = [[0, 0]]
    for _ in range(150):
        asked.append(policy.choose([0, 1], [LONGEST, LONGEST]))
        kept = [
            next((i for i in range(n) if random.random() > r[i]), n)
            for n, r in zip(asked[-1], (good, bad), strict=True)
        ]
        policy.learn([0, 1], asked[-1], asked[-1], kept, 0.2, VERIFY["cpu"](2 + sum(asked[-1])))
    late = np.mean(asked[-50:], 0)
    assert late[0] > 3
    assert late[1] < 0.5


def test_what_was_learnt_serves_the_next_request():
    workload = Workload(flat(0.0), VERIFY["steep"], DRAFT["dear"])
    policy, first, second = Adaptive(LONGEST, 1), {}, {}
    seconds(workload, policy, 0, tokens=300, used=first)
    seconds(workload, policy, 1, tokens=300, used=second)
    drafted = lambda used: sum(n for count, n in used.items() if count)
    assert drafted(second) <= drafted(first)


def test_slow_first_calls_do_not_spoil_the_choice():
    workload = Workload(flat(0.85), VERIFY["gpu"], DRAFT["block"], first_call=30.0)
    ours = sum(seconds(workload, Adaptive(LONGEST, 1), seed) for seed in SEEDS)
    assert ours <= 1.15 * best_fixed(workload, SEEDS)


def test_the_same_inputs_give_the_same_choices():
    workload = Workload(falling(0.8, 0.95), VERIFY["cpu"], DRAFT["steps"], 0.2)
    runs = [{}, {}]
    times = [seconds(workload, Adaptive(LONGEST, 1), 7, used=used) for used in runs]
    assert times[0] == times[1]
    assert runs[0] == runs[1]


def test_no_more_is_asked_for_than_there_is_room():
    policy = Adaptive(LONGEST, 1)
    for most in [15, 15, 15, 0, 1, 2, 5, 15] * 20:
        (count,) = policy.choose([0], [most])
        assert 0 <= count <= most
        policy.learn([0], [count], [count], [count], 0.1, 1.0)


def test_a_drafter_with_nothing_to_say_costs_no_credit():
    """Lookup proposes only where the text repeats itself: asking for more than it has is no loss."""
    policy = Adaptive(LONGEST, 1)
    for _ in range(300):
        (count,) = policy.choose([0], [LONGEST])
        policy.learn([0], [count], [0], [0], 0.0001, 1.0)
    assert policy.choose([0], [LONGEST]) != [0]


def test_costs_of_sizes_that_were_not_measured_lie_between_their_neighbours():
    costs = Costs(0.05)
    assert costs(3) == 0.0
    for size, value in ((1, 1.0), (9, 3.0)):
        costs.learn(size, value)
    assert costs(9) == pytest.approx(3.0)
    assert 1.0 < costs(5) <= 2.0
    assert costs(11) == pytest.approx(3.5)  # as steep as before


@pytest.mark.parametrize("rate", [0.0, 0.9])
def test_it_does_not_think_in_every_round(rate, monkeypatch):
    """Rests and choices that keep gaining stand; what was measured meanwhile is learnt all the same."""
    thoughts, think = [], Adaptive._think
    monkeypatch.setattr(Adaptive, "_think", lambda *args: thoughts.append(args) or think(*args))
    policy, used = Adaptive(LONGEST, 1), {}
    seconds(Workload(flat(rate), VERIFY["cpu"], DRAFT["block"]), policy, 0, used=used)
    rounds = sum(used.values())
    assert len(thoughts) < (0.3 if rate == 0 else 0.9) * rounds
    assert sum(policy.verify.known(size) for size in range(1, LONGEST + 2)) >= rounds - 8


def test_another_request_in_the_slot_ends_a_rest(monkeypatch):
    policy = Adaptive(LONGEST, 1)

    def thinks():
        (count,) = policy.choose([0], [LONGEST])
        policy.learn([0], [count], [count], [0], 0.5 * (count > 0), 1 + 0.2 * count)
        return len(thoughts)

    thoughts, think = [], Adaptive._think
    monkeypatch.setattr(Adaptive, "_think", lambda *args: thoughts.append(args) or think(*args))
    before = 0
    while thinks() > before:  # until a rest has begun
        before = len(thoughts)
    policy.admit(0)
    assert thinks() == before + 1


def test_a_stall_moves_a_known_cost_little_and_a_real_change_is_learnt():
    costs = Costs(0.0)
    for _ in range(10):
        costs.learn(1, 1.0)
        costs.learn(4, 2.0)
    costs.learn(1, 50.0)
    assert costs(1) < 1.15
    for _ in range(90):
        costs.learn(1, 3.0)
    assert costs(1) == pytest.approx(3.0, rel=0.05)
    assert costs(4) > 2.2  # what slows one size slows all
