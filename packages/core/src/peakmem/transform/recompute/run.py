"""From an artifact to one that recomputes: order, plan, expand, order again, realize, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peakmem.frontends import Model, Progress, Verification, Wanted, certify, run_both
from peakmem.model import PeakmemError, Schedule, UsageError, body_workspaces
from peakmem.ordering import Ordering
from peakmem.transform.recompute.document import front_document
from peakmem.transform.recompute.expand import expand, order_expansion
from peakmem.transform.recompute.floors import Floor, floor
from peakmem.transform.recompute.oracle import free_order
from peakmem.transform.recompute.pareto import Front, Point, base_orders, front, make_problems, reach
from peakmem.transform.recompute.plan import Plan
from peakmem.transform.recompute.problem import Problem, parse_extra_macs

if TYPE_CHECKING:
    from peakmem.model import Expansion

FREE_ORDER_SHARE = 0.2
"""Of the time limit, for the least price over all base orders of a small program."""

CHEAPER_SHARE, CHEAPER_MISSES = 0.2, 3
"""Of the time that is left, for cheaper points that reach the target once they are ordered again; how many may fail."""


@dataclass
class Recomputation:
    """What was found, and what was made of it.

    Attributes
    ----------
    source : Model
    ordering : Ordering
        Of the program as it is, nothing run twice.
    problems : list of Problem
        One for each base order tried.
    floor : Floor
    front : Front or None
        None when only a target was asked for.
    point : Point or None
        The chosen plan. Its peak may lie above the target, where the enlarged program in its new order does not.
    free : list of (Point, int)
        For small programs: points of the front (or the chosen one), with the least extra MACs over *every* base order.
    expansion : Expansion or None
    reordering : Ordering or None
        Of the enlarged program; its certificate, if any, is a proof about that program alone, and was checked.
    model : Model or None
        The rewritten artifact; None without a chosen plan, or where ``unrealized`` says why.
    verification : Verification or None
        None when nothing was run; ``unmeasured`` then says why.
    """

    source: Model
    ordering: Ordering
    problems: list[Problem]
    floor: Floor
    front: Front | None = None
    point: Point | None = None
    free: list[tuple[Point, int]] = field(default_factory=list)
    expansion: Expansion | None = None
    reordering: Ordering | None = None
    model: Model | None = None
    unrealized: str = ""
    verification: Verification | None = None
    unmeasured: str = ""
    interrupted: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def at_floor(self) -> bool:
        """Recomputation cannot help: the best order already needs no more than every schedule does."""
        return self.ordering.peak <= self.floor.size

    @property
    def macs(self) -> int:
        return self.problems[0].total_macs

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences a reader must know, each once: of both artifacts, of both orderings, of the measurement."""
        made = self.model.notes if self.model is not None else ()
        again = self.reordering.notes if self.reordering is not None else ()
        seen = self.verification.notes if self.verification is not None else ()
        return tuple(dict.fromkeys((*self.source.notes, *self.ordering.notes, *again, *made, *seen)))

    def to_json(self, *, output: str | None = None) -> dict[str, Any]:
        """The document ``peakmem.front/1``; see `peakmem.transform.recompute.document`."""
        return front_document(self, output=output)


