"""What one solve knows so far: the incumbent, the bound, the beams."""

from __future__ import annotations

import time
from collections.abc import Sequence

from peakmem.transform.recompute.beam import Beam
from peakmem.transform.recompute.plan import Plan, Rerun, allowed, make_plan, prune
from peakmem.transform.recompute.problem import Problem


class Search:
    """State of one solve, so that an interruption loses nothing."""

    def __init__(self, problem: Problem, target: int, deadline: float) -> None:
        self.problem, self.target, self.deadline = problem, target, deadline
        self.plan: Plan | None = None
        self.bound = 0
        self.width: int | None = None
        self.pruned: Plan | None = None
        self.tried = False
        self.beams: dict[int, Beam] = {}

    def beam(self, depth: int) -> Beam:
        if depth not in self.beams:
            self.beams[depth] = Beam(self.problem, self.target, depth=depth)
        return self.beams[depth]

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def offer(self, reruns: Sequence[Rerun]) -> bool:
        """Take a list of reruns as the incumbent if it reaches the target and is cheaper."""
        if not allowed(self.problem, reruns):
            return False
        plan = make_plan(self.problem, reruns)
        if plan.peak > self.target:
            return False
        if self.plan is None or (plan.extra_macs, len(plan.reruns)) < (self.plan.extra_macs, len(self.plan.reruns)):
            self.plan = plan
        return True

    def prune(self) -> None:
        """Leave out what the incumbent does not need; a settled one keeps its peak, which may lie below the target."""
        if self.plan is not None and self.plan is not self.pruned:
            least = self.plan.peak if self.settled else self.target
            self.plan = prune(self.plan, least, deadline=max(self.deadline, time.monotonic() + 0.5))

    def improve(self, reruns: Sequence[Rerun]) -> None:
        """Offer a list of reruns without what it does not need."""
        if self.offer(reruns):
            plan = make_plan(self.problem, reruns)
            least = plan.peak if plan.extra_macs <= self.bound else self.target
            deadline = time.monotonic() + max(0.1, 0.1 * self.left())
            pruned = prune(plan, least, deadline=deadline)
            self.offer(pruned.reruns)
            if self.plan is not None and self.plan.reruns == pruned.reruns and time.monotonic() < deadline:
                self.pruned = self.plan

    @property
    def price(self) -> tuple[int, int] | None:
        """MACs and reruns of the incumbent."""
        return None if self.plan is None else (self.plan.extra_macs, len(self.plan.reruns))

    @property
    def settled(self) -> bool:
        return self.plan is not None and self.plan.extra_macs <= self.bound
