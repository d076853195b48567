"""The front of extra MACs against peak, over one or several base orders, and the answer when a target is out of reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peakmem.frontends import Progress
from peakmem.model import Program, Refused
from peakmem.system import clock
from peakmem.transform.recompute.floors import floor
from peakmem.transform.recompute.lowering import greedy
from peakmem.transform.recompute.plan import Plan, Rerun, make_plan, trace
from peakmem.transform.recompute.reruns import RerunProblem
from peakmem.transform.recompute.solver import Outcome, solve


def base_orders(program: Program, certified: Sequence[int]) -> list[tuple[int, ...]]:
    """Base orders worth trying: the certified one, the given one, and a depth-first one.

    The depth-first order finishes what it has begun, from the last statement backwards, so values are made late.
    Which base is best cannot be told from its own peak (``docs/recompute.md``).
    """
    seen: set[int] = set()
    depth_first: list[int] = []
    for sink in range(len(program) - 1, -1, -1):
        stack: list[tuple[int, bool]] = [(sink, False)]
        while stack:
            v, done = stack.pop()
            if done:
                depth_first.append(v)
            elif v not in seen:
                seen.add(v)
                stack.append((v, True))
                stack.extend((p, False) for p in program.predecessors[v] if p not in seen)
    return list(dict.fromkeys([tuple(certified), tuple(range(len(program))), tuple(depth_first)]))


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

    def including(self, point: Point) -> Front:
        """The front with a point that was found apart; what it makes pointless is dropped."""
        if any(p.peak <= point.peak and p.extra_macs <= point.extra_macs for p in self.points):
            return self
        kept = [p for p in self.points if p.peak < point.peak or p.extra_macs < point.extra_macs]
        return replace(self, points=tuple(sorted([*kept, point], key=lambda p: p.extra_macs)))


def front(problem: RerunProblem | Sequence[RerunProblem], *, time_limit: float = 30.0, lowest: int = 0) -> Front:
    """The Pareto front of extra MACs against peak.

    Parameters
    ----------
    problem : RerunProblem or sequence of RerunProblem
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
    problems = [problem] if isinstance(problem, RerunProblem) else list(problem)
    begin = clock.now()
    points: list[Point] = []
    complete, interrupted = True, False
    for base, one in enumerate(problems):
        share = (begin + time_limit - clock.now()) / (len(problems) - base)
        found, whole, stopped = _front(one, base, clock.now() + share, lowest)
        points.extend(found)
        complete = complete and whole
        if stopped:
            complete, interrupted = base == len(problems) - 1 and complete, True
            break
    return Front(_envelope(points), complete, interrupted, clock.now() - begin)


def _envelope(points: Sequence[Point]) -> tuple[Point, ...]:
    best: list[Point] = []
    for p in sorted(points, key=lambda p: (p.extra_macs, p.peak, not p.exact, p.base)):
        if not best or p.peak < best[-1].peak:
            best.append(p)
    return tuple(best)


ROUGH = 32
"""About how many points the heuristic's first walk has."""


