"""How many tokens to propose: as many as pay, by the measured cost of each part and the acceptance seen lately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turbospark.draft.base import Policy
from turbospark.draft.costs import Costs

HOPE = 0.7  # acceptance of a proposal before any was judged
WEIGHT = 2.0  # judgements that an expectation counts for
MEMORY, LONG_MEMORY = (
    0.94,
    0.99,
)  # what a judgement keeps of its weight when the next one comes: a request's, everyone's
MARGIN = 1.01  # proposals must promise this much over plain decoding
PLAIN = 2  # plain rounds that come first, to be measured
REFRESH = 128  # drafted rounds after which a plain one is measured again
PROBE, PATIENCE = 2, (4, 32)  # proposals of a probe; plain rounds before the first one and before a late one
# in plain steps: what may be lost before anything was gained, what gains may be staked again, what a plain round adds
CREDIT, MOST_CREDIT, EARNED = 8.0, 16.0, 0.01
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
        self.credit, self.rounds, self.since_plain = CREDIT, 0, 0

    def admit(self, slot: int) -> None:
        self.slots[slot] = self._new()

    def choose(self, slots: Sequence[int], most: Sequence[int], others: int = 0) -> list[int]:
        rows = len(slots) + others
        none = [0] * len(slots)
        if self.rounds < PLAIN or rows not in self.verify or self.since_plain >= REFRESH:
            return none
        most = [min(m, self.longest) for m in most]
        counts = self._best(slots, most, rows)
        if not any(counts):
            counts = self._probe(slots, most)
        while any(counts) and self._cost(counts, rows) - 1 > self.credit:
            counts = [max(0, count - 1) for count in counts]
        return counts

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
        rows = len(slots) + others
        plain_before = rows in self.verify
        drafting = sum(count > 0 for count in asked)
        if drafting:
            self._draft(drafting).learn(sum(asked), draft_s)
        self.verify.learn(rows + sum(proposed), verify_s)
        self.rounds += 1
        self.since_plain = self.since_plain + 1 if any(proposed) else 0
        cost = self._cost(asked, rows, sum(proposed)) if plain_before else 1.0
        gain = 1 + sum(accepted) / len(slots) - cost
        self.credit = min(MOST_CREDIT, self.credit + (gain if any(asked) else EARNED))
        for slot, n, kept in zip(slots, proposed, accepted, strict=True):
            self._judge(self.slots[slot], n, kept, gain)

    def _judge(self, slot: Slot, proposed: int, accepted: int, gain: float) -> None:
        if not proposed:
            slot.idle += 1
            return
        slot.acceptance.learn(proposed, accepted)
        self.everyone.learn(proposed, accepted)
        # what went well is tried again at once, what failed ever later
        slot.patience = 0 if gain > 0 else min(max(2 * slot.patience, PATIENCE[0]), PATIENCE[1])
        slot.idle = 0

    def _best(self, slots: Sequence[int], most: Sequence[int], rows: int) -> list[int]:
        """The counts with the most tokens per second; none where plain decoding is as good."""
        expected, order = self.everyone.expectations(), []
        for i, (slot, limit) in enumerate(zip(slots, most, strict=True)):
            chance = 1.0
            for rate in self.slots[slot].acceptance.rates(expected)[:limit]:
                chance *= rate
                order.append((-chance, i))
        counts, best = [0] * len(slots), [0] * len(slots)
        tokens, record = float(len(slots)), len(slots) * MARGIN
        for chance, i in sorted(order):
            counts[i] += 1
            tokens -= chance
            rate = tokens / self._cost(counts, rows)
            if rate > record:
                record, best = rate, list(counts)
        return best

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
