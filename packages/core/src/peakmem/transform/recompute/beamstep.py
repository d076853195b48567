"""One step of the beam: from one state of the machine over a gap and a base step to the next.

Sets of buffers and of units are bit sets, since states are made by the hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peakmem.transform.recompute.plan import Rerun

if TYPE_CHECKING:
    from peakmem.transform.recompute.beam import Beam

PRICED = 24
"""How many candidates a rule that weighs prices looks at, the largest first."""

Price = tuple[int, int]
"""MACs and reruns: among equal MACs fewer reruns are better."""


NEVER: Price = (1 << 50, 1)
"""What a value seems worth that nothing reads any more and that cannot come back, to a rule that weighs it."""


@dataclass(frozen=True, eq=False, slots=True)
class Label:
    """A state of the machine, and how it came about."""

    present: int
    size: int
    used: int  # cap - 1 bits a group, as many low ones set as it has reruns
    cost: int
    count: int
    promise: Price
    parent: Label | None
    reruns: tuple[Rerun, ...]


class Work:
    """One label on its way through one gap and one base step."""

    def __init__(self, beam: Beam, x: Label, step: int, rule: str) -> None:
        self.beam, self.t, self.rule = beam, step, rule
        self.present, self.size, self.used, self.cost, self.count = x.present, x.size, x.used, x.cost, x.count
        self.reruns: list[Rerun] = []
        self.tight = False  # something that is still read had to be dropped
        self.promise: Price = x.promise
        guide = beam.guide
        self.first = guide.dropped.get(step, 0) if guide is not None else 0

    def label(self, parent: Label) -> Label:
        return Label(
            self.present, self.size, self.used, self.cost, self.count, self.promise, parent, tuple(self.reruns)
        )

    def step(self) -> bool:
        """Make again what the base step reads, make room, and run it."""
        beam, t = self.beam, self.t
        old = beam.old[t]
        if beam.guide is not None:
            for b in beam.guide.wanted.get(t, ()):
                if not self.present >> b & 1:
                    self.attempt(b, old & self.present)
        for b in members_of(old & ~self.present):
            if not self.present >> b & 1 and not self.restore(b, old):
                return False
        fresh = beam.new[t] & ~self.present
        size = beam.weigh(fresh)
        most = beam.target - size - beam.problem.charged[beam.problem.order[t]]
        if self.size > most and not self.room(most, old):
            return False
        self.present |= fresh
        self.size += size
        return self.finish()

    def finish(self) -> bool:
        """Drop what is of no use any more, and price what must come back."""
        beam, t = self.beam, self.t + 1
        self.promise = (self.cost, self.count)
        if t >= beam.n:
            return True
        keep = beam.kept[t] | beam.pinned
        absent = beam.live[t] & ~self.present
        if absent:
            answer = beam.closure(absent, self.present, self.used, t, set())
            if answer is None:
                return False
            keep |= answer[0]
            self.promise = (self.cost + answer[1][0], self.count + answer[1][1])
        budget = beam.problem.max_extra_macs
        if budget is not None and self.promise[0] > budget:
            return False
        gone = self.present & ~keep
        if gone:
            self.present &= ~gone
            self.size -= beam.weigh(gone)
        return True

    def early(self) -> bool:
        """Make again, before it is asked for, what waits for a value that is kept for nothing else."""
        beam, t = self.beam, self.t
        absent = beam.live[t] & ~self.present & ~beam.old[t]
        done = False
        for b in sorted(members_of(absent), key=lambda b: (beam.next_use(b, t), b)):
            u = beam.unit(b, t)
            if u < 0 or self.present >> b & 1 or beam.sources[u] & ~self.present:
                continue
            if beam.sources[u] & ~beam.live[t]:
                done = self.attempt(b, beam.old[t] & self.present) or done
        return done

    def attempt(self, b: int, protect: int) -> bool:
        """Make ``b`` again, or change nothing."""
        before = (self.present, self.size, self.used, self.cost, self.count)
        reruns = len(self.reruns)
        if self.restore(b, protect):
            return True
        self.present, self.size, self.used, self.cost, self.count = before
        del self.reruns[reruns:]
        return False

    def restore(self, b: int, protect: int) -> bool:
        """Rerun what brings ``b`` back, after all it needs."""
        beam = self.beam
        u = beam.unit(b, self.t)
        if u < 0 or self.used & beam.full[u]:
            return False
        unit, sources, delivers = beam.problem.units[u], beam.sources[u], beam.delivers[u]
        for e in unit.sources:
            if not self.present >> e & 1 and not self.restore(e, protect | sources):
                return False
        if sources & ~self.present:
            return False
        again = delivers & self.present
        if again:  # a second copy lets the first one go before it
            self.present &= ~again
            self.size -= beam.weigh(again)
        if self.size + unit.charge > beam.target and not self.room(beam.target - unit.charge, protect | sources):
            return False
        self.present |= delivers
        self.size += beam.weigh(delivers)
        shift = beam.shift[u]
        self.used |= ((self.used >> shift & ((1 << beam.limit) - 1)) << 1 | 1) << shift
        self.cost += unit.cost
        self.count += 1
        self.reruns.append((self.t, u))
        return True

    def room(self, limit: int, protect: int) -> bool:
        """Drop values until at most ``limit`` bytes are present."""
        beam, t = self.beam, self.t
        units: set[int] = set()
        answer = beam.closure(beam.live[t] & ~self.present & ~protect, self.present, self.used, t, units)
        if answer is None:
            return False
        needed = beam.live[t] | answer[0]
        free = self.present & ~protect & ~beam.pinned
        dropped: list[tuple[Price, int, int]] = []

        def drop(b: int, price: Price) -> None:
            self.present &= ~(1 << b)
            self.size -= beam.sizes[b]
            dropped.append((price, beam.sizes[b], b))

        if not self.rule.endswith("+"):
            for b in sorted(members_of(free & ~needed), key=lambda b: (-beam.sizes[b], b)):
                if self.size <= limit:
                    break
                drop(b, (0, 0))
            free &= self.present & needed
        while self.size > limit:
            self.tight = True
            found = self.choose(free, needed, self.size - limit, units)
            if found is None:
                return False
            b, price = found
            drop(b, price)
            free &= ~(1 << b)
            if needed >> b & 1:
                more = beam.closure(1 << b, self.present, self.used, t, units)
                assert more is not None
                free |= more[0] & self.present & ~protect & ~beam.pinned
                needed |= more[0]
        for _, size, b in sorted(dropped, reverse=True):
            if self.size + size <= limit:
                self.present |= 1 << b
                self.size += size
        return True

    def choose(self, free: int, needed: int, excess: int, units: set[int]) -> tuple[int, Price] | None:
        """What to drop next, by the rule; None if nothing of it can come back."""
        beam, t = self.beam, self.t
        sizes = beam.sizes
        rule = self.rule.rstrip("+")

        def price(b: int) -> Price | None:
            if rule == "large" and not needed >> b & 1:
                return 0, 0
            more = beam.closure(1 << b, self.present & ~(1 << b), self.used, t, set(units))
            if not needed >> b & 1:
                return (0, 0) if rule == "far" else NEVER if more is None else more[1]
            return None if more is None else more[1]

        def distance(b: int) -> int:
            return beam.next_use(b, t) - t + 1 if beam.live[t] >> b & 1 else 1

        for some in (free & self.first, free):
            if rule in ("large", "far"):
                far = rule == "far"
                for b in sorted(members_of(some), key=lambda b: (-distance(b) if far else 0, -sizes[b], b)):
                    cost = price(b)
                    if cost is not None:
                        return b, cost
                continue
            best: tuple[tuple[float, int, int], int, Price] | None = None
            priced = 0
            for b in sorted(members_of(some), key=lambda b: (-sizes[b], b)):
                cost = price(b)
                if cost is not None:
                    macs, size = cost[0] + cost[1], sizes[b]
                    if rule == "ratio":
                        key = macs / min(size, excess)
                    elif rule == "fit":
                        key = macs if size >= excess else macs * 2.0**20
                    else:
                        key = macs / (size * distance(b))
                    if best is None or (key, -size, b) < best[0]:
                        best = (key, -size, b), b, cost
                    priced += 1
                    if priced == PRICED:
                        break
            if best is not None:
                return best[1:]
        return None


def mask_of(members: Iterable[int]) -> int:
    result = 0
    for b in members:
        result |= 1 << b
    return result


def members_of(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