def _front(problem: RerunProblem, base: int, deadline: float, lowest: int) -> tuple[list[Point], bool, bool]:
    """Points of one base order, whether they are its whole front, and whether Ctrl-C cut it short."""
    given = make_plan(problem, ())
    points = [Point(given, True, 0, base)]
    lowest = max(lowest, floor(problem.program).size)
    rough: list[Plan] = []
    complete, stopped = True, False
    try:
        half = clock.now() + 0.4 * (deadline - clock.now())
        reruns: list[Rerun] | None = []
        peak = given.peak
        stride = max(1, (given.peak - lowest) // ROUGH)
        while reruns is not None and peak > lowest and not clock.late(half):
            reruns = greedy(problem, max(lowest, peak - stride), start=reruns, deadline=half)
            if reruns is not None:
                plan = make_plan(problem, reruns)
                rough.append(plan)
                peak = plan.peak
        target = given.peak - 1
        while target >= lowest:
            left = deadline - clock.now()
            if left <= 0:
                complete = False
                break
            start = next((p.reruns for p in rough if p.peak <= target), None)
            outcome = solve(problem, target, time_limit=min(left, max(1.0, left / 4)), start=start)
            if outcome.plan is not None:
                points.append(Point(outcome.plan, outcome.status == "exact", outcome.lower_bound, base))
                target = outcome.plan.peak - 1
            if outcome.interrupted:
                raise KeyboardInterrupt
            if outcome.status != "exact":
                complete = complete and outcome.status == "infeasible"
                if outcome.plan is None:
                    break
    except KeyboardInterrupt:
        complete, stopped = False, True
    return points + [Point(p, False, 0, base) for p in rough], complete, stopped


def least_peak(problem: RerunProblem, *, time_limit: float = 5.0) -> Outcome:
    """The least peak that the base order reaches within cap and budget, with its price.

    Bisection on the target; the status is ``exact`` if every decisive question was settled.
    """
    begin = clock.now()
    low = floor(problem.program).size
    best = solve(problem, trace(problem, ()).peak)
    assert best.plan is not None
    settled = True
    while low < best.plan.peak:
        left = begin + time_limit - clock.now()
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


def reach(
    problems: Sequence[RerunProblem], target: int, *, time_limit: float = 5.0, progress: Progress | None = None
) -> tuple[int, Outcome]:
    """The cheapest plan for ``target`` over several base orders.

    Returns
    -------
    base : int
        Index of the problem it belongs to.
    outcome : Outcome
        Its status speaks of that base order alone.

    Raises
    ------
    Refused
        When the target is below the floor, or none of the base orders reaches it within cap and budget; the message
        names the floor and the least reachable peak with its price.
    """
    begin = clock.now()
    program = problems[0].program
    low = floor(program)
    if target < low.size:
        lowest = _lowest(problems, time_limit)
        raise Refused(
            f"the target of {target:,} bytes lies below the floor of {low.size:,} bytes, which no schedule undercuts, "
            f"however much it recomputes ({low.sentence(program)}); {lowest}"
        )
    found: list[tuple[int, Outcome]] = []
    for base, problem in enumerate(problems):
        left = begin + time_limit - clock.now()
        if found and left <= 0:
            break
        if progress is not None:
            progress(f"base order {base + 1} of {len(problems)}")
        outcome = solve(problem, target, time_limit=left / (len(problems) - base))
        found.append((base, outcome))
        if outcome.interrupted or (outcome.plan is not None and not outcome.plan.reruns):
            break
    planned = [(base, o) for base, o in found if o.plan is not None]
    if planned:
        return min(planned, key=lambda pair: (pair[1].plan.extra_macs if pair[1].plan else 0, pair[0]))
    if len(found) == len(problems) and all(o.status == "infeasible" for _, o in found):
        limit = problems[0].max_extra_macs
        within = f"running nothing more than {problems[0].cap} times" + (
            "" if limit is None else f" and within {limit:,} extra MACs"
        )
        raise Refused(
            f"the target of {target:,} bytes is out of reach of the {len(problems)} base orders tried, {within}; the floor is "
            f"{low.size:,} bytes; {_lowest(problems, time_limit)}"
        )
    return next(pair for pair in found if pair[1].status == "gap")


def _lowest(problems: Sequence[RerunProblem], time_limit: float) -> str:
    best: Plan | None = None
    settled = True
    for problem in problems:
        outcome = least_peak(problem, time_limit=time_limit / len(problems))
        settled = settled and outcome.status == "exact"
        plan = outcome.plan
        if plan is not None and (best is None or (plan.peak, plan.extra_macs) < (best.peak, best.extra_macs)):
            best = plan
    assert best is not None
    word = "the least peak of the base orders tried is" if settled else "the least peak found in time is"
    return f"{word} {best.peak:,} bytes for {best.extra_macs:,} extra MACs"
