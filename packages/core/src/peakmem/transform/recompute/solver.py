"""The least price of a target.

Words: ``exact`` is said of one base order under one cap, never ``optimal``: another base order may be cheaper.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from peakmem.transform.recompute.beam import Late, guide_of
from peakmem.transform.recompute.floors import floor
from peakmem.transform.recompute.frontier import TooWide, solve_frontier
from peakmem.transform.recompute.greedy import greedy
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.milp import Answer, solve_milp
from peakmem.transform.recompute.plan import Plan, Rerun, cost_of, trace
from peakmem.transform.recompute.problem import Problem
from peakmem.transform.recompute.retention import Retention, Segment, build, place
from peakmem.transform.recompute.search import Search
from peakmem.transform.recompute.treewidth import solve_treewidth

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
        A plan is any list of reruns of the problem's units. ``exact``: for this base order and cap none costs less than
        ``plan``. ``infeasible``: none reaches the target within the cap and the budget. ``gap``: not settled in time;
        ``plan`` is the best found, if any.
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
    2. plans by heuristics, before any exact attempt and with a share of the time of their own;
    3. the relaxation that enforces memory only where the last solution broke the target, grown step by step:
       its optimum is a bound, and a plan of that price settles the matter; plans near solutions that cannot be realized;
    4. where only reruns break the target: rows that make room for them, then the frontier on the full problem, and if
       that is too wide, rerun slots in the gaps concerned.

    Among plans found with equal MACs the one with the fewest reruns is given; ``exact`` speaks of MACs alone.
    """
    begin = time.monotonic()

    def outcome(status: Status, method: str, interrupted: bool = False) -> Outcome:
        search.prune()
        return Outcome(
            target, status, search.plan, search.bound, method, search.width, time.monotonic() - begin, interrupted
        )

    search = Search(problem, target, begin + time_limit)
    if search.offer(()):
        return outcome("exact", "given")
    if target < floor(problem.program).size:
        return outcome("infeasible", "floor")
    used = "relaxation"
    try:
        if method == "auto":
            if start:
                search.improve(start)
            if search.plan is None:
                _heuristics(search, begin + HEURISTICS * time_limit)
            used, infeasible = _refine(search)
        else:
            used, infeasible = method, (_frontier(search) if method == "frontier" else _full(search, method))
        if infeasible:
            return outcome("infeasible", used)
    except KeyboardInterrupt:
        return outcome("exact" if search.settled else "gap", used, True)
    return outcome("exact" if search.settled else "gap", used)


HEURISTICS = 0.4
"""Of the time limit, the most that heuristics take before the first relaxation. Where a plan is given, they come after
it, if it settles nothing, with half as much of what is left."""

MIXED = ("ratio", "stale", "large+", "ratio+")
LED = ("ratio", "stale", "fit", "large+")
"""Rules of the wider beams, and of those that follow a solution of a relaxation."""


ALONE = ((1, "ratio"), (1, "stale+"), (1, "fit"), (1, "large+"), (1, "ratio+"), (1, "stale"), (3, "large+"), (3, "stale+"))
"""Depths and rules of the beams of width 1, the most useful ones first."""


def _heuristics(search: Search, deadline: float) -> None:
    """Plans before any exact attempt: the greedy, each rule alone, which is fast, then wider beams."""
    search.tried = True
    begin = time.monotonic()
    found = greedy(search.problem, search.target, deadline=begin + 0.3 * (deadline - begin))
    if found is not None:
        search.improve(found)
    several: list[tuple[int, int, list[Rerun]]] = []
    slowest = 0.0
    with suppress(Late):
        for depth, rule in ALONE:
            if search.settled:
                return
            since = time.monotonic()
            found = search.beam(depth).search(1, (rule,), deadline=deadline)
            slowest = max(slowest, time.monotonic() - since)
            if found is not None:
                several.append((cost_of(search.problem, found), len(found), found))
                if several[-1][0] <= search.bound:
                    break
    for _, _, found in sorted(several)[:2]:
        search.improve(found)
    with suppress(Late):
        for width in (8, 64):
            for depth in (1, 3):
                if search.settled or time.monotonic() + width * slowest > deadline:
                    return  # it would hardly end in time
                found = search.beam(depth).search(width, MIXED, below=search.price, deadline=deadline)
                if found is not None:
                    search.improve(found)


def _frontier(search: Search, share: float = 1.0) -> bool:
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


def _full(search: Search, method: str) -> bool:
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
        search.offer(_realize(search, model, answer.values))
    return False


