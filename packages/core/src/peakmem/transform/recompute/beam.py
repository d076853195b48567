"""A heuristic that runs the base order and decides, where memory ends, what to drop: several futures at once.

Every label is a machine state: what is present, what has been rerun, at what price. Values are dropped only where memory
ends, and made again right before they are read, with all they need. What to drop is the question; each *rule* answers
it differently, and a beam keeps the labels that promise the least price. A label's promise is what it has spent plus
the price of everything that must be made again; no continuation is cheaper, so labels that cannot beat a known plan, or
that have dropped what cannot come back, are given up.

Memory is enforced at each moment, inside gaps too; rows of several statements are charged as if they kept all they
read and make, which is never too little. So every list of reruns returned reaches the target.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from peakmem.transform.recompute.beamstep import Label, Price, Work, mask_of, members_of
from peakmem.transform.recompute.plan import Rerun
from peakmem.transform.recompute.problem import Problem
from peakmem.transform.recompute.retention import Retention, Segment

RULES = ("ratio", "fit", "stale", "large", "far", "ratio+", "fit+", "stale+", "large+", "far+")
"""Ways to choose what to drop: least MACs a byte; the cheapest single value that suffices; MACs over bytes and time to
the next reading; the largest; what is read last. Values that no base step reads any more go first; with a plus they
stand in line with the others, since what can be made again from them is cheap to drop."""


class Late(Exception):
    """The deadline has passed."""


@dataclass(frozen=True)
class Guide:
    """What a solution of a relaxation does at its events; the beam follows it as far as memory lets it.

    Attributes
    ----------
    dropped : mapping of int to int
        Base step -> bit set of the buffers that are not present at it.
    wanted : mapping of int to tuple of int
        Base step -> buffers that have been made again by then and are kept.
    """

    dropped: Mapping[int, int]
    wanted: Mapping[int, tuple[int, ...]]


def guide_of(model: Retention, values: Sequence[int]) -> Guide:
    """What a solution of a relaxation keeps, and what it has made again, at each of its base steps."""
    dropped, wanted = {}, {}
    units = model.problem.units
    made: dict[int, None] = {}
    parts = [(p.low if isinstance(p, Segment) else p.gap, chosen) for p, chosen in model.reruns(values)]
    for step, now in model.present:
        while parts and parts[0][0] <= step:
            made.update(dict.fromkeys(b for u in parts.pop(0)[1] for b in units[u].delivers))
        dropped[step] = mask_of(b for b, x in now.items() if not values[x])
        wanted[step] = tuple(b for b in made if b in now and values[now[b]])
        made = {}
    return Guide(dropped, wanted)


class Beam:
    """Searches for plans of one problem and target.

    Parameters
    ----------
    problem : Problem
    target : int
        Bytes.
    depth : int
        A value that no base step reads any more is kept, while there is room, if it is at most so many reruns away
        from one that is still read.
    """

    def __init__(self, problem: Problem, target: int, *, depth: int = 1) -> None:
        self.problem, self.target = problem, target
        program, n = problem.program, len(problem.order)
        self.n = n
        self.sizes = [0 if b.kind == "constant" else b.size for b in program.buffers]
        self.pinned = mask_of(b for b, x in enumerate(program.buffers) if x.pinned)
        self.usable = [problem.max_extra_macs is None or u.cost <= problem.max_extra_macs for u in problem.units]
        of_use = self._of_use(depth)
        entry = mask_of(
            b for b, x in enumerate(program.buffers)
            if x.kind == "input" and x.size and (x.pinned or program.touchers[b])
        )
        self.entry = entry
        births, ends, kept_ends = [0] * (n + 1), [0] * (n + 2), [0] * (n + 2)
        for b, size in enumerate(self.sizes):
            if size and problem.born[b] < n and (program.touchers[b] or entry >> b & 1):
                births[problem.born[b] + 1] |= 1 << b
                ends[min(problem.last_use[b], n) + 1] |= 1 << b
                kept_ends[min(of_use[b], n) + 1] |= 1 << b
        self.live, self.kept = [0] * n, [0] * n  # born before a step and read at it or later; worth keeping for it
        now = kept = 0
        for t in range(n):
            now = (now | births[t]) & ~ends[t]
            kept = (kept | births[t]) & ~kept_ends[t]
            self.live[t], self.kept[t] = now, kept
        self.old, self.new = [0] * n, [0] * n
        for t, v in enumerate(problem.order):
            for b in program.touched[v]:
                if self.sizes[b]:
                    if problem.born[b] < t:
                        self.old[t] |= 1 << b
                    else:
                        self.new[t] |= 1 << b
        self.sources = [mask_of(u.sources) for u in problem.units]
        self.delivers = [mask_of(u.delivers) for u in problem.units]
        self.limit = problem.cap - 1
        groups = {g: i for i, g in enumerate(sorted({u.group for u in problem.units}))}
        self.shift = [groups[u.group] * self.limit for u in problem.units]
        self.full = [1 << (s + self.limit - 1) for s in self.shift]
        self.known: dict[tuple[int, int], int] = {}
        self.guide: Guide | None = None

    def _of_use(self, depth: int) -> list[int]:
        problem = self.problem
        of_use = list(problem.last_use)
        through, _ = problem.needed_through(self.usable)
        for b, x in enumerate(problem.program.buffers):
            if x.kind == "input" and x.size <= self.target // 64:  # cannot be made again, and takes little room
                of_use[b] = max(of_use[b], through[b])
        for _ in range(depth):
            before = list(of_use)
            for i, u in enumerate(problem.units):
                if self.usable[i]:
                    end = min(u.deadline, max(before[b] for b in u.delivers))
                    for b in u.sources:
                        of_use[b] = max(of_use[b], end)
        return of_use

    def weigh(self, mask: int) -> int:
        sizes = self.sizes
        return sum(sizes[b] for b in members_of(mask))

    def unit(self, b: int, gap: int) -> int:
        """The unit that brings ``b`` back in ``gap``; -1 if none does."""
        found = self.known.get((b, gap))
        if found is None:
            u = self.problem.unit_at(b, gap)
            found = self.known[b, gap] = -1 if u is None or not self.usable[u] else u
        return found

    def next_use(self, b: int, step: int) -> int:
        """The first base step from ``step`` on that touches ``b``; n if none does."""
        uses = self.problem.uses[b]
        i = bisect_left(uses, step)
        return uses[i] if i < len(uses) else self.n

    def closure(self, absent: int, present: int, used: int, step: int, units: set[int]) -> tuple[int, Price] | None:
        """What must rerun for ``absent`` values to come back, beyond ``units``, which is extended.

        Returns
        -------
        (present values that it reads, price), or None if something cannot come back.
        """
        wanted = cost = count = 0
        stack = [(b, self.next_use(b, step)) for b in members_of(absent)]
        while stack:
            b, gap = stack.pop()
            u = self.unit(b, gap)
            if u < 0 or used & self.full[u]:
                return None
            if u in units:
                continue
            units.add(u)
            cost += self.problem.units[u].cost
            count += 1
            wanted |= self.sources[u]
            stack.extend((e, gap) for e in members_of(self.sources[u] & ~present))
        return wanted & present, (cost, count)

    def search(
        self,
        width: int = 1,
        rules: Sequence[str] = RULES,
        *,
        below: Price | None = None,
        guide: Guide | None = None,
        deadline: float | None = None,
    ) -> list[Rerun] | None:
        """The cheapest plan in which a beam of ``width`` labels ends, if it costs less than ``below``.

        Raises
        ------
        Late
            When the ``deadline`` (a `time.monotonic` value) passes.
        """
        self.guide = guide
        labels = [Label(self.entry, self.weigh(self.entry), 0, 0, 0, (0, 0), None, ())]
        for step in range(self.n):
            if deadline is not None and time.monotonic() > deadline:
                raise Late
            found: dict[tuple[int, int], Label] = {}
            for x in labels:
                for y in self.children(x, step, rules):
                    if below is None or y.promise < below:
                        z = found.get((y.present, y.used))
                        if z is None or y.promise < z.promise:
                            found[y.present, y.used] = y
            if not found:
                return None
            labels = list(found.values())
            if len(labels) > 1:
                labels.sort(key=lambda y: (y.promise, -y.size, y.present, y.used))
                del labels[width:]
        at: Label | None = min(labels, key=lambda y: y.promise)
        parts = []
        while at is not None:
            parts.append(at.reruns)
            at = at.parent
        return [r for part in reversed(parts) for r in part]

    def children(self, x: Label, step: int, rules: Sequence[str]) -> Iterator[Label]:
        """What may come of a label in one step; several where something had to be dropped."""
        first = Work(self, x, step, rules[0])
        if first.step():
            yield first.label(x)
        if not first.tight:
            return
        for rule in rules[1:]:
            other = Work(self, x, step, rule)
            if other.step():
                yield other.label(x)
        if len(rules) > 1:
            other = Work(self, x, step, rules[0])
            if other.early() and other.step():
                yield other.label(x)