def recompute(
    model: Model,
    *,
    target: int | None = None,
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
    target : int, optional
        Bytes of live peak: the cheapest plan that needs no more is chosen. Without it the lowest point of the front
        within ``max_extra_macs`` is.
    max_extra_macs : str, optional
        ``"0.5%"`` of the program's MACs, or a number.
    cap : int
        The most times any statement runs.
    thresholds : mapping of str to int, optional
        Operator -> bytes: its results are candidates only if they are larger.
    whole_front : bool
        Compute the front even where a target is given.
    realize : bool
        Rewrite the artifact.
    measure : bool or "required"
        Run both artifacts; as in `peakmem.optimize`.
    time_limit : float, optional
        Seconds for ordering and planning together.

    Raises
    ------
    Refused
        When the target is out of reach; see `peakmem.transform.recompute.reach`.
    UsageError
        On a cap below 1, a share above 100 %, an unknown operator.
    RuntimeMissing, RuntimeFailed
        With ``measure="required"`` only.
    """
    say: Progress = progress or (lambda _: None)
    begin = time.monotonic()
    limit = 1e9 if time_limit is None else time_limit
    program = model.program
    budget = None
    if max_extra_macs is not None:
        budget = parse_extra_macs(max_extra_macs, sum(s.cost for s in program.statements))
    # Bad settings are refused before any work is done.
    make_problems(program, [range(len(program))], cap=cap, max_extra_macs=budget, thresholds=thresholds)
    ordering = certify(model, time_limit=limit / 3, progress=progress)
    orders = base_orders(program, ordering.orders.get("", range(len(program))))
    problems = make_problems(
        program,
        orders,
        cap=cap,
        max_extra_macs=budget,
        thresholds=thresholds,
        workspaces=body_workspaces(program, ordering.orders),
    )
    result = Recomputation(model, ordering, problems, floor(program), interrupted=ordering.interrupted)
    result.seconds["order"] = time.monotonic() - begin

    def left() -> float:
        return max(0.0, begin + limit - time.monotonic())

    since = time.monotonic()
    if target is not None and (target < ordering.peak or not whole_front):
        say("looking for the cheapest plan")
        base, outcome = reach(problems, target, time_limit=left() / 2, progress=progress)
        result.interrupted = result.interrupted or outcome.interrupted
        if outcome.plan is not None:
            result.point = Point(outcome.plan, outcome.status == "exact", outcome.lower_bound, base)
    result.seconds["target"] = time.monotonic() - since
    since = time.monotonic()
    if whole_front and not result.at_floor and not result.interrupted:
        say("following the front")
        result.front = front(problems, time_limit=left() * 0.8)
        result.interrupted = result.front.interrupted
        if result.point is not None:
            result.front = result.front.including(result.point)
        if target is None and max_extra_macs is not None:
            result.point = result.front.points[-1]
    result.seconds["front"] = time.monotonic() - since
    since = time.monotonic()
    if not result.interrupted:
        points = result.front.points if result.front is not None else [result.point] if result.point else []
        result.free = _free(problems[0], [p for p in points if p.plan.reruns], since + FREE_ORDER_SHARE * left())
    result.seconds["free_order"] = time.monotonic() - since
    if result.point is None or not result.point.plan.reruns or not realize:
        return result
    since = time.monotonic()
    say("ordering the enlarged program")
    try:
        result.expansion = expand(result.point.plan)
        again = order_expansion(result.expansion, bodies=ordering.orders, time_limit=left(), progress=progress)
        if target is not None and result.front is not None:
            less = _cheaper(result.front, result.point, target, ordering, time.monotonic() + CHEAPER_SHARE * left())
            if less is not None:
                result.point, result.expansion, again = less
        result.reordering = again
        result.seconds["expand"] = time.monotonic() - since
        try:
            result.model = model.apply(Schedule(dict(again.orders), expansion=result.expansion))
        except PeakmemError as error:
            result.unrealized = str(error)
            return result
    except KeyboardInterrupt:  # the plans stay
        result.unrealized = "interrupted before the plan was realized"
        result.interrupted = True
        return result
    found = run_both(model, result.model, wanted=measure, progress=progress)
    result.verification, result.unmeasured = found.verification, found.unmeasured
    if measure:
        result.seconds["measure"] = found.seconds
    return result


def _cheaper(
    front: Front, point: Point, target: int, ordering: Ordering, deadline: float
) -> tuple[Point, Expansion, Ordering] | None:
    """A cheaper point of the front whose enlarged program, ordered again, reaches the target too.

    From the dearest of them down; given up after a few that do not.
    """
    found, misses = None, 0
    for cheaper in reversed(front.points):
        if not cheaper.plan.reruns or cheaper.extra_macs >= point.extra_macs:
            continue
        if misses == CHEAPER_MISSES or time.monotonic() > deadline:
            break
        expansion = expand(cheaper.plan)
        again = order_expansion(expansion, bodies=ordering.orders, time_limit=max(0.0, deadline - time.monotonic()))
        if again.peak <= target:
            found, misses = (cheaper, expansion, again), 0
        else:
            misses += 1
    return found


def _free(problem: Problem, points: Sequence[Point], deadline: float) -> list[tuple[Point, int]]:
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
