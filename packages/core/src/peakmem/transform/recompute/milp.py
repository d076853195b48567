"""The retention model as a mixed-integer program for HiGHS."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peakmem.transform.recompute.retention import Retention

FEW = 0.5
"""Where all plans cost 0 MACs: how far from the fewest reruns a solution may be, as a share."""


@dataclass(frozen=True)
class Answer:
    """What a solver found.

    Attributes
    ----------
    values : tuple of int or None
        A solution, best found.
    bound : int or None
        No solution costs less MACs; None if there is none at all.
    exact : bool
        ``values`` costs ``bound``, or there is no solution.
    width : int or None
        Width of the decomposition, for the solvers that have one.
    """

    values: tuple[int, ...] | None
    bound: int | None
    exact: bool
    width: int | None = None


def solve_milp(model: Retention, *, budget: int | None, time_limit: float) -> Answer:
    """Least MACs by branch and cut, or the best found and a proven bound; where nothing costs MACs, few reruns.

    The numbers are divided by their greatest common divisors (prices, and each memory row), so that typical
    models have small coefficients. HiGHS works in floating point: a caller checks solutions by simulation.

    Source: HiGHS (Huangfu & Hall 2018) through `scipy.optimize.milp`.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    if model.size == 0:
        feasible = all(row.bound >= 0 for row in model.rows)
        return Answer(() if feasible else None, 0 if feasible else None, True)
    unit_price = math.gcd(*model.prices) or 1
    objective = np.array([p // unit_price for p in model.prices], dtype=float)
    free = not any(model.prices)
    if free:  # every solution costs 0: one with few reruns is easier to realize
        objective[sorted({x for runs in model.runs.values() for x in runs})] = 1.0
    data: list[int] = []
    columns: list[int] = []
    starts = [0]
    bounds: list[int] = []

    def add(terms: list[tuple[int, int]], bound: int) -> None:
        scale = math.gcd(*(a for a, _ in terms)) or 1
        data.extend(a // scale for a, _ in terms)
        columns.extend(x for _, x in terms)
        starts.append(len(data))
        bounds.append(bound // scale)

    for row in model.rows:
        if row.terms:
            add(list(row.terms), row.bound)
        elif row.bound < 0:
            return Answer(None, None, True)
    for variables in model.runs.values():
        if len(variables) >= model.problem.cap:
            add([(1, x) for x in variables], model.problem.cap - 1)
    priced = [(p, x) for x, p in enumerate(model.prices) if p]
    if budget is not None and priced:
        add(priced, budget)
    constraints = []
    if bounds:
        matrix = csr_matrix(
            (np.array(data, dtype=float), np.array(columns), np.array(starts)), shape=(len(bounds), model.size)
        )
        constraints.append(LinearConstraint(matrix, -np.inf, np.array(bounds, dtype=float)))
    outcome = milp(
        objective,
        integrality=np.ones(model.size, dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"time_limit": max(0.01, time_limit), "mip_rel_gap": FEW if free else 0.0},
    )
    values = None if outcome.x is None else tuple(round(x) for x in outcome.x)
    if outcome.status == 2:
        return Answer(None, None, True)
    dual = getattr(outcome, "mip_dual_bound", None)
    bound = 0
    if dual is not None and math.isfinite(dual):
        bound = max(0, math.ceil(dual - 1e-6 * max(1.0, abs(dual)))) * unit_price
    if free:
        return Answer(values, 0, values is not None)
    if values is None:
        return Answer(None, bound, False)
    cost = sum(p for p, x in zip(model.prices, values) if x)
    return Answer(values, min(bound, cost), outcome.status == 0 and bound >= cost)
