"""What one solve knows so far: the incumbent and the bound."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from peakmem.system import clock
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.plan import Plan, Rerun, allowed, make_plan, prune
from peakmem.transform.recompute.reruns import RerunProblem


class Search:
    """State of one solve, so that an interruption loses nothing."""

    def __init__(self, problem: RerunProblem, target: int, deadline: float) -> None:
        self.problem, self.target, self.deadline = problem, target, deadline
        self.plan: Plan | None = None
        self.plan_by = ""
        self.bound = 0
        self.bound_by = "free"
        self.width: int | None = None
        self.pruned: Plan | None = None
        self.tried = False

    def left(self) -> float:
        return self.deadline - clock.now()

    def horizon(self, only: Collection[int] | None = None) -> Horizon:
        """What could be present when, for plans that cost no more than the incumbent, of these units."""
        return Horizon(self.problem, self.target, self.plan.extra_macs if self.plan else None, only)

    def learn(self, bound: int | None, method: str, width: int | None = None) -> bool:
        """Take a bound, None if nothing costs as little as the incumbent; whether that means that there is no plan."""
        self.width = width if width is not None else self.width
        if bound is None:
            self.bound_by = method
            if self.plan is None:
                return True
            bound = self.plan.extra_macs
        if bound > self.bound:
            self.bound, self.bound_by = bound, method
        return False

    def offer(self, reruns: Sequence[Rerun] | None, method: str) -> Plan | None:
        """The plan of what a method found (None: nothing), if it is allowed and reaches the target.

        It becomes the incumbent if it is cheaper.
        """
        if reruns is None or not allowed(self.problem, reruns):
            return None
        plan = make_plan(self.problem, reruns)
        if plan.peak > self.target:
            return None
        if self.plan is None or (plan.extra_macs, len(plan.reruns)) < (self.plan.extra_macs, len(self.plan.reruns)):
            self.plan, self.plan_by = plan, method
        return plan

    def prune(self) -> None:
        """Leave out what the incumbent does not need; a settled one keeps its peak, which may lie below the target."""
        if self.plan is not None and self.plan is not self.pruned:
            least = self.plan.peak if self.settled else self.target
            self.plan = prune(self.plan, least, deadline=max(self.deadline, clock.now() + 0.5))

    def improve(self, reruns: Sequence[Rerun] | None, method: str) -> None:
        """Offer what a method found without what it does not need."""
        plan = self.offer(reruns, method)
        if plan is not None:
            least = plan.peak if plan.extra_macs <= self.bound else self.target
            deadline = clock.now() + max(0.1, 0.1 * self.left())
            pruned = prune(plan, least, deadline=deadline)
            self.offer(pruned.reruns, method)
            if self.plan is not None and self.plan.reruns == pruned.reruns and not clock.late(deadline):
                self.pruned = self.plan

    @property
    def price(self) -> tuple[int, int] | None:
        """MACs and reruns of the incumbent."""
        return None if self.plan is None else (self.plan.extra_macs, len(self.plan.reruns))

    @property
    def settled(self) -> bool:
        return self.plan is not None and self.plan.extra_macs <= self.bound
