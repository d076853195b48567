"""The full problem in 0/1 variables, to which the solvers of relaxations and the intervals are compared.

Beside base steps there are *slots*, each of which may hold one rerun in a chosen gap and enforces memory. With as many slots
in every tight gap as the cap lets reruns happen there the model says what a plan is. It has many variables; where its
retention graph is narrow the tree decomposition settles it in linear time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from peakmem.transform.recompute import Plan, RerunProblem, make_plan, solve
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.integer import Answer, solve_integer
from peakmem.transform.recompute.plan import Rerun
from peakmem.transform.recompute.reruns import Unit
from peakmem.transform.recompute.retention import Builder, Row, Segment, Term
from peakmem.transform.recompute.treewidth import solve_treewidth

Method = Literal["treewidth", "integer"]


def solve_slots(problem: RerunProblem, target: int, method: Method, time_limit: float = 600) -> tuple[str, Plan | None]:
    """``exact`` with a plan of least MACs, ``infeasible``, or ``gap`` where the tree is too wide or time ran out."""
    horizon = Horizon(problem, target)
    builder = FullBuilder(horizon)
    gaps = set(tight_gaps(horizon))
    for step in sorted({*tight_steps(horizon), *gaps}):
        slots = len(horizon.units_in(step)) * (problem.cap - 1) if step in gaps else 0
        if not all(builder.slot(step) for _ in range(slots)) or not builder.step(step):
            return "infeasible", None
    model = builder.close()
    answer: Answer | None
    if method == "integer":
        answer = solve_integer(model, budget=horizon.budget, time_limit=time_limit)
    else:
        answer = solve_treewidth(model, budget=horizon.budget, largest_table=2**18)
    if answer is None or not answer.exact:
        return "gap", None
    if answer.values is None:
        return "infeasible", None
    plan = make_plan(problem, builder.reruns(answer.values))
    assert plan.peak <= target
    assert plan.extra_macs == answer.bound
    return "exact", plan


def assert_least(problem: RerunProblem, target: int, truth: int | None, *, tree: bool = True) -> None:
    """All methods say that plans cost ``truth`` (None: there is none); the tree decomposition where it is not too wide."""
    expected = "infeasible" if truth is None else "exact"
    for method in ("auto", "intervals"):
        outcome = solve(problem, target, time_limit=600, method=method)  # type: ignore[arg-type]
        assert outcome.status == expected, (method, target)
        if truth is not None:
            assert outcome.plan is not None
            assert outcome.plan.extra_macs == outcome.lower_bound == truth
            assert outcome.plan.peak <= target
    methods: tuple[Method, ...] = ("integer", "treewidth") if tree else ("integer",)
    for by in methods:
        status, plan = solve_slots(problem, target, by)
        if by == "treewidth" and status == "gap":
            continue
        assert status == expected, (by, target)
        assert (plan.extra_macs if plan is not None else None) == truth


def tight_steps(horizon: Horizon) -> list[int]:
    """Base steps at which all that could be present exceeds the target; elsewhere nothing need be dropped."""
    return [step for step, size in enumerate(horizon.full) if size > horizon.target]


def tight_gaps(horizon: Horizon) -> list[int]:
    """Gaps in which a rerun, with all that could be present, exceeds the target."""
    found = []
    for gap, there in enumerate(horizon.possible):
        room = horizon.target - sum(horizon.sizes[b] for b in there)
        for unit in (horizon.problem.units[u] for u in horizon.units_in(gap)):
            if unit.charge - sum(horizon.sizes[b] for b in unit.delivers if horizon.through[b] >= gap) > room:
                found.append(gap)
                break
    return found


def early(unit: Unit) -> tuple[list[int], list[int]]:
    """Sources, and delivered buffers, of which the row may let go before its last member runs."""
    end = len(unit.members) - 1
    return (
        [b for b, i in zip(unit.sources, unit.read_until) if i < end],
        [b for b, i in zip(unit.delivers, unit.made_by) if i < end],
    )


class FullBuilder(Builder):
    """Events are base steps and slots."""

    def __init__(self, horizon: Horizon) -> None:
        super().__init__(horizon)
        self.slot_before = False
        self.back: dict[tuple[int, int], int] = {}  # unit and buffer -> whether the last event, a slot, brought it
        self.previous: list[Term] = []
        self.parts: list[Segment | tuple[int, dict[int, int]]] = []  # a slot: its gap, and unit -> its variable

    def reruns(self, values: Sequence[int]) -> list[Rerun]:
        """The reruns of a solution, those of slots and of segments in the order in which they were written down."""
        found: list[Rerun] = []
        for part in self.parts:
            if isinstance(part, Segment):
                self.model.segments = [part]
                found += self.model.reruns(values)
            else:
                found += [(part[0], u) for u, x in part[1].items() if values[x]]
        return found

    def status_in(self, b: int, gap: int) -> int:
        """As `Horizon.status`, between two base steps, nothing running."""
        if self.problem.born[b] >= gap:
            return 0
        if self.problem.last_use[b] >= gap and not self.h.droppable[b]:
            return 1
        return -1 if self.h.through[b] >= gap else 0

    def available(self, b: int) -> list[Term] | None:
        if b in self.present and self.problem.born[b] <= self.after:
            terms = super().available(b)
            assert terms is not None
            return [*terms, *((1, self.back[u, b]) for u in self.delivering(b) if (u, b) in self.back)]
        if self.slot_before and self.started and self.problem.born[b] <= self.after and self.h.sizes[b]:
            return [] if self.status_in(b, self.after + 1) == 0 else None
        return super().available(b)

    def segment(self, upto: int, high: int) -> dict[int, int]:
        before = len(self.model.segments)
        found = super().segment(upto, -1 if self.slot_before else high)
        self.parts += self.model.segments[before:]
        return found

    def step(self, step: int) -> bool:
        done = super().step(step)
        self.slot_before, self.back, self.previous = False, {}, []
        return done

    def slot(self, gap: int) -> bool:
        """One rerun in ``gap``, or none."""
        here = {b: self.status_in(b, gap) for b in self.h.possible[gap]}
        undecided = [b for b, status in here.items() if status < 0]
        room = self.h.target - sum(self.h.sizes[b] for b, status in here.items() if status > 0)
        if room < 0:
            return False
        reruns = {} if self.slot_before else self.segment(gap, gap - 1)
        units = self.problem.units
        rows = {u: self.model.rerun(u) for u in self.h.units_in(gap)}
        back: dict[tuple[int, int], int] = {}
        loans: dict[int, int] = {}  # early source of some row -> whether it is there when the row begins
        for u, y in rows.items():
            sources, made = early(units[u])
            loans.update((b, -1) for b in sources if b in undecided)
            for b in units[u].delivers:
                if b in made:
                    back[u, b] = self.model.variable()
                    self.model.rows.append(Row(((1, back[u, b]), (-1, y)), 0))
                else:
                    back[u, b] = y
        for b in loans:
            loans[b] = self.model.variable()
        now = {b: self.model.variable() for b in undecided}
        for b, x in now.items():
            self.require(b, reruns, [(1, loans.get(b, x))])
            if b in loans:
                self.model.rows.append(Row(((1, x), (-1, loans[b])), 0))
        self.present, self.started = now, True
        whole = [(units[u].charge, y) for u, y in rows.items() if not any(early(units[u]))]
        self.beside_one([(self.h.sizes[b], x) for b, x in now.items()], whole, room)
        for u, y in rows.items():
            sources, made = early(units[u])
            if sources or made:
                self.row(u, y, now, loans, back, room)
            for e in units[u].sources:
                if e in now:
                    self.model.rows.append(Row(((1, y), (-1, loans[e] if e in sources else now[e])), 0))
                elif self.status_in(e, gap) == 0:
                    self.model.rows.append(Row(((1, y),), 0))
        ones: list[Term] = [(1, y) for y in rows.values()]
        if len(ones) > 1:
            self.model.rows.append(Row(tuple(ones), 1))
        if self.previous and ones:  # idle slots come last
            self.model.rows.append(Row((*ones, *((-a, y) for a, y in self.previous)), 0))
        self.after, self.slot_before, self.back, self.previous = gap - 1, True, back, ones
        self.parts.append((gap, rows))
        return True

    def row(
        self,
        u: int,
        y: int,
        now: Mapping[int, int],
        loans: Mapping[int, int],
        back: Mapping[tuple[int, int], int],
        room: int,
    ) -> None:
        """Memory at each member of a row: sources end with their last reader in it, unless they stay present.

        The rows hold even where another unit takes the slot: what is there on loan is then read by that unit, whose
        own first member needs all of it.
        """
        unit, sizes = self.problem.units[u], self.h.sizes
        for i, fresh in enumerate(unit.inner):
            lent = {b for b, last in zip(unit.sources, unit.read_until) if i <= last < len(unit.inner) - 1}
            terms = [(sizes[b], loans[b] if b in lent else x) for b, x in now.items()]
            terms += [
                (sizes[b], back[u, b]) for b, last in zip(unit.delivers, unit.made_by) if last < i and back[u, b] != y
            ]
            self.beside_one(terms, [(fresh, y)], room)

    def beside_one(self, terms: list[Term], charges: list[Term], room: int) -> None:
        """At most ``room`` bytes, where at most one of ``charges`` counts."""
        if sum(a for a, _ in terms) + max((a for a, _ in charges), default=0) > room:
            self.model.rows.append(Row((*terms, *charges), room))