def _refine(search: Search) -> tuple[str, bool]:
    """Grow the model until its optimum can be realized; returns the method and whether there is no plan."""
    problem, target = search.problem, search.target
    now = trace(problem, ())
    steps: set[int] = set()
    slots: dict[int, int] = {}
    crowded: set[tuple[int, int]] = set()
    truncated = False
    largest = FIRST_MODEL
    broken = {now.base_step[e]: b for e, b in enumerate(now.bytes_at) if b > target}
    while search.left() > 0:
        method = "full" if slots else "relaxation"
        horizon = Horizon(problem, target, search.plan.extra_macs if search.plan else None)
        grown = _grow(horizon, steps, broken, largest) if broken else True
        largest = min(LARGEST_MODEL, 4 * largest)
        model = build(horizon, steps, slots, crowded)
        waiting = {step: size for step, size in broken.items() if step not in steps}
        share = 0.6 if waiting and grown else 1.0  # more steps may tell more
        answer = Answer(None, None, True) if model is None else _answer(model, horizon.budget, share * search.left())
        search.width = answer.width
        if answer.bound is None and answer.exact:
            if search.plan is not None and not truncated:
                search.bound = search.plan.extra_macs  # nothing cheaper than the incumbent
            return method, search.plan is None and not truncated
        if not truncated and answer.bound is not None:
            search.bound = max(search.bound, answer.bound)
        if search.settled or model is None or not grown:
            return method, False
        if answer.values is None:
            if not waiting:
                return method, False
            broken = waiting
            continue
        reruns = _realize(search, model, answer.values)
        search.offer(reruns)
        now = trace(problem, reruns)
        if search.settled or now.peak <= target:
            return method, False
        if not search.tried:
            _heuristics(search, time.monotonic() + HEURISTICS / 2 * search.left())
        _lead(search, model, answer.values, reruns)
        if search.settled:
            return method, False
        over = {e: b for e, b in enumerate(now.bytes_at) if b > target}
        broken = {now.base_step[e]: b for e, b in over.items() if now.block[e] < 0 and now.base_step[e] not in steps}
        if broken:
            continue
        # Only reruns break the target: they must fit beside what stays.
        guilty = {(now.base_step[e], reruns[now.block[e]][1]) for e in over if now.block[e] >= 0}
        if not slots and not guilty <= crowded:
            crowded |= guilty
            around = {s for step, _ in guilty for s in (step - 1, step) if s >= 0}
            broken = {step: horizon.full[0][step] for step in sorted(around - steps)}
            continue
        # The full problem.
        if not slots:
            if _frontier(search, 0.5):
                return "frontier", True
            if search.settled:
                return "frontier", False
        wanted = {now.base_step[e] for e in over if now.block[e] >= 0}
        for part, _ in model.reruns(answer.values):
            if isinstance(part, Segment) and any(part.low <= g <= part.high for g in wanted):
                wanted.update(range(part.low, part.high + 1))
        added = False
        size = model.size
        for gap in sorted(wanted.intersection(horizon.tight_gaps()) - set(slots)):
            need = horizon.slots_needed(gap)
            have = min(need, SLOTS)
            size += have * (len(horizon.units_in(gap)) + len(horizon.possible[gap]))
            if size > LARGEST_MODEL:
                break
            truncated = truncated or have < need
            slots[gap] = have
            added = True
        if not added:
            broken = {step: horizon.full[0][step] for step in set(horizon.tight_steps()) - steps}
            if not broken:
                return method, False
    return ("full" if slots else "relaxation"), False


def _lead(search: Search, model: Retention, values: Sequence[int], reruns: Sequence[Rerun]) -> None:
    """Plans near a solution of a relaxation that cannot be realized as it is."""
    guide = guide_of(model, values)
    begin, left = time.monotonic(), search.left()
    with suppress(Late):
        for width in (1, 16, 64):
            for depth in (1, 3):
                if search.settled:
                    return
                found = search.beam(depth).search(
                    width, LED, below=search.price, guide=guide, deadline=begin + 0.15 * left
                )
                if found is not None:
                    search.improve(found)
    _narrow(search, [u for _, u in reruns], begin + 0.3 * left)
    mended = greedy(search.problem, search.target, start=reruns, deadline=begin + 0.35 * left)
    if mended is not None:
        search.improve(mended)


def _narrow(search: Search, units: Sequence[int], deadline: float) -> None:
    """Plans of few units: those given, then also those that make their sources; a beam of the frontier."""
    problem = search.problem
    only = set(units)
    if search.plan is not None:
        only.update(u for _, u in search.plan.reruns)
    for beam in (32, 128):
        for _ in range(3):
            if search.settled or time.monotonic() > deadline:
                return
            horizon = Horizon(problem, search.target, search.plan.extra_macs if search.plan else None, only)
            with suppress(TooWide):
                answer = solve_frontier(horizon, most_labels=100 * beam, deadline=deadline, beam=beam)
                if answer.reruns is not None:
                    search.improve(answer.reruns)
            before = len(only)
            only.update(w for u in list(only) for b in problem.units[u].sources for w in problem.units_of.get(b, ()))
            if len(only) == before:
                break
        only = set(units)


SLOTS = 8
"""Most rerun slots in one gap; where more could be used, the model gives plans but no bound."""

FIRST_MODEL, LARGEST_MODEL = 500, 20_000
"""Decisions of the first relaxation, and those to which it may grow, fourfold each time: a small one has a bound, and
reruns to mend, long before a large one. The largest leaves out the steps that exceed the target least."""


def _grow(horizon: Horizon, steps: set[int], broken: Mapping[int, int], largest: int) -> bool:
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


def _answer(model: Retention, budget: int | None, time_limit: float) -> Answer:
    """By the tree decomposition where it is narrow, by branch and cut where not."""
    answer = solve_treewidth(model, budget=budget, largest_table=2**14)
    return answer if answer is not None else solve_milp(model, budget=budget, time_limit=time_limit)


def _realize(search: Search, model: Retention, values: Sequence[int]) -> list[Rerun]:
    """Put the reruns of a solution into gaps, and move those that break the target while that helps."""
    problem, target = search.problem, search.target
    placed = place(problem, model.reruns(values))
    reruns = [r for r, _ in placed]
    ranges = [w for _, w in placed]
    now = trace(problem, reruns)
    deadline = time.monotonic() + 0.15 * search.left()
    while now.peak > target and time.monotonic() < deadline:
        over = sum(b - target for b in now.bytes_at if b > target)
        guilty = sorted({now.block[e] for e, b in enumerate(now.bytes_at) if b > target and now.block[e] >= 0})
        best: tuple[int, list[Rerun], list[tuple[int, int]]] | None = None
        for k in guilty:
            low, high = ranges[k]
            for gap in range(low, high):
                if time.monotonic() > deadline:
                    return reruns
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
