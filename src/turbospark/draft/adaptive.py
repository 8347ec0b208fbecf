"""How many tokens to propose: as many as pay, by the measured cost of each part and the acceptance seen lately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from turbospark.draft.base import Policy
from turbospark.draft.costs import Costs

HOPE = 0.7  # acceptance of a proposal before any was judged
WEIGHT = 6.0  # judgements that an expectation counts for
# what a judgement keeps of its weight when the next one comes: a request's, everyone's
MEMORY, LONG_MEMORY = 0.94, 0.99
MARGIN = 1.01  # proposals must promise this much over plain decoding
PLAIN = 2  # plain rounds that come first, to be measured
REFRESH = 128  # drafted rounds after which a plain one is measured again
# every so many drafted rounds, early and late, a block nearly as good as the best is tried
EXPLORE, EARLY, NEAR = (10, 30), 48, 0.9
PROBE, PATIENCE = 2, (4, 32)  # proposals of a probe; plain rounds before the first one and before a late one
# in plain steps: what may be lost before anything was gained, what gains may be staked again, what a plain round adds
CREDIT, MOST_CREDIT, EARNED = 2.0, 16.0, 0.02
STANDS, KNOWN = 4, 12  # rounds in a row that a choice stands for while each gains, once its size was measured so often
RESTS = 8  # plain rounds in a row at most before it is thought again
STALL = 2  # a round that took so many times as long as expected was held up, or compiled something
ROW, DRAFT = 0.05, 0.15  # first guesses: of one more row to verify, and of a draft, over a plain step


class Acceptance:
    """Of the proposals at each place that followed only right ones, how many were right; old judgements fade."""

    def __init__(self, longest: int, memory: float):
        self._hits, self._tries, self._memory = [0.0] * longest, [0.0] * longest, memory

    def learn(self, proposed: int, accepted: int) -> None:
        for i in range(min(proposed, accepted + 1)):
            self._hits[i] = self._memory * self._hits[i] + (i < accepted)
            self._tries[i] = self._memory * self._tries[i] + 1

    def rates(self, expected: Sequence[float]) -> list[float]:
        """Where `expected` is what to think of a place before it was judged."""
        parts = zip(self._hits, self._tries, expected, strict=True)
        return [(hits + WEIGHT * prior) / (tries + WEIGHT) for hits, tries, prior in parts]

    def expectations(self) -> list[float]:
        """Where a place that was never judged is like the one before it."""
        found, before = [], HOPE
        for hits, tries in zip(self._hits, self._tries, strict=True):
            before = (hits + WEIGHT * before) / (tries + WEIGHT)
            found.append(before)
        return found


@dataclass
class Slot:
    """A request's own acceptance; plain rounds since its last proposals, and how many it waits before a probe."""

    acceptance: Acceptance
    idle: int = 0
    patience: int = PATIENCE[0]


@dataclass
class Standing:
    """A choice that holds for more rounds of the same slots, and for plain ones what each took."""

    slots: list[int]
    others: int
    counts: list[int]
    left: int
    seconds: list[float] = field(default_factory=list)


