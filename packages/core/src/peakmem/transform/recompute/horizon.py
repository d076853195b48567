"""What could be present when: what a plan need not decide about, before any model is written down."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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

    def status(self, b: int, step: int, *, gap: bool) -> int:
        """1: surely resident, 0: surely absent, -1: undecided; in gap ``step`` or at base step ``step`` (untouched).

        A buffer touched at the step itself is resident; the caller treats it.
        """
        problem = self.problem
        if problem.born[b] >= step:
            return 0
        needed = self.through[b] >= (step if gap else step + 1)
        if self.droppable[b]:
            return -1 if needed else 0
        if problem.last_use[b] >= (step if gap else step + 1):
            return 1
        return -1 if needed else 0

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
        fixed, undecided = self._divided((b for b in self.possible[step] if b not in touched), step, gap=False)
        return self.problem.charged[v] + sum(self.sizes[b] for b in touched) + fixed, undecided

    def in_gap(self, gap: int) -> tuple[int, list[int]]:
        """The same between two base steps, nothing running."""
        return self._divided(self.possible[gap], gap, gap=True)

    def _divided(self, buffers: Iterable[int], step: int, *, gap: bool) -> tuple[int, list[int]]:
        """Bytes of those surely resident, and those undecided."""
        fixed, undecided = 0, []
        for b in buffers:
            s = self.status(b, step, gap=gap)
            if s > 0:
                fixed += self.sizes[b]
            elif s < 0:
                undecided.append(b)
        return fixed, undecided

    def units_in(self, gap: int) -> list[int]:
        """Units that may rerun in a gap."""
        return [
            i for i, u in enumerate(self.problem.units)
            if self.usable[i] and u.ready < gap <= self.last[i]  # last is at most the deadline
        ]

    @cached_property
    def full(self) -> tuple[list[int], list[int]]:
        """Bytes if all that could be there is there: at each base step, and in each gap. O(statements + buffers)."""
        n = len(self.problem.order)
        step_change, gap_change = [0] * (n + 1), [0] * (n + 1)
        for b in self.counted:
            born, through, size = self.problem.born[b], self.through[b], self.sizes[b]
            end = max(self.problem.last_use[b], through - 1)
            step_change[max(born, 0)] += size
            step_change[min(end, n - 1) + 1] -= size
            gap_change[born + 1 if born < n else n] += size
            gap_change[min(through, n - 1) + 1] -= size
        at_step, in_gap = list(accumulate(step_change[:n])), list(accumulate(gap_change[:n]))
        return [x + self.problem.charged[v] for x, v in zip(at_step, self.problem.order)], in_gap

    def tight_steps(self) -> list[int]:
        """Base steps at which all that could be present exceeds the target; elsewhere nothing need be dropped."""
        return [step for step, size in enumerate(self.full[0]) if size > self.target]

    def tight_gaps(self) -> list[int]:
        """Gaps in which a rerun, with all that could be present, exceeds the target."""
        units = self.problem.units
        most = max((u.charge for u in units), default=0)
        found = []
        for gap, size in enumerate(self.full[1]):
            if size + most > self.target:
                room = self.target - size
                if any(
                    units[u].charge - sum(self.sizes[b] for b in units[u].delivers if self.through[b] >= gap) > room
                    for u in self.units_in(gap)
                ):
                    found.append(gap)
        return found

    def slots_needed(self, gap: int) -> int:
        """Most reruns that one gap can hold under the cap: with that many slots the model is the full problem."""
        return len(self.units_in(gap)) * (self.problem.cap - 1)
