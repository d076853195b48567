"""Dynamic programming along time on the full problem: which values are present, what has been rerun. Exact, unless
told to keep the most promising labels alone.

Unlike the relaxations this enforces memory at every moment, inside gaps too, and chooses the order of reruns inside a
gap. A label is a set of present values, the reruns so far and their price. A label is dropped when another one at the
same moment has all its values, costs no more *and has rerun no unit more often* (without the last condition the cap
makes the rule false), or when what must still come back would exceed the budget, or cannot come back.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.plan import Rerun
from peakmem.transform.recompute.problem import Unit

MOST_OPTIONAL = 12
"""Buffers that a row of several statements may let go half way; with more, all ways to do so are too many."""


WAYS = 16
"""In a beam, how many ways to drop values are tried at most, for one label at one moment."""


class TooWide(Exception):
    """More labels, or more time, than allowed."""


@dataclass(frozen=True, eq=False, slots=True)
class _Label:
    cost: int
    present: int
    runs: int  # cap - 1 bits for each group, as many low ones set as it has reruns: "no more often" is a subset
    parent: _Label | None
    rerun: Rerun | None
    missing: int  # MACs of what must rerun for the values that are still read to come back


@dataclass(frozen=True)
class FrontierAnswer:
    """Least MACs for the full problem.

    Attributes
    ----------
    reruns : list of Rerun or None
        None if the target is out of reach within the horizon's budget.
    cost : int
    width : int
        Most undecided values at one moment.
    labels : int
        Most labels at one moment.
    exact : bool
        Nothing was left out; otherwise the answer is only a plan, or says nothing.
    """

    reruns: list[Rerun] | None
    cost: int
    width: int
    labels: int
    exact: bool = True


def solve_frontier(
    horizon: Horizon, *, most_labels: int = 4000, deadline: float | None = None, beam: int | None = None
) -> FrontierAnswer:
    """Least MACs by labels along time; with a ``beam`` only so many labels go on to the next moment.

    Raises
    ------
    TooWide
        When some moment has more than ``most_labels`` labels, or the ``deadline`` passes.

    Notes
    -----
    Nothing is dropped, and reruns wait, where that is exact: where all that could be present fits with any rerun, a
    rerun can as well happen at the first such moment after a tight one.
    """
    return _Frontier(horizon, most_labels, deadline, beam).run()


class _Frontier:
    def __init__(
        self, horizon: Horizon, most_labels: int, deadline: float | None, beam: int | None = None
    ) -> None:
        self.h, self.problem = horizon, horizon.problem
        self.beam, self.exact = beam, True
        self.most, self.deadline = most_labels, deadline
        self.sizes = horizon.sizes
        groups = sorted({u.group for i, u in enumerate(self.problem.units) if horizon.usable[i]})
        self.shift = {g: i * (self.problem.cap - 1) for i, g in enumerate(groups)}
        self.tight_gaps = set(horizon.tight_gaps())
        self.tight_steps = set(horizon.tight_steps())
        self.width = self.widest = 0
        alive: dict[int, int] = {}
        for i, u in enumerate(self.problem.units):
            if horizon.usable[i]:
                alive[u.group] = max(alive.get(u.group, 0), horizon.last[i])
        self.alive = alive

    def run(self) -> FrontierAnswer:
        labels = [_Label(0, 0, 0, None, None, 0)]
        sure = _bits(b for b in self.h.counted if self.problem.born[b] < 0)
        here = 0  # buffers that the labels decide about
        for step, v in enumerate(self.problem.order):
            fixed, undecided = self.h.in_gap(step)
            now = _bits(undecided)
            self.width = max(self.width, len(undecided))
            # What was touched at, or surely resident during, the step before is there in every label.
            labels = self.prune([self.follow(x, (x.present & here | sure) & now) for x in labels], step)
            if step in self.tight_gaps or step - 1 in self.tight_steps or step - 1 in self.tight_gaps:
                labels = self.gap(labels, step, fixed, undecided)
            room_fixed, kept = self.h.at_step(step)
            keep = _bits(kept)
            touched = [b for b in self.problem.program.touched[v] if self.sizes[b]]
            needed = _bits(b for b in touched if self.problem.born[b] < step) & now
            then: list[_Label] = []
            for x in labels:
                if x.present & needed == needed:
                    then.extend(
                        self.follow(x, mask) for mask in self.maximal(x.present & keep, 0, self.h.target - room_fixed)
                    )
            labels = self.promising(self.prune(then, step + 1), step + 1, keep, touched)
            if not labels:
                return FrontierAnswer(None, 0, self.width, self.widest, self.exact)
            sure = _bits(touched) | _bits(
                b for b in self.h.counted if b not in touched and self.h.status(b, step, gap=False) > 0
            )
            here = keep
        best = min(labels, key=lambda x: x.cost)
        reruns: list[Rerun] = []
        at: _Label | None = best
        while at is not None:
            if at.rerun is not None:
                reruns.append(at.rerun)
            at = at.parent
        return FrontierAnswer(reruns[::-1], best.cost, self.width, self.widest, self.exact)

    @staticmethod
    def covers(present: int, runs: int, other: int, other_runs: int) -> bool:
        """Whether a label of no higher price makes the other one superfluous."""
        return present & other == other and not runs & ~other_runs

    @staticmethod
    def follow(x: _Label, present: int) -> _Label:
        return x if present == x.present else _Label(x.cost, present, x.runs, x, None, x.missing)

    def gap(self, labels: list[_Label], gap: int, fixed: int, undecided: list[int]) -> list[_Label]:
        """All reruns that this gap may hold, any number in any order."""
        units = self.h.units_in(gap)
        if not units:
            return labels
        now = _bits(undecided)
        ready = [
            (i, _bits(self.problem.units[i].delivers) & now, _bits(self.problem.units[i].sources) & now)
            for i in units
            if not any(self.h.status(b, gap, gap=True) == 0 for b in self.problem.units[i].sources)
        ]
        limit = self.problem.cap - 1
        done: list[_Label] = []
        count = 0
        queue = []
        for x in labels:
            queue.append((x.cost, count, x))
            count += 1
        heapq.heapify(queue)
        while queue:
            _, _, x = heapq.heappop(queue)
            if any(self.covers(y.present, y.runs, x.present, x.runs) for y in done):
                continue
            done.append(x)
            self.check(len(done))
            for i, delivers, sources in ready:
                unit = self.problem.units[i]
                if x.present & delivers == delivers or x.present & sources != sources:
                    continue
                shift = self.shift[unit.group]
                used = x.runs >> shift & ((1 << limit) - 1)
                if used.bit_count() >= limit or (self.h.budget is not None and x.cost + unit.cost > self.h.budget):
                    continue
                runs = x.runs | (used << 1 | 1) << shift
                for mask in self.after(unit, x.present & ~delivers, sources, delivers, self.h.target - fixed):
                    count += 1
                    y = _Label(x.cost + unit.cost, mask, runs, x, (gap, i), x.missing)
                    heapq.heappush(queue, (y.cost, count, y))
            if self.beam is not None and len(done) >= 2 * self.beam and queue:
                self.exact = False
                break
        return done

    def after(self, unit: Unit, present: int, sources: int, delivers: int, room: int) -> Iterator[int]:
        """What may be present after a rerun in ``room`` bytes: all maximal sets, and perhaps more.

        A row of several members may drop a source after its last reader in the row, and what it delivers after its
        last toucher. What it neither reads nor makes is dropped before it or not at all. So all ways to keep such
        buffers are tried, and for each the maximal sets of the others.
        """
        early_sources, early_made = unit.early
        optional = [b for b in (*early_sources, *early_made) if (sources | delivers) >> b & 1]
        if len(optional) > MOST_OPTIONAL:
            raise TooWide
        for choice in range(1 << len(optional)):
            dropped = _bits(b for k, b in enumerate(optional) if choice >> k & 1)
            if delivers and not delivers & ~dropped:
                continue
            most = max(
                x
                + sum(self.sizes[b] for b, last in zip(unit.sources, unit.read_until) if dropped >> b & 1 and last >= i)
                + sum(
                    self.sizes[b]
                    for b, last in zip(unit.delivers, unit.made_by)
                    if last < i and delivers >> b & 1 and not dropped >> b & 1
                )
                for i, x in enumerate(unit.inner)
            )
            for mask in self.maximal(present & ~dropped, sources & ~dropped, room - most):
                yield mask | delivers & ~dropped
                if not choice and mask == present:
                    return  # all of it fits

    def maximal(self, present: int, needed: int, room: int) -> Iterator[int]:
        """The maximal subsets of ``present`` that hold ``needed`` and fit into ``room`` bytes."""
        items = list(_members(present & ~needed))
        room -= sum(self.sizes[b] for b in _members(needed))
        excess = sum(self.sizes[b] for b in items) - room
        if room < 0:
            return
        if excess <= 0:
            yield present
            return
        items.sort(key=lambda b: (-self.sizes[b], b))
        suffix = [0] * (len(items) + 1)
        for i in range(len(items) - 1, -1, -1):
            suffix[i] = suffix[i + 1] + self.sizes[items[i]]
        # Drop sets, largest members first: minimal if the sum without its smallest member falls short.
        stack = [(0, 0, excess)]
        produced = 0
        while stack:
            i, dropped, left = stack.pop()
            if suffix[i] < left:
                continue
            b = items[i]
            stack.append((i + 1, dropped, left))
            if self.sizes[b] >= left:
                produced += 1
                self.check(produced)
                yield present & ~(dropped | 1 << b)
                if self.beam is not None and produced >= WAYS and stack:
                    self.exact = False
                    return
            else:
                stack.append((i + 1, dropped | 1 << b, left - self.sizes[b]))

    def prune(self, labels: list[_Label], gap: int) -> list[_Label]:
        """Drop dominated labels; reruns of groups that cannot rerun in ``gap`` or later do not count."""
        self.check(len(labels) // 8)
        limit = self.problem.cap - 1
        gone = 0
        for group, shift in self.shift.items():
            if self.alive[group] < gap:
                gone |= ((1 << limit) - 1) << shift
        kept: list[tuple[int, int]] = []
        result: list[_Label] = []
        for x in sorted(labels, key=lambda x: (x.cost, -x.present.bit_count())):
            runs = x.runs & ~gone
            if any(self.covers(p, r, x.present, runs) for p, r in kept):
                continue
            kept.append((x.present, runs))
            result.append(x)
            self.check(len(result))
        self.widest = max(self.widest, len(result))
        return result

    def promising(self, labels: list[_Label], gap: int, decided: int, touched: list[int]) -> list[_Label]:
        """Labels from which a plan may follow; in a beam, the best of them.

        A value that is absent and still read must be made again, from its unit's sources; those that are absent must
        be made again first. So no continuation costs less than all these units, each of them once.
        """
        if gap >= len(self.problem.order):
            return labels
        live = decided & self.live(gap) & ~_bits(touched)
        result = []
        for x in labels:
            missing = self.missing(live & ~x.present, x.present, decided, x.runs, gap)
            if missing is None or (self.h.budget is not None and x.cost + missing > self.h.budget):
                continue
            result.append(x if missing == x.missing else _Label(x.cost, x.present, x.runs, x, None, missing))
        if self.beam is not None and len(result) > self.beam:
            self.exact = False
            result.sort(key=lambda x: (x.cost + x.missing, -x.present.bit_count(), x.present, x.runs))
            del result[self.beam :]
        return result

    def live(self, gap: int) -> int:
        """Buffers that a base step from ``gap`` on touches."""
        return _bits(b for b in self.h.possible[gap] if self.problem.last_use[b] >= gap)

    def missing(self, absent: int, present: int, decided: int, runs: int, gap: int) -> int | None:
        """MACs of all that must rerun for ``absent`` values to come back; None if some cannot."""
        limit = self.problem.cap - 1
        units: set[int] = set()
        stack = list(_members(absent))
        cost = 0
        while stack:
            u = self.problem.unit_at(stack.pop(), gap)
            if u is None or not self.h.usable[u]:
                return None
            if u not in units:
                unit = self.problem.units[u]
                if runs >> self.shift[unit.group] + limit - 1 & 1:
                    return None
                units.add(u)
                cost += unit.cost
                stack.extend(b for b in unit.sources if decided >> b & 1 and not present >> b & 1)
        return cost

    def check(self, labels: int) -> None:
        if labels > self.most or (self.deadline is not None and time.monotonic() > self.deadline):
            raise TooWide


def _bits(members: Iterable[int]) -> int:
    result = 0
    for b in members:
        result |= 1 << b
    return result


def _members(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
