"""The full problem in intervals: when each copy begins and ends, under one cumulative constraint, for CP-SAT.

Unlike the relaxations this enforces memory at every moment, inside reruns too, and chooses the order of reruns inside a
gap. It wins where a relaxation's reruns do not fit where they are needed: told to use *only those units* it finds
their places, and on small programs it settles the whole problem.

Time is an integer: base step ``s`` runs at ``s * pace``, and the gap before it is long enough for all reruns. Each unit
has ``cap - 1`` optional copies; an instance of a buffer (the original, or what a copy delivers) is an interval from its
birth to the last read that it serves. As in a plan, the newest instance serves each read.

Source: retention intervals as in Moccasin (Bartan et al. 2023), with a fixed base order and rows of several statements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peakmem.system import clock
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.integer import LARGEST_SUM, solver_of
from peakmem.transform.recompute.plan import Rerun

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

LARGEST_PLAN = 40_000
"""Reads that copies might serve, from which on a model takes longer to write down than there is time."""


@dataclass(frozen=True)
class Placed:
    """What is known of the full problem with the horizon's units.

    Attributes
    ----------
    reruns : list of Rerun or None
        The cheapest found.
    bound : int or None
        No list of these reruns costs less MACs; None if none reaches the target within the budget.
    """

    reruns: list[Rerun] | None
    bound: int | None


@dataclass
class _Copy:
    unit: int
    members: int
    first: int  # the earliest and the latest moment at which it may begin
    last: int
    start: cp_model.IntVar
    runs: cp_model.IntVar
    ends: dict[int, cp_model.IntVar] = field(default_factory=dict)  # delivered buffer -> end of its interval


def solve_intervals(horizon: Horizon, *, time_limit: float, effort: float, at_least: int = 0) -> Placed | None:
    """Least MACs of reruns of the horizon's units; where nothing costs MACs, any reruns that do.

    Returns None where the model would be too large, in reads or for 64 bits. ``at_least`` is a known bound, in MACs.
    ``effort`` is CP-SAT's deterministic time: the same answer each time unless ``time_limit`` (seconds) cuts in.
    """
    return _Intervals(horizon).solve(time_limit, effort, at_least)


class _Intervals:
    def __init__(self, horizon: Horizon) -> None:
        with clock.loading():
            from ortools.sat.python import cp_model

        self.h, self.problem = horizon, horizon.problem
        self.cp, self.model = cp_model, cp_model.CpModel()
        self.usable = [i for i, x in enumerate(horizon.usable) if x]
        self.limit = self.problem.cap - 1
        units = self.problem.units
        self.pace = 1 + self.limit * sum(len(units[i].members) for i in self.usable)
        self.gaps: dict[int, list[int]] = {}  # members of a row -> first and last moment of its beginning, gap by gap
        self.copies: dict[int, list[_Copy]] = {i: [self.copy(i) for _ in range(self.limit)] for i in self.usable}
        self.readers: dict[int, list[tuple[_Copy, int]]] = {}  # source -> copies, each with its last member that reads it
        for i in self.usable:
            for source, last in zip(units[i].sources, units[i].read_until):
                self.readers.setdefault(source, []).extend((c, last) for c in self.copies[i])
        self.before: dict[tuple[int, int], Any] = {}
        self.intervals: list[Any] = []
        self.demands: list[int] = []

    def copy(self, i: int) -> _Copy:
        unit, pace = self.problem.units[i], self.pace
        m = len(unit.members)
        if m not in self.gaps:
            steps = range(len(self.problem.order))
            self.gaps[m] = [x for g in steps for x in ((g - 1) * pace + 1, g * pace - m)]
        domain = self.cp.Domain.from_flat_intervals(self.gaps[m][2 * unit.ready + 2 : 2 * self.h.last[i] + 2])
        return _Copy(
            i, m, unit.ready * pace + 1, self.h.last[i] * pace - m,
            self.model.new_int_var_from_domain(domain, ""), self.model.new_bool_var(""),
        )  # fmt: skip

    def solve(self, time_limit: float, effort: float, at_least: int) -> Placed | None:
        problem, units = self.problem, self.problem.units
        total = sum(self.h.sizes[b] for b in self.h.counted) + sum(u.charge for u in units)
        reads = sum(len(problem.uses[b]) for i in self.usable for b in units[i].delivers) * self.limit
        if (total + self.h.target) * (len(problem.order) + 1) * self.pace >= LARGEST_SUM or reads > LARGEST_PLAN:
            return None
        self.reruns()
        for b in self.h.counted:
            self.buffer(b)
        for step, v in enumerate(problem.order):
            if problem.charged[v]:
                self.hold(self.model.new_fixed_size_interval_var(step * self.pace, 1, ""), problem.charged[v])
        unit = math.gcd(*self.demands) or 1
        self.model.add_cumulative(self.intervals, [d // unit for d in self.demands], self.h.target // unit)
        every = [c for i in self.usable for c in self.copies[i]]
        price = math.gcd(*(units[c.unit].cost for c in every)) or 1
        free = not any(units[c.unit].cost for c in every)
        objective = sum((1 if free else units[c.unit].cost // price) * c.runs for c in every)
        if not free:
            self.model.add(objective >= -(-at_least // price))
        self.model.minimize(objective)
        solver = solver_of(effort, time_limit)
        solver.parameters.stop_after_first_solution = free
        solver.parameters.linearization_level = 0 if free else 1  # where nothing has a price there is no bound to raise
        status = solver.solve(self.model)
        if status == self.cp.INFEASIBLE:
            return Placed(None, None)
        bound = 0 if free else max(0, solver.response_proto.inner_objective_lower_bound) * price
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Placed(None, bound)
        chosen = sorted((solver.value(c.start), c.unit) for c in every if solver.value(c.runs))
        cost = sum(units[u].cost for _, u in chosen)
        return Placed([(t // self.pace + 1, u) for t, u in chosen], min(bound, cost))

    def hold(self, interval: Any, size: int) -> None:
        self.intervals.append(interval)
        self.demands.append(size)

    def reruns(self) -> None:
        """Cap, budget, one rerun at a time, and the memory that each row needs for itself."""
        model, units = self.model, self.problem.units
        groups: dict[int, list[Any]] = {}
        rows = []
        for i in self.usable:
            for k, c in enumerate(self.copies[i]):
                groups.setdefault(units[i].group, []).append(c.runs)
                rows.append(model.new_optional_fixed_size_interval_var(c.start, c.members, c.runs, ""))
                for at, inner in enumerate(units[i].inner):
                    if inner:
                        self.hold(model.new_optional_fixed_size_interval_var(c.start + at, 1, c.runs, ""), inner)
                if k:  # copies of one unit are alike: earlier ones come first
                    before = self.copies[i][k - 1]
                    model.add_implication(c.runs, before.runs)
                    model.add(before.start + c.members <= c.start).only_enforce_if(c.runs)
        for runs in groups.values():
            model.add(sum(runs) <= self.limit)
        if len(rows) > 1:
            model.add_no_overlap(rows)
        if self.h.budget is not None:
            priced = [(units[c.unit].cost, c.runs) for i in self.usable for c in self.copies[i]]
            scale = math.gcd(*(p for p, _ in priced)) or 1
            model.add(sum(p // scale * x for p, x in priced) <= self.h.budget // scale)

    def buffer(self, b: int) -> None:
        """All instances of one buffer: each lasts to the last read that it serves."""
        problem, h, pace, model = self.problem, self.h, self.pace, self.model
        size, n = h.sizes[b], len(problem.order)
        birth = 0 if problem.born[b] < 0 else problem.born[b] * pace
        copies = [c for i in problem.units_of.get(b, ()) if i in self.copies for c in self.copies[i]]
        readers = self.readers.get(b, [])
        if problem.program.buffers[b].pinned or not (copies or readers):
            end = n if problem.last_use[b] >= n else problem.last_use[b]
            self.hold(model.new_fixed_size_interval_var(birth, max(1, end * pace + 1 - birth), ""), size)
            return
        latest = h.through[b] * pace + 1
        end = model.new_int_var(birth + 1, latest, "")
        self.hold(model.new_interval_var(birth, model.new_int_var(1, latest - birth, ""), end, ""), size)
        for c in copies:
            unit = problem.units[c.unit]
            after = unit.made_by[unit.delivers.index(b)] + 1
            c.ends[b] = model.new_int_var(c.first + after, max(latest, c.last + after), "")
            length = model.new_int_var(0, max(latest, c.last + after) - c.first, "")
            self.hold(model.new_optional_interval_var(c.start + after, length, c.ends[b], c.runs, ""), size)
        for step in problem.uses[b]:
            self.serve(b, end, [(c, self.precedes(c, step)) for c in copies], step * pace + 1, [])
        for reader, last in readers:
            served = [(c, self.order(c, reader)) for c in copies if c.unit != reader.unit]
            self.serve(b, end, served, reader.start + last + 1, [reader.runs])

    def serve(self, b: int, end: Any, copies: list[tuple[_Copy, Any]], until: Any, given: list[Any]) -> None:
        """The newest instance lasts ``until`` there; ``copies`` are in time order, each with whether it came before."""
        later: list[Any] = []
        for c, came in reversed(copies):
            if came is not None:
                enforced = [*given, came, *later]
                self.model.add(c.ends[b] >= until).only_enforce_if(enforced)
                later.append(came.Not())
        constraint = self.model.add(end >= until)
        if given or later:
            constraint.only_enforce_if([*given, *later])

    def precedes(self, c: _Copy, step: int) -> Any:
        """Whether copy ``c`` runs before a base step; None if it cannot."""
        time = step * self.pace
        if c.first >= time:
            return None
        if c.last < time:
            return c.runs
        key = (id(c), step)
        if key not in self.before:
            came = self.before[key] = self.model.new_bool_var("")
            self.model.add_implication(came, c.runs)
            self.model.add(c.start < time).only_enforce_if(came)
            self.model.add(c.start > time).only_enforce_if([c.runs, came.Not()])
        return self.before[key]

    def order(self, c: _Copy, reader: _Copy) -> Any:
        """Whether copy ``c`` runs before another one, where both run; None if it cannot."""
        if c.first >= reader.last:
            return None
        if c.last < reader.first:
            return c.runs
        key = (id(c), -id(reader))
        if key not in self.before:
            came = self.before[key] = self.model.new_bool_var("")
            self.model.add_implication(came, c.runs)
            self.model.add(c.start < reader.start).only_enforce_if([came, reader.runs])
            self.model.add(c.start > reader.start).only_enforce_if([c.runs, reader.runs, came.Not()])
        return self.before[key]
