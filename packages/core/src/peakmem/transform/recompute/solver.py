"""The least price of a target.

Words: ``exact`` is said of one base order under one cap, never ``optimal``: another base order may be cheaper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from peakmem.system import clock
from peakmem.transform.recompute.eviction import RULES, Eviction, Late
from peakmem.transform.recompute.floors import floor
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.integer import Answer, solve_integer
from peakmem.transform.recompute.intervals import solve_intervals
from peakmem.transform.recompute.lowering import greedy
from peakmem.transform.recompute.plan import Plan, Rerun, cost_of, trace
from peakmem.transform.recompute.reruns import RerunProblem
from peakmem.transform.recompute.retention import Retention, build
from peakmem.transform.recompute.search import Search
from peakmem.transform.recompute.treewidth import solve_treewidth

Status = Literal["exact", "infeasible", "gap"]
Method = Literal["auto", "intervals"]


@dataclass(frozen=True)
class Outcome:
    """The answer for one target.

    Attributes
    ----------
    target : int
        Bytes.
    status : {"exact", "infeasible", "gap"}
        A plan is any list of reruns of the problem's units. ``exact``: for this base order and cap none costs less than
        ``plan``. ``infeasible``: none reaches the target within the cap and the budget. ``gap``: not settled in time;
        ``plan`` is the best found, if any.
    plan : Plan or None
    lower_bound : int
        No plan for this base order costs less MACs.
    bound_by : str
        What proved the bound, or that there is no plan: ``floor``, ``given`` (nothing needs to be rerun), ``free`` (nothing
        costs less than 0); for a relaxation ``memory`` (a step that cannot fit), ``treewidth``, ``cp-sat``, ``highs``;
        ``intervals`` for the full problem.
    plan_by : str
        What found the plan: ``given``, ``start``, ``lowering``, ``eviction``, ``relaxation``, ``intervals``; empty without a plan.
    width : int or None
        Width of the decomposition, where one was used.
    seconds : float
    interrupted : bool
        Stopped by Ctrl-C.
    """

    target: int
    status: Status
    plan: Plan | None
    lower_bound: int
    bound_by: str
    plan_by: str = ""
    width: int | None = None
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def gap(self) -> float | None:
        """(MACs - bound) / MACs of the best plan; None without a plan."""
        if self.plan is None:
            return None
        return (self.plan.extra_macs - self.lower_bound) / self.plan.extra_macs if self.plan.extra_macs else 0.0


def solve(
    problem: RerunProblem,
    target: int,
    *,
    time_limit: float = 5.0,
    start: Sequence[Rerun] | None = None,
    method: Method = "auto",
) -> Outcome:
    """Least extra MACs with which the base order reaches ``target`` bytes.

    Parameters
    ----------
    problem : RerunProblem
    target : int
        Bytes that the plan's peak must not exceed.
    time_limit : float
        Seconds; then the best plan so far is returned with a bound. Ctrl-C does the same.
    start : sequence of Rerun, optional
        A plan to start from; it need not reach the target.
    method : {"auto", "intervals"}
        ``auto`` as below; ``intervals`` solves the full problem by that method alone, to be compared.

    Notes
    -----
    1. the floor, and the base order as it is;
    2. plans by heuristics, before any relaxation and with a share of the time of their own;
    3. the relaxation that enforces memory only where the last solution broke the target, grown step by step:
       its optimum is a bound, and a plan of that price settles the matter; plans near solutions that cannot be realized;
    4. the full problem in intervals: early where it is small, else when only reruns break the target.

    Among plans found with equal MACs the one with the fewest reruns is given; ``exact`` speaks of MACs alone.
    """
    begin = clock.now()
    search = Search(problem, target, begin + time_limit)

    def outcome(infeasible: bool = False, interrupted: bool = False) -> Outcome:
        search.prune()
        status: Status = "infeasible" if infeasible else "exact" if search.settled else "gap"
        spent = clock.now() - begin
        return Outcome(
            target, status, search.plan, search.bound, search.bound_by, search.plan_by, search.width, spent, interrupted
        )

    if search.offer((), "given"):
        search.bound_by = "given"
        return outcome()
    if target < floor(problem.program).size:
        search.bound_by = "floor"
        return outcome(infeasible=True)
    with clock.loading():
        import networkx  # noqa: F401 - heuristics and the tree decomposition need them, with deadlines of tenths of a second
        import numpy  # noqa: F401
    try:
        if method == "intervals":
            return outcome(_whole(search))
        if start:
            search.improve(start, "start")
        if search.plan is None:
            _heuristics(search, begin + HEURISTICS * time_limit)
        return outcome(not search.settled and _refine(search))
    except KeyboardInterrupt:
        return outcome(interrupted=True)


HEURISTICS = 0.3
"""Of the time limit, the most that heuristics take before the first relaxation. Where a plan is given, they come after
it, if it settles nothing, with half as much of what is left."""

WIDTH, MIXED = 64, ("ratio", "stale", "large+", "ratio+")
"""Labels of the wider beam, and its rules."""

FIRST_MODEL, LARGEST_MODEL = 500, 20_000
"""Decisions of the first relaxation, and those to which it may grow, fourfold each time: a small one has a bound, and
reruns to mend, long before a large one. The largest leaves out the steps that exceed the target least."""

SMALL, FEW = 128, 64
"""With so many units the full problem is tried after the first relaxation that does not settle the matter; so many are placed
anew, near a relaxation."""

LEVELS = 4
"""How often the units of a solution are joined by those that make their sources."""

NARROW, EFFORT = 0.5, 60.0
"""Deterministic seconds for the full problem with few units, and with all of them."""


def _heuristics(search: Search, deadline: float) -> None:
    """Plans before any relaxation: the worst moment first, each rule of eviction alone, which is fast, then a wider beam."""
    search.tried = True
    begin = clock.now()
    search.improve(greedy(search.problem, search.target, deadline=begin + 0.4 * (deadline - begin)), "lowering")
    several: list[tuple[int, int, list[Rerun]]] = []
    slowest = 0.0
    beam = Eviction(search.problem, search.target)
    with suppress(Late):
        for rule in RULES:
            if search.settled:
                return
            since = clock.now()
            found = beam.search(1, (rule,), deadline=deadline)
            slowest = max(slowest, clock.now() - since)
            if found is not None:
                several.append((cost_of(search.problem, found), len(found), found))
                if several[-1][0] <= search.bound:
                    break
    for _, _, found in sorted(several)[:2]:
        search.improve(found, "eviction")
    if not search.settled and clock.now() + WIDTH * slowest < deadline:  # else it would hardly end in time
        with suppress(Late):
            search.improve(beam.search(WIDTH, MIXED, below=search.price, deadline=deadline), "eviction")


def _refine(search: Search) -> bool:
    """Grow the relaxation until its optimum can be realized, then the full problem; whether there is no plan."""
    problem, target = search.problem, search.target
    now = trace(problem, ())
    steps: set[int] = set()
    largest = FIRST_MODEL
    whole = False
    broken = {now.base_step[e]: b for e, b in enumerate(now.bytes_at) if b > target}
    while search.left() > 0:
        horizon = search.horizon()
        grown = grow(horizon, steps, broken, largest)
        largest = min(LARGEST_MODEL, 4 * largest)
        model = build(horizon, steps)
        waiting = {step: size for step, size in broken.items() if step not in steps}
        share = 0.6 if waiting and grown else 1.0  # more steps may tell more
        answer = Answer(None, None, True, "memory")
        if model is not None:
            answer = _answer(model, horizon.budget, share * search.left())
        if search.learn(answer.bound, answer.method, answer.width):
            return True
        if search.settled or model is None or not grown:
            break
        if answer.values is None:
            broken = waiting
            if not waiting:
                break
            continue
        reruns = model.reruns(answer.values)
        search.offer(reruns, "relaxation")
        now = trace(problem, reruns)
        if search.settled or now.peak <= target:
            break
        if not search.tried:
            _heuristics(search, clock.now() + HEURISTICS / 2 * search.left())
        _near(search, reruns)
        if not whole and not search.settled and sum(horizon.usable) <= SMALL:
            whole = True
            if _whole(search, 0.5):
                return True
        if search.settled:
            break
        over = {now.base_step[e]: b for e, b in enumerate(now.bytes_at) if b > target and now.block[e] < 0}
        broken = {step: size for step, size in over.items() if step not in steps}
        if not broken:  # only reruns break the target, and relaxations do not see them
            break
    return not search.settled and search.left() > 0 and _whole(search)


def _answer(model: Retention, budget: int | None, time_limit: float) -> Answer:
    """By the tree decomposition where it is narrow, in whole numbers where not."""
    answer = solve_treewidth(model, budget=budget)
    return answer if answer is not None else solve_integer(model, budget=budget, time_limit=time_limit)


def _near(search: Search, reruns: Sequence[Rerun]) -> None:
    """Plans near reruns of a relaxation that do not fit where they are: what is left lowered; then the same units, or
    also those that make their sources, at other moments."""
    problem = search.problem
    begin, left = clock.now(), search.left()
    search.improve(greedy(problem, search.target, start=reruns, deadline=begin + 0.4 * left), "lowering")
    units = {u for _, u in reruns}
    for _ in range(LEVELS):
        limit = begin + 0.6 * left - clock.now()
        if search.settled or limit <= 0 or len(units) > FEW:
            return
        placed = solve_intervals(search.horizon(units), at_least=search.bound, time_limit=limit, effort=NARROW)
        if placed is not None:
            search.improve(placed.reruns, "intervals")
        units = units | {w for u in units for b in problem.units[u].sources for w in problem.units_of.get(b, ())}


def _whole(search: Search, share: float = 1.0) -> bool:
    """The full problem in intervals; whether there is no plan. Too large: nothing changes."""
    limit = share * search.left()
    found = solve_intervals(search.horizon(), at_least=search.bound, time_limit=limit, effort=EFFORT)
    if found is None:
        return False
    search.offer(found.reruns, "intervals")
    return search.learn(found.bound, "intervals")


def grow(horizon: Horizon, steps: set[int], broken: Mapping[int, int], largest: int) -> bool:
    """Add broken steps while the model stays small enough, one at least up to `LARGEST_MODEL`; whether any was added.

    Steps in a row are broken for the same reasons: the worst of each row comes first, the others after them.
    """
    size = sum(len(horizon.possible[step]) for step in steps)
    before = len(steps)
    worst: dict[int, int] = {}  # row of broken steps, known by its step less its rank -> the worst in it
    for rank, step in enumerate(sorted(broken)):
        row = step - rank
        if row not in worst or broken[step] > broken[worst[row]]:
            worst[row] = step
    first = set(worst.values())
    for step in sorted(broken, key=lambda s: (s not in first, -broken[s], s)):
        size += len(horizon.possible[step])
        if steps and size > (largest if len(steps) > before else LARGEST_MODEL):
            break
        steps.add(step)
    return len(steps) > before
