"""More orders of the same peak, for whoever prefers one among them (an arena that fragments less)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from peakmem.model import Program, body_workspaces, scheduled_timeline
from peakmem.ordering.closest import closest
from peakmem.ordering.cuts import births_of
from peakmem.ordering.greedy import least_growth, post_order
from peakmem.ordering.problem import problem_of
from peakmem.ordering.walk import descend


def other_orders(program: Program, orders: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Orders of the program (its bodies as in ``orders``) that differ from ``orders[""]`` and from each other.

    None has a higher peak. They come from greedy rules and walks of either end, each as found and
    moved towards the given order. Deterministic; the first costs milliseconds, all of them a few walks.
    """
    peak = scheduled_timeline(program, orders).peak
    problem = problem_of(program, body_workspaces(program, orders))
    seen = {tuple(orders[""])}
    n = len(problem)
    for mirrored in (False, True):
        side = problem.reversed() if mirrored else problem
        for rule in (least_growth, post_order, None):
            if rule is not None:
                order = rule(side)
            else:
                order = descend(side, peak, ceiling=peak, effort=1, births=births_of(side)).order
            if mirrored:
                order = [n - 1 - v for v in reversed(order)]
            if len(order) < n or problem.order_peak(order) > peak:
                continue
            for candidate in (tuple(order), tuple(closest(problem, order, peak))):
                if candidate not in seen:
                    seen.add(candidate)
                    yield candidate
