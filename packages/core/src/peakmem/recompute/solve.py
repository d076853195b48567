"""The least price of a target, and the whole front.

Words: ``exact`` is said of one base order under one cap, never ``optimal``: another base order may be cheaper.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peakmem.recompute.floor import floor
from peakmem.recompute.frontier import TooWide, solve_frontier
from peakmem.recompute.greedy import greedy
from peakmem.recompute.milp import Answer, solve_milp
from peakmem.recompute.plan import Plan, Rerun, allowed, make_plan, trace
from peakmem.recompute.problem import Problem
from peakmem.recompute.retention import Horizon, Retention, Segment, build, place
from peakmem.recompute.treewidth import solve_treewidth

Status = Literal["exact", "infeasible", "gap"]
Method = Literal["auto", "frontier", "treewidth", "milp"]


@dataclass(frozen=True)
class Outcome:
    """The answer for one target.

    Attributes
    ----------
    target : int
        Bytes.
    status : {"exact", "infeasible", "gap"}
        ``exact``: no plan for this base order and cap costs less than ``plan``. ``infeasible``: there is none within
        the cap and the budget. ``gap``: not settled in time; ``plan`` is the best found, if any.
    plan : Plan or None
    lower_bound : int
        No plan for this base order costs less MACs.
    method : str
        What settled it: ``floor``, ``given`` (nothing needs to be rerun), ``relaxation``, ``full``, ``frontier``.
    width : int or None
        Width of the decomposition, where one was used.
    interrupted : bool
        Stopped by Ctrl-C.
    """

    target: int
    status: Status
    plan: Plan | None
    lower_bound: int
    method: str
    width: int | None = None
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def gap(self) -> float | None:
        """(MACs - bound) / MACs of the best plan; None without a plan."""
        if self.plan is None:
            return None
        return (self.plan.extra_macs - self.lower_bound) / self.plan.extra_macs if self.plan.extra_macs else 0.0


class _Search:
    """State of one solve, so that an interruption loses nothing."""

    def __init__(self, problem: Problem, target: int, deadline: float) -> None:
        self.problem, self.target, self.deadline = problem, target, deadline
        self.plan: Plan | None = None
        self.bound = 0
        self.width: int | None = None

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def offer(self, reruns: Sequence[Rerun]) -> bool:
        """Take a list of reruns as the incumbent if it reaches the target and is cheaper."""
        if not allowed(self.problem, reruns):
            return False
        plan = make_plan(self.problem, reruns, self.target)
        if plan.peak > self.target:
            return False
        if self.plan is None or (plan.extra_macs, len(plan.reruns)) < (self.plan.extra_macs, len(self.plan.reruns)):
            self.plan = plan
        return True

    @property
    def settled(self) -> bool:
        return self.plan is not None and self.plan.extra_macs <= self.bound


def solve(
    problem: Problem,
    target: int,
    *,
    time_limit: float = 5.0,
    start: Sequence[Rerun] | None = None,
    method: Method = "auto",
) -> Outcome:
    """Least extra MACs with which the base order reaches ``target`` bytes.

    Parameters
    ----------
    problem : Problem
    target : int
        Bytes that the plan's peak must not exceed.
    time_limit : float
        Seconds; then the best plan so far is returned with a bound. Ctrl-C does the same.
    start : sequence of Rerun, optional
        A plan to start from; it need not reach the target.
    method : {"auto", "frontier", "treewidth", "milp"}
        ``auto`` as below. The others solve the full problem by one method alone, without a heuristic, to be compared.

    Notes
    -----
    1. the floor, and the base order as it is;
    2. a heuristic plan;
    3. the relaxation that enforces memory only where the last solution broke the target, grown step by step:
       its optimum is a bound, and a plan of that price settles the matter;
    4. where only reruns break the target: the frontier on the full problem, and if that is too wide, rerun slots in
       the gaps concerned.
    """
    begin = time.monotonic()

    def outcome(status: Status, method: str, interrupted: bool = False) -> Outcome:
        return Outcome(
            target, status, search.plan, search.bound, method, search.width, time.monotonic() - begin, interrupted
        )

    search = _Search(problem, target, begin + time_limit)
    if search.offer(()):
        return outcome("exact", "given")
    if target < floor(problem.program).size:
        return outcome("infeasible", "floor")
    used = "relaxation"
    try:
        if method == "auto":
            if start:
                search.offer(start)
            found = greedy(problem, target, deadline=begin + 0.3 * time_limit)
            if found is not None:
                search.offer(found)
            used, infeasible = _refine(search)
        else:
            used, infeasible = method, (_frontier(search) if method == "frontier" else _full(search, method))
        if infeasible:
            return outcome("infeasible", used)
    except KeyboardInterrupt:
        return outcome("exact" if search.settled else "gap", used, True)
    return outcome("exact" if search.settled else "gap", used)


def _frontier(search: _Search, share: float = 1.0) -> bool:
    """Settle the full problem by the frontier; whether there is no plan. Too wide: nothing changes."""
    horizon = Horizon(search.problem, search.target, search.plan.extra_macs if search.plan else None)
    try:
        answer = solve_frontier(horizon, deadline=time.monotonic() + share * search.left())
    except TooWide:
        return False
    search.width = answer.width
    if answer.reruns is None:
        return search.plan is None
    search.bound = answer.cost
    search.offer(answer.reruns)
    return False


def _full(search: _Search, method: str) -> bool:
    """Settle the model with all slots at once; whether there is no plan."""
    horizon = Horizon(search.problem, search.target)
    slots = {gap: horizon.slots_needed(gap) for gap in horizon.tight_gaps()}
    model = build(horizon, horizon.tight_steps(), slots)
    if model is None:
        return True
    answer: Answer | None
    if method == "milp":
        answer = solve_milp(model, budget=horizon.budget, time_limit=search.left())
    else:
        answer = solve_treewidth(model, budget=horizon.budget)
    if answer is None:
        return False
    search.width = answer.width
    if answer.bound is None and answer.exact:
        return True
    search.bound = answer.bound or 0
    if answer.values is not None:
        search.offer(_realize(search.problem, search.target, model, answer.values))
    return False


def _refine(search: _Search) -> tuple[str, bool]:
    """Grow the model until its optimum can be realized; returns the method and whether there is no plan."""
    problem, target = search.problem, search.target
    now = trace(problem, ())
    steps = {now.base_step[e] for e, b in enumerate(now.bytes_at) if b > target}
    slots: dict[int, int] = {}
    truncated = False
    while search.left() > 0:
        method = "full" if slots else "relaxation"
        budget = search.plan.extra_macs if search.plan else None
        horizon = Horizon(problem, target, budget)
        model = build(horizon, steps, slots)
        answer = Answer(None, None, True) if model is None else _answer(model, horizon.budget, search.left())
        search.width = answer.width
        if answer.bound is None and answer.exact:
            if truncated:
                return method, False
            if search.plan is None:
                return method, True
            search.bound = search.plan.extra_macs  # nothing within the incumbent's price: cannot happen, but safe
            return method, False
        if not truncated and answer.bound is not None:
            search.bound = max(search.bound, answer.bound)
        if search.settled or answer.values is None or model is None:
            return method, False
        reruns = _realize(problem, target, model, answer.values)
        search.offer(reruns)
        if search.settled:
            return method, False
        now = trace(problem, reruns)
        if now.peak <= target:
            return method, False
        broken = {e for e, b in enumerate(now.bytes_at) if b > target}
        new_steps = {now.base_step[e] for e in broken if now.block[e] < 0} - steps
        if new_steps:
            steps |= new_steps
            continue
        if not slots:
            if _frontier(search, 0.5):
                return "frontier", True
            if search.settled:
                return "frontier", False
        tight = set(horizon.tight_gaps())
        wanted = {now.base_step[e] for e in broken if now.block[e] >= 0}
        for part, _ in model.reruns(answer.values):
            if isinstance(part, Segment) and any(part.low <= g <= part.high for g in wanted):
                wanted.update(range(part.low, part.high + 1))
        grown = False
        for gap in sorted(wanted & tight):
            need = horizon.slots_needed(gap)
            have = min(need, SLOTS)
            truncated = truncated or have < need
            if slots.get(gap, 0) < have:
                slots[gap] = have
                grown = True
        if not grown:
            more = set(horizon.tight_steps()) - steps
            if not more:
                return method, False
            steps |= more
    return ("full" if slots else "relaxation"), False


SLOTS = 8
"""Most rerun slots in one gap; where more could be used, the model gives plans but no bound."""


def _answer(model: Retention, budget: int | None, time_limit: float) -> Answer:
    """By the tree decomposition where it is narrow, by branch and cut where not."""
    answer = solve_treewidth(model, budget=budget, largest_table=2**14)
    return answer if answer is not None else solve_milp(model, budget=budget, time_limit=time_limit)


def _realize(problem: Problem, target: int, model: Retention, values: Sequence[int]) -> list[Rerun]:
    """Put the reruns of a solution into gaps, and move those that break the target while that helps."""
    placed = place(problem, model.reruns(values))
    reruns = [r for r, _ in placed]
    ranges = [w for _, w in placed]
    now = trace(problem, reruns)
    while now.peak > target:
        over = sum(b - target for b in now.bytes_at if b > target)
        guilty = sorted({now.block[e] for e, b in enumerate(now.bytes_at) if b > target and now.block[e] >= 0})
        best: tuple[int, list[Rerun], list[tuple[int, int]]] | None = None
        for k in guilty:
            low, high = ranges[k]
            for gap in range(low, high):
                attempt = _moved(problem, reruns, ranges, k, gap)
                then = trace(problem, attempt[0])
                excess = sum(b - target for b in then.bytes_at if b > target)
                if excess < over and (best is None or excess < best[0]):
                    best = (excess, *attempt)
        if best is None:
            return reruns
        _, reruns, ranges = best
        now = trace(problem, reruns)
    return reruns


def _moved(
    problem: Problem, reruns: list[Rerun], ranges: list[tuple[int, int]], k: int, gap: int
) -> tuple[list[Rerun], list[tuple[int, int]]]:
    """Rerun ``k`` moved to an earlier gap, with the reruns of its part that it needs."""
    moving = {k}
    for j in range(k - 1, -1, -1):
        if ranges[j][0] == ranges[k][0] and reruns[j][0] > gap:
            needed = {b for i in moving for b in problem.units[reruns[i][1]].sources}
            if needed.intersection(problem.units[reruns[j][1]].delivers):
                moving.add(j)
    pairs = [
        ((min(r[0], gap), r[1]) if j in moving else r, w) for j, (r, w) in enumerate(zip(reruns, ranges))
    ]
    pairs.sort(key=lambda p: p[0][0])
    return [r for r, _ in pairs], [w for _, w in pairs]


@dataclass(frozen=True)
class Point:
    """A point of the front: the plan, and whether its price is exact for its base order.

    Attributes
    ----------
    plan : Plan
    exact : bool
        No plan *for this base order* reaches ``plan.peak`` for less MACs.
    lower_bound : int
        No plan for this base order reaches ``plan.peak`` for less MACs than this.
    base : int
        Index of the base order among those tried.
    """

    plan: Plan
    exact: bool
    lower_bound: int
    base: int = 0

    @property
    def peak(self) -> int:
        return self.plan.peak

    @property
    def extra_macs(self) -> int:
        return self.plan.extra_macs


@dataclass(frozen=True)
class Front:
    """Extra MACs against peak, cheapest first; each point has less memory and more MACs than the one before.

    Attributes
    ----------
    points : tuple of Point
    complete : bool
        Every trade-off *of these base orders* is there and exact: between two points nothing is cheaper, and below
        the last nothing is reachable within cap and budget.
    interrupted : bool
    seconds : float
    """

    points: tuple[Point, ...]
    complete: bool
    interrupted: bool = False
    seconds: float = 0.0


def front(problem: Problem | Sequence[Problem], *, time_limit: float = 30.0, lowest: int = 0) -> Front:
    """The Pareto front of extra MACs against peak.

    Parameters
    ----------
    problem : Problem or sequence of Problem
        Several problems are several base orders of one program; the lower envelope is returned.
    time_limit : float
        Seconds for all of them.
    lowest : int
        Do not go below this many bytes.

    Notes
    -----
    First the heuristic walks down to where it gets stuck, which gives a coarse front quickly. Then targets are
    settled from the top: the next target is one byte below the peak just reached, so nothing is skipped.
    """
    problems = [problem] if isinstance(problem, Problem) else list(problem)
    begin = time.monotonic()
    points: list[Point] = []
    complete, interrupted = True, False
    for base, one in enumerate(problems):
        share = (begin + time_limit - time.monotonic()) / (len(problems) - base)
        found, whole, stopped = _front(one, base, time.monotonic() + share, lowest)
        points.extend(found)
        complete = complete and whole
        if stopped:
            complete, interrupted = base == len(problems) - 1 and complete, True
            break
    return Front(_envelope(points), complete, interrupted, time.monotonic() - begin)


def _envelope(points: Sequence[Point]) -> tuple[Point, ...]:
    best: list[Point] = []
    for p in sorted(points, key=lambda p: (p.extra_macs, p.peak, not p.exact, p.base)):
        if not best or p.peak < best[-1].peak:
            best.append(p)
    return tuple(best)


def _front(problem: Problem, base: int, deadline: float, lowest: int) -> tuple[list[Point], bool, bool]:
    given = make_plan(problem, ())
    points = [Point(given, True, 0, base)]
    lowest = max(lowest, floor(problem.program).size)
    rough: list[Plan] = []
    complete = True
    try:
        half = time.monotonic() + 0.3 * (deadline - time.monotonic())
        reruns: list[Rerun] | None = []
        peak = given.peak
        while reruns is not None and peak > lowest and time.monotonic() < half:
            reruns = greedy(problem, peak - 1, start=reruns, deadline=half)
            if reruns is not None:
                plan = make_plan(problem, reruns, peak - 1)
                rough.append(plan)
                peak = plan.peak
        target = given.peak - 1
        while target >= lowest:
            left = deadline - time.monotonic()
            if left <= 0:
                complete = False
                break
            start = next((p.reruns for p in rough if p.peak <= target), None)
            outcome = solve(problem, target, time_limit=min(left, max(1.0, left / 4)), start=start)
            if outcome.plan is not None:
                points.append(Point(outcome.plan, outcome.status == "exact", outcome.lower_bound, base))
                target = outcome.plan.peak - 1
            if outcome.status != "exact":
                complete = complete and outcome.status == "infeasible"
                if outcome.plan is None:
                    break
            if outcome.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        points.extend(Point(p, False, 0, base) for p in rough)
        return points, False, True
    points.extend(Point(p, False, 0, base) for p in rough)
    return points, complete, False


def least_peak(problem: Problem, *, time_limit: float = 5.0) -> Outcome:
    """The least peak that the base order reaches within cap and budget, with its price.

    Bisection on the target; the status is ``exact`` if every decisive question was settled.
    """
    begin = time.monotonic()
    low = floor(problem.program).size
    best = solve(problem, trace(problem, ()).peak)
    assert best.plan is not None
    settled = True
    while low < best.plan.peak:
        left = begin + time_limit - time.monotonic()
        if left <= 0:
            settled = False
            break
        middle = (low + best.plan.peak - 1) // 2
        outcome = solve(problem, middle, time_limit=left / 2)
        if outcome.plan is not None:
            best = outcome
            assert best.plan is not None
        else:
            settled = settled and outcome.status == "infeasible"
            low = middle + 1
        if outcome.interrupted:
            settled = False
            break
    return replace(best, status="exact" if settled and best.status == "exact" else "gap")
