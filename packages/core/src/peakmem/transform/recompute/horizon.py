"""What could be present when: what a plan need not decide about, before any model is written down."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import accumulate

from peakmem.transform.recompute.reruns import RerunProblem


class Horizon:
    """What could be present when, given the units that may rerun.

    Holds the fixings: a unit dearer than the budget never reruns, and nothing is kept past its last possible use. With
    ``only`` no other unit may rerun, so what follows holds for such plans alone.
    """

    def __init__(
        self, problem: RerunProblem, target: int, budget: int | None = None, only: Collection[int] | None = None
    ) -> None:
        self.problem, self.target = problem, target
        limits = [x for x in (problem.max_extra_macs, budget) if x is not None]
        self.budget = min(limits) if limits else None
        self.usable = [self.budget is None or u.cost <= self.budget for u in problem.units]
        if only is not None:
            self.usable = [x and i in only for i, x in enumerate(self.usable)]
        self.through, self.last = problem.needed_through(self.usable)
        for i, last in enumerate(self.last):
            self.usable[i] = self.usable[i] and last >= 0
        self.sizes = [b.size for b in problem.program.buffers]
        self.counted = [
            b for b, x in enumerate(problem.program.buffers)
            if x.kind != "constant" and x.size and (problem.program.touchers[b] or (x.pinned and x.kind == "input"))
        ]

    @cached_property
    def droppable(self) -> list[bool]:
        """For each buffer whether some unit may bring it back."""
        return [any(self.usable[u] for u in self.problem.units_of.get(b, ())) for b in range(len(self.sizes))]

    def status(self, b: int, step: int) -> int:
        """1: surely resident, 0: surely absent, -1: undecided, at base step ``step``; for a buffer that it does not touch."""
        problem = self.problem
        if problem.born[b] >= step:
            return 0
        if problem.last_use[b] > step and not self.droppable[b]:
            return 1
        return -1 if self.through[b] > step else 0

    @cached_property
    def possible(self) -> list[list[int]]:
        """For each gap the buffers that could be resident in it: born, and of use from there on."""
        n = len(self.problem.order)
        found: list[list[int]] = [[] for _ in range(n)]
        for b in self.counted:
            for gap in range(self.problem.born[b] + 1, min(self.through[b], n - 1) + 1):
                found[gap].append(b)
        return found

    def at_step(self, step: int) -> tuple[int, list[int]]:
        """Bytes surely resident at a base step (workspace and touched included), and the undecided buffers."""
        v = self.problem.order[step]
        touched = set(self.problem.program.touched[v])
        fixed, undecided = self.problem.charged[v] + sum(self.sizes[b] for b in touched), []
        for b in self.possible[step]:
            if b not in touched:
                status = self.status(b, step)
                fixed += self.sizes[b] if status > 0 else 0
                undecided += [b] if status < 0 else []
        return fixed, undecided

    def units_in(self, gap: int) -> list[int]:
        """Units that may rerun in a gap."""
        return [
            i for i, u in enumerate(self.problem.units)
            if self.usable[i] and u.ready < gap <= self.last[i]  # last is at most the deadline
        ]

    @cached_property
    def full(self) -> list[int]:
        """Bytes at each base step if all that could be there is there. O(statements + buffers)."""
        n = len(self.problem.order)
        change = [0] * (n + 1)
        for b in self.counted:
            end = max(self.problem.last_use[b], self.through[b] - 1)
            change[max(self.problem.born[b], 0)] += self.sizes[b]
            change[min(end, n - 1) + 1] -= self.sizes[b]
        return [x + self.problem.charged[v] for x, v in zip(accumulate(change), self.problem.order)]
