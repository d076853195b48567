"""From a program to one that recomputes (`enlarge`), and from an artifact to a rewritten one (`recompute`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from peakmem.frontends import Model, Progress, Wanted, certify, run_both
from peakmem.model import (
    Expansion,
    Orders,
    PeakmemError,
    Program,
    Schedule,
    UsageError,
    body_workspaces,
    scheduled_timeline,
)
from peakmem.ordering import Ordering, order_program
from peakmem.system import clock
from peakmem.system.progress import silent
from peakmem.transform.recompute.document import Enlarged, Recomputation
from peakmem.transform.recompute.expand import expand, order_expansion
from peakmem.transform.recompute.floors import floor
from peakmem.transform.recompute.integer import need_highs
from peakmem.transform.recompute.oracle import free_order
from peakmem.transform.recompute.pareto import Front, Point, base_orders, front, reach
from peakmem.transform.recompute.plan import Plan
from peakmem.transform.recompute.reruns import RerunProblem, parse_extra_macs

FREE_ORDER_SHARE = 0.2
"""Of the time that is left, for the least price over all base orders of a small program."""

CHEAPER_SHARE, CHEAPER_MISSES = 0.2, 3
"""Of the time that is left, for cheaper points that reach as low once they are ordered again; how many may fail."""


def recompute(
    model: Model,
    *,
    target_peak: int | None = None,
    max_extra_macs: str | None = None,
    cap: int = 2,
    thresholds: Mapping[str, int] | None = None,
    whole_front: bool = True,
    realize: bool = True,
    measure: Wanted = True,
    time_limit: float | None = 60.0,
    progress: Progress | None = None,
) -> Recomputation:
    """Plan reruns for an artifact, and rewrite it.

    Parameters
    ----------
    model : Model
    target_peak, max_extra_macs, cap, thresholds, whole_front, realize
        As in `enlarge`; with ``realize`` the artifact is rewritten.
    measure : bool or "required"
        Run both artifacts; as in `peakmem.optimize`.
    time_limit : float, optional
        Seconds for ordering and planning together.
    progress : callable, optional

    Raises
    ------
    Refused
        When the target is out of reach; see `peakmem.transform.recompute.reach`.
    UsageError
        On a cap below 1, a share above 100 %, an unknown operator; where scipy is not installed.
    RuntimeMissing, RuntimeFailed
        With ``measure="required"`` only.
    """
    begin = clock.now()
    limit = 1e9 if time_limit is None else time_limit
    program = model.program.without_overlays()
    # Bad settings are refused before any work is done.
    _problems(program, [range(len(program))], max_extra_macs, cap, thresholds)
    if program is model.program:
        ordering = certify(model, time_limit=limit / 3, progress=progress)
    else:
        ordering = order_program(program, time_limit=limit / 3, progress=progress)
    spent = clock.now() - begin
    found = enlarge(
        program, ordering.orders, target_peak=target_peak, max_extra_macs=max_extra_macs, cap=cap, thresholds=thresholds,
        whole_front=whole_front, realize=realize, any_order=True, interrupted=ordering.interrupted,
        time_limit=max(0.0, limit - spent), progress=progress,
    )  # fmt: skip
    result = Recomputation(**vars(found), source=model, ordering=ordering)
    result.seconds = {"order": spent, **found.seconds}
    if found.expansion is None or found.reordering is None:
        return result
    try:
        result.model = model.apply(Schedule(dict(found.reordering.orders), expansion=found.expansion))
    except PeakmemError as error:
        result.unrealized = str(error)
        return result
    except KeyboardInterrupt:  # the plans stay
        result.unrealized, result.interrupted = INTERRUPTED, True
        return result
    deadline = None if time_limit is None else begin + time_limit
    result.measurement = run_both(model, result.model, wanted=measure, deadline=deadline, progress=progress)
    if measure:
        result.seconds["measure"] = result.measurement.seconds
    return result


INTERRUPTED = "interrupted before the plan was realized"


def enlarge(
    program: Program,
    orders: Orders,
    *,
    target_peak: int | None = None,
    max_extra_macs: str | None = None,
    cap: int = 2,
    thresholds: Mapping[str, int] | None = None,
    whole_front: bool = True,
    realize: bool = True,
    any_order: bool = False,
    interrupted: bool = False,
    time_limit: float = 60.0,
    progress: Progress | None = None,
) -> Enlarged:
    """Plan reruns for a program, write them out as copies, and order the enlarged program.

    Parameters
    ----------
    program : Program
        Its overlays are left out: everything here is about plans that write no output on top of an input.
    orders : Orders
        The best order known without copies, and those of bodies: the first base order.
    target_peak : int, optional
        Bytes of live peak: the cheapest plan that needs no more is chosen. Without it the lowest point of the front
        within ``max_extra_macs`` is, if that is given. Where a cheaper point of the front reaches as low once its
        enlarged program is ordered again, that one is taken.
    max_extra_macs : str, optional
        ``"0.5%"`` of the program's MACs, or a number.
    cap : int
        The most times any statement runs.
    thresholds : mapping of str to int, optional
        Operator -> bytes: its results are candidates only if they are larger.
    whole_front : bool
        Compute the front even where a target is given.
    realize : bool
        Write out the chosen plan.
    any_order : bool
        For small programs, also ask what every other base order would cost.
    interrupted : bool
        Ctrl-C has been pressed: nothing is searched that was not asked for.
    time_limit : float
        Seconds.
    progress : callable, optional

    Raises
    ------
    Refused, UsageError
        As in `recompute`.
    """
    say = progress or silent
    program = program.without_overlays()
    begin = since = clock.now()
    bases = base_orders(program, orders.get("", range(len(program))))
    problems = _problems(program, bases, max_extra_macs, cap, thresholds, body_workspaces(program, orders))
    peak = scheduled_timeline(program, orders).peak
    result = Enlarged(ordered_peak=peak, problems=problems, floor=floor(program), interrupted=interrupted)

    def left() -> float:
        return max(0.0, begin + time_limit - clock.now())

    def lap(name: str) -> None:
        nonlocal since
        now = clock.now()
        result.seconds[name], since = now - since, now

    if target_peak is not None and (target_peak < peak or not whole_front):
        say("looking for the cheapest plan")
        base, outcome = reach(problems, target_peak, time_limit=left() / 2, progress=progress)
        result.interrupted = result.interrupted or outcome.interrupted
        if outcome.plan is not None:
            result.point = Point(outcome.plan, outcome.status == "exact", outcome.lower_bound, base)
    lap("target")
    if whole_front and not result.at_floor and not result.interrupted:
        say("following the front")
        result.front = front(problems, time_limit=left() * 0.8)
        result.interrupted = result.front.interrupted
        if result.point is not None:
            result.front = result.front.including(result.point)
        if target_peak is None and max_extra_macs is not None:
            result.point = result.front.points[-1]
    lap("front")
    if any_order and not result.interrupted:
        points = result.front.points if result.front is not None else [result.point] if result.point else []
        result.free = _free(problems[0], [p for p in points if p.plan.reruns], since + FREE_ORDER_SHARE * left())
    lap("free_order")
    if result.point is None or not result.point.plan.reruns or not realize:
        return result
    say("ordering the enlarged program")
    try:
        expansion = expand(result.point.plan)
        again = order_expansion(expansion, bodies=orders, time_limit=left(), progress=progress)
        goal = again.peak if target_peak is None else target_peak
        found = None
        if result.front is not None:
            found = _cheaper(result.front, result.point, goal, orders, clock.now() + CHEAPER_SHARE * left())
        result.point, result.expansion, result.reordering = found or (result.point, expansion, again)
    except KeyboardInterrupt:  # the plans stay
        result.unrealized, result.interrupted = INTERRUPTED, True
    lap("expand")
    return result


def _problems(
    program: Program,
    orders: Sequence[Sequence[int]],
    max_extra_macs: str | None,
    cap: int,
    thresholds: Mapping[str, int] | None,
    workspaces: tuple[int, ...] | None = None,
) -> list[RerunProblem]:
    """One problem for each different base order; bad settings and a missing solver are refused here, before any work."""
    need_highs()
    budget = None
    if max_extra_macs is not None:
        budget = parse_extra_macs(max_extra_macs, sum(s.cost for s in program.statements))
    different = dict.fromkeys(tuple(order) for order in orders)
    return [RerunProblem(program, order, cap, budget, thresholds or {}, workspaces) for order in different]


def _cheaper(
    front: Front, point: Point, goal: int, bodies: Orders, deadline: float
) -> tuple[Point, Expansion, Ordering] | None:
    """A cheaper point of the front whose enlarged program, ordered again, reaches the goal too.

    From the dearest of them down; given up after a few that do not.
    """
    found, misses = None, 0
    for cheaper in reversed(front.points):
        if not cheaper.plan.reruns or cheaper.extra_macs >= point.extra_macs:
            continue
        if misses == CHEAPER_MISSES or clock.late(deadline):
            break
        expansion = expand(cheaper.plan)
        again = order_expansion(expansion, bodies=bodies, time_limit=max(0.0, deadline - clock.now()))
        if again.peak <= goal:
            found, misses = (cheaper, expansion, again), 0
        else:
            misses += 1
    return found


def _free(problem: RerunProblem, points: Sequence[Point], deadline: float) -> list[tuple[Point, int]]:
    """The least price over every base order, for as many points as the reference solver settles in time."""
    if problem.thresholds or any(s.bodies for s in problem.program.statements):
        return []
    found = []
    for point in points:
        try:
            macs = free_order(problem.program, point.peak, cap=problem.cap, deadline=deadline)
        except UsageError:  # too large, or written twice: the command says that other orders may be cheaper
            return []
        except (TimeoutError, KeyboardInterrupt):
            break
        if macs is not None:
            found.append((point, macs))
    return found


def describe(plan: Plan, *, show: Callable[[str], str] = str) -> list[str]:
    """The reruns of a plan, a line each; ``show`` makes what is printed of a statement's name."""
    names = [show(statement.name) for statement in plan.problem.program.statements]
    return [
        f"before {names[plan.problem.order[gap]]}: "
        + " + ".join(names[v] for v in plan.problem.units[u].members)
        + f" again ({plan.problem.units[u].cost:,} MACs)"
        for gap, u in plan.reruns
    ]
