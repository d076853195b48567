"""The retention model in whole numbers: CP-SAT, briefly, and HiGHS for what it leaves open.

CP-SAT wins where many plans cost almost the same: it proves in tenths of a second, in integers, what HiGHS leaves open.
HiGHS wins where the linear relaxation almost tells the price. Both get numbers divided by their greatest common
divisors.

Sources: CP-SAT of OR-tools (Perron & Didier); HiGHS (Huangfu & Hall 2018) through `scipy.optimize.milp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from peakmem.model import UsageError
from peakmem.system import clock
from peakmem.transform.recompute.retention import Retention, merged

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver

LARGEST_SUM = 2**62
"""CP-SAT adds in 64 bits: a model in which a sum could exceed this is left to HiGHS."""

EFFORT, BRIEF = 0.05, 0.3
"""Deterministic time of CP-SAT before HiGHS is asked (tenths of a second), and at most this share of the time limit."""


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
    method : str
        Who says so.
    width : int or None
        Width of the decomposition, for the solver that has one.
    """

    values: tuple[int, ...] | None
    bound: int | None
    exact: bool
    method: str
    width: int | None = None


class Scaled:
    """A model with every row, and the prices, divided by their greatest common divisor; bounds are rounded down.

    Attributes
    ----------
    rows : list of (tuple of int, tuple of int, int)
        Coefficients, variables, and what their sum must not exceed.
    objective : list of int
        Price of each variable in ``unit`` MACs; where nothing costs MACs (``free``), 1 for each rerun.
    contradiction : bool
        A row without variables cannot hold.
    """

    def __init__(self, model: Retention, budget: int | None) -> None:
        self.model = model
        self.rows: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self.contradiction = False
        for row in model.rows:
            self._add(row.terms, row.bound)
        for variables in model.runs.values():
            if len(variables) >= model.problem.cap:
                self._add([(1, x) for x in variables], model.problem.cap - 1)
        priced = [(p, x) for x, p in enumerate(model.prices) if p]
        if budget is not None and priced:
            self._add(priced, budget)
        self.unit = math.gcd(*model.prices) or 1
        self.objective = [p // self.unit for p in model.prices]
        self.free = not priced
        if self.free:  # every solution costs 0: the one with fewest reruns is the easiest to realize
            for x in {x for runs in model.runs.values() for x in runs}:
                self.objective[x] = 1

    def _add(self, terms: Sequence[tuple[int, int]], bound: int) -> None:
        coefficients = merged(terms)
        scale = math.gcd(*coefficients.values()) or 1
        if coefficients:
            self.rows.append((tuple(a // scale for a in coefficients.values()), tuple(coefficients), bound // scale))
        self.contradiction = self.contradiction or (not coefficients and bound < 0)

    @property
    def largest_sum(self) -> int:
        """No sum that a solver forms is larger."""
        sums = [sum(map(abs, coefficients)) + abs(bound) for coefficients, _, bound in self.rows]
        return max([sum(self.objective), *sums])

    def answer(self, values: Sequence[int] | None, bound: int, method: str) -> Answer:
        """From what a solver says: a solution, if any, and a bound on the scaled objective."""
        if self.free:
            return Answer(None if values is None else tuple(values), 0, values is not None, method)
        if values is None:
            return Answer(None, bound * self.unit, False, method)
        cost = sum(p for p, x in zip(self.model.prices, values) if x)
        bound = min(cost, bound * self.unit)
        return Answer(tuple(values), bound, bound >= cost, method)


def solve_integer(model: Retention, *, budget: int | None, time_limit: float) -> Answer:
    """Least MACs, or the best found and a proven bound; where nothing costs MACs, few reruns.

    CP-SAT is tried for `EFFORT`, then HiGHS; the better solution and the better bound of the two are returned.
    """
    deadline = clock.now() + time_limit
    scaled = Scaled(model, budget)
    if scaled.contradiction:
        return Answer(None, None, True, "cp-sat")
    first = solve_cpsat(scaled, time_limit=BRIEF * time_limit)
    if first is not None and first.exact:
        return first
    second = solve_highs(scaled, time_limit=deadline - clock.now())
    if first is None or second.exact:
        return second
    assert first.bound is not None and second.bound is not None
    values = first.values if second.values is None else second.values
    if first.values is not None and second.values is not None:
        values = min((second.values, first.values), key=lambda v: sum(p for p, x in zip(scaled.objective, v) if x))
    return scaled.answer(values, max(first.bound, second.bound) // scaled.unit, second.method)


def solver_of(effort: float, time_limit: float) -> CpSolver:
    """CP-SAT with one worker, a fixed seed and deterministic time: the same answer each time unless ``time_limit`` (seconds)
    cuts in. Ctrl-C is Python's, which sees it when the solver returns."""
    with clock.loading():
        from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    solver.parameters.max_time_in_seconds = max(0.01, clock.wall(time_limit))
    solver.parameters.catch_sigint_signal = False
    return solver


def solve_cpsat(scaled: Scaled, *, time_limit: float, effort: float = EFFORT) -> Answer | None:
    """By CP-SAT, in whole numbers; None where a sum could exceed `LARGEST_SUM`."""
    if scaled.largest_sum >= LARGEST_SUM:
        return None
    with clock.loading():
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in scaled.objective]
    for coefficients, columns, bound in scaled.rows:
        model.add(cp_model.LinearExpr.weighted_sum([variables[x] for x in columns], coefficients) <= bound)
    model.minimize(cp_model.LinearExpr.weighted_sum(variables, scaled.objective))
    solver = solver_of(effort, time_limit)
    solver.parameters.linearization_level = 2  # every row is linear: its relaxation is most of the proof
    solver.parameters.cp_model_probing_level = 0  # takes longer than it saves here
    solver.parameters.symmetry_level = 0
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Answer(None, None, True, "cp-sat")
    values = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = [int(solver.value(x)) for x in variables]
    return scaled.answer(values, max(0, solver.response_proto.inner_objective_lower_bound), "cp-sat")


def need_highs() -> None:
    """Refuse before any work where scipy and networkx are not installed: which plans are found must not hang on them.

    Raises
    ------
    UsageError
        With the command that brings it.
    """
    missing = [name for name in ("scipy", "networkx") if find_spec(name) is None]
    if missing:
        raise UsageError(f"recomputation: {missing[0]} is not installed; try: pip install 'peakmem-core[recompute]'")


def solve_highs(scaled: Scaled, *, time_limit: float) -> Answer:
    """By branch and cut, in floating point: a caller checks solutions by simulation, and bounds are rounded."""
    need_highs()
    with clock.loading():
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

    size = len(scaled.objective)
    if not size:
        return scaled.answer((), 0, "highs")
    constraints = []
    if scaled.rows:
        data = [a for coefficients, _, _ in scaled.rows for a in coefficients]
        columns = [x for _, row, _ in scaled.rows for x in row]
        starts = np.cumsum([0, *(len(row) for _, row, _ in scaled.rows)])
        matrix = csr_matrix((np.array(data, dtype=float), np.array(columns), starts), shape=(len(scaled.rows), size))
        constraints.append(LinearConstraint(matrix, -np.inf, np.array([b for _, _, b in scaled.rows], dtype=float)))
    outcome = milp(
        np.array(scaled.objective, dtype=float),
        integrality=np.ones(size, dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"time_limit": max(0.01, clock.wall(time_limit)), "mip_rel_gap": 0.0},
    )
    if outcome.status == 2:
        return Answer(None, None, True, "highs")
    values = None if outcome.x is None else [round(x) for x in outcome.x]
    dual = getattr(outcome, "mip_dual_bound", None)
    bound = 0
    if dual is not None and math.isfinite(dual):
        bound = max(0, math.ceil(dual - 1e-6 * max(1.0, abs(dual))))
    return scaled.answer(values, bound, "highs")