class Adaptive(Policy):
    """Chooses by tokens per second: of all requests' proposals the likeliest n are made, for the best n.

    Everything is counted in plain steps against a credit: proposals that might lose more than there is are not made.
    So a workload that drafting cannot help loses at most CREDIT steps and EARNED of its time, however it behaves.
    """

    def __init__(self, longest: int, slots: int):
        self.longest = longest
        self.verify = Costs(ROW)
        self.drafts: dict[int, Costs] = {}  # by the number of requests that draft together
        self.everyone = Acceptance(longest, LONG_MEMORY)
        self.slots = [self._new() for _ in range(slots)]
        self.credit, self.rounds, self.drafted, self.since_plain = CREDIT, 0, 0, 0
        self.explore = 0  # drafted rounds before something else than the best is tried
        self._standing = Standing([], 0, [], 0)

    def admit(self, slot: int) -> None:
        self.slots[slot] = self._new()
        self._standing.left = 0

    def choose(self, slots: Sequence[int], most: Sequence[int], others: int = 0) -> list[int]:
        standing = self._standing
        if standing.left and standing.slots == slots and standing.others == others:
            standing.left -= 1
            return [min(pair) for pair in zip(standing.counts, most, strict=True)]
        rows = len(slots) + others
        for seconds in standing.seconds:
            self.verify.learn(len(standing.slots) + standing.others, seconds)
        counts, rounds = self._think(slots, most, rows)
        self._standing = Standing(list(slots), others, counts, min(rounds, RESTS) - 1)
        return counts

    def _think(self, slots: Sequence[int], most: Sequence[int], rows: int) -> tuple[list[int], int]:
        """The counts, and for how many rounds nothing will be known that could change them."""
        none = [0] * len(slots)
        known = self.verify.known(rows)
        if self.rounds < PLAIN or not known or self.since_plain >= min(REFRESH, 16 * known):
            return none, 1
        lacks = self._cost([1, *none[1:]], rows) - 1 - self.credit
        if lacks > 0:
            return none, ceil(lacks / EARNED)
        # a cost is not guessed at more than twice the size of what was measured
        reach = max(PROBE, (2 * self.verify.largest - rows) // len(slots))
        most = [min(m, self.longest, reach) for m in most]
        counts, stands = self._best(slots, most, rows)
        if not any(counts):
            counts, stands = self._probe(slots, most), 1
            if not any(counts):
                return none, max(1, min(self.slots[s].patience - self.slots[s].idle for s in slots))
        while any(counts) and self._cost(counts, rows) - 1 > self.credit:
            counts = [max(0, count - 1) for count in counts]
        return counts, stands

    def learn(
        self,
        slots: Sequence[int],
        asked: Sequence[int],
        proposed: Sequence[int],
        accepted: Sequence[int],
        draft_s: float,
        verify_s: float,
        others: int = 0,
    ) -> None:
        if not any(asked) and (self._standing.left or self._standing.seconds):
            self._rest(slots, verify_s)
            return
        rows = len(slots) + others
        plain_before = rows in self.verify
        drafting = sum(count > 0 for count in asked)
        if drafting:
            costs, count, plain = self._draft(drafting), sum(asked), self.verify(rows)
            costs.learn(count, draft_s, costs(count) or DRAFT * plain)
        total = rows + sum(proposed)
        self.verify.learn(total, verify_s, self.verify(total))
        self.rounds += 1
        self.drafted += any(proposed)
        self.since_plain = self.since_plain + 1 if any(proposed) else 0
        cost = 1.0
        if plain_before and any(asked):  # an account is made of what was taken, not of what was thought
            cost, taken = self._cost(asked, rows, sum(proposed)), (draft_s + verify_s) / self.verify(rows)
            cost = taken if taken < STALL * cost else cost
        gain = 1 + sum(accepted) / len(slots) - cost
        self.credit = min(MOST_CREDIT, self.credit + (gain if any(asked) else EARNED))
        if gain <= 0:
            self._standing.left = 0
        for slot, n, kept in zip(slots, proposed, accepted, strict=True):
            self._judge(self.slots[slot], n, kept, gain)

    def _rest(self, slots: Sequence[int], seconds: float) -> None:
        """One of several plain rounds: what they took is learnt together when they are over."""
        self._standing.seconds.append(seconds)
        self.rounds, self.since_plain = self.rounds + 1, 0
        self.credit = min(MOST_CREDIT, self.credit + EARNED)
        for slot in slots:
            self.slots[slot].idle += 1

    def _judge(self, slot: Slot, proposed: int, accepted: int, gain: float) -> None:
        if not proposed:
            slot.idle += 1
            return
        slot.acceptance.learn(proposed, accepted)
        self.everyone.learn(proposed, accepted)
        # what went well is tried again at once, what failed ever later, and sooner while there is credit to lose
        longest = PATIENCE[1] if self.credit < CREDIT / 2 else 2 * PATIENCE[0]
        slot.patience = 0 if gain > 0 else min(max(2 * slot.patience, PATIENCE[0]), longest)
        slot.idle = 0

    def _best(self, slots: Sequence[int], most: Sequence[int], rows: int) -> tuple[list[int], int]:
        """The counts with the most tokens per second, and how long they stand; none where plain decoding is as good."""
        expected, order = self.everyone.expectations(), []
        for i, (slot, limit) in enumerate(zip(slots, most, strict=True)):
            chance = 1.0
            for rate in self.slots[slot].acceptance.rates(expected)[:limit]:
                chance *= rate
                order.append((-chance, i))
        counts, tokens = [0] * len(slots), float(len(slots))
        options = []
        for chance, i in sorted(order):
            counts[i] += 1
            tokens -= chance
            options.append((tokens / self._cost(counts, rows), list(counts)))
        record, best = max(options, key=lambda option: option[0], default=(0.0, []))
        if record <= len(slots) * MARGIN:
            return [0] * len(slots), 1
        if self.drafted < self.explore:
            return best, STANDS if self.verify.known(rows + sum(best)) > KNOWN else 1
        self.explore = self.drafted + EXPLORE[self.drafted > EARLY]
        # of those that promise about as much, the one whose cost is known least
        near = [counts for rate, counts in options if rate >= NEAR * record]
        return min(near, key=lambda counts: self.verify.known(rows + sum(counts))), 1

    def _probe(self, slots: Sequence[int], most: Sequence[int]) -> list[int]:
        """A few proposals for the request that has waited longest for its chance."""
        counts = [0] * len(slots)
        waited = [self.slots[s].idle - self.slots[s].patience if m else -1 for s, m in zip(slots, most, strict=True)]
        due = max(range(len(slots)), key=waited.__getitem__)
        if waited[due] >= 0:
            counts[due] = min(PROBE, most[due])
        return counts

    def _cost(self, asked: Sequence[int], rows: int, proposed: int | None = None) -> float:
        """A round in plain steps."""
        plain, count = self.verify(rows), sum(asked)
        drafting = sum(n > 0 for n in asked)
        draft = self._draft(drafting)(count) or DRAFT * plain if drafting else 0.0
        return (self.verify(rows + (count if proposed is None else proposed)) + draft) / plain

    def _draft(self, drafting: int) -> Costs:
        if drafting not in self.drafts:
            self.drafts[drafting] = Costs(0.0)
        return self.drafts[drafting]

    def _new(self) -> Slot:
        return Slot(Acceptance(self.longest, MEMORY))
