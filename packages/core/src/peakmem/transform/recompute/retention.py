"""The retention model: keep, drop or rerun, as 0/1 decisions under linear constraints.

Memory is enforced at *events*, chosen base steps. Between two events it is not limited, so nothing is dropped there, and what
must be rerun there can be rerun at the first moment after the earlier event. So the model is a *relaxation*, whose optimum is
a lower bound, even where all base steps at which the target could be exceeded are events: reruns are not limited.

The *retention graph* has the undecided decisions as vertices, joined where they meet in a constraint. The tree
decomposition works on it; solvers in whole numbers take the same constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.plan import Rerun
from peakmem.transform.recompute.reruns import RerunProblem

Term = tuple[int, int]
"""Coefficient and variable."""


def merged(terms: Iterable[Term]) -> dict[int, int]:
    """Variable -> the sum of its coefficients."""
    found: dict[int, int] = {}
    for a, x in terms:
        found[x] = found.get(x, 0) + a
    return found


@dataclass(frozen=True)
class Row:
    """``sum of coefficient * variable <= bound``."""

    terms: tuple[Term, ...]
    bound: int


@dataclass(frozen=True)
class Segment:
    """Reruns between two events in which memory is free: unit -> its variable, in gaps ``low`` to ``high``."""

    low: int
    high: int
    reruns: Mapping[int, int]


@dataclass
class Retention:
    """A 0/1 model; ``None`` from `build` means that it has no solution.

    Attributes
    ----------
    prices : list of int
        MACs of each variable (0 for keeping).
    rows : list of Row
        Memory and availability; the cap and the budget are kept apart.
    runs : dict of int to list of int
        Group -> its rerun variables in time order; at most ``cap - 1`` of them are 1.
    segments : list of Segment
        Where the rerun variables stand in time.
    """

    problem: RerunProblem
    prices: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    runs: dict[int, list[int]] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.prices)

    def variable(self, price: int = 0) -> int:
        self.prices.append(price)
        return len(self.prices) - 1

    def rerun(self, u: int) -> int:
        """A variable: whether unit ``u`` reruns, after all for which there are variables."""
        unit = self.problem.units[u]
        self.runs.setdefault(unit.group, []).append(x := self.variable(unit.cost))
        return x

    def reruns(self, values: Sequence[int]) -> list[Rerun]:
        """The reruns of a solution in execution order, each as late as it can stand: right before its first reader."""
        result: list[Rerun] = []
        for segment in self.segments:
            result += _placed(self.problem, segment, [u for u, x in segment.reruns.items() if values[x]])
        return result


def _placed(problem: RerunProblem, part: Segment, units: Sequence[int]) -> list[Rerun]:
    gap: dict[int, int] = {}
    for u in sorted(units, reverse=True):
        unit = problem.units[u]
        readers = [g for w, g in gap.items() if not set(unit.delivers).isdisjoint(problem.units[w].sources)]
        uses = [s for b in unit.delivers for s in problem.uses[b] if s >= part.low]
        gap[u] = min([part.high, unit.deadline, *readers, *uses])
    return sorted((g, u) for u, g in gap.items())


def build(horizon: Horizon, steps: Iterable[int]) -> Retention | None:
    """Write down the model; None if a memory constraint cannot hold whatever is dropped.

    Parameters
    ----------
    horizon : Horizon
    steps : iterable of int
        Base steps at which memory is enforced.
    """
    builder = Builder(horizon)
    return builder.close() if all(builder.step(step) for step in sorted(set(steps))) else None


class Builder:
    """Writes the model event by event."""

    def __init__(self, horizon: Horizon) -> None:
        self.h, self.problem, self.model = horizon, horizon.problem, Retention(horizon.problem)
        self.started = False
        self.after = -1  # base steps up to here are done at the last event
        self.present: dict[int, int] = {}  # undecided buffer -> variable at the last event

    def available(self, b: int) -> list[Term] | None:
        """After the last event: None if surely there, else the variables of which one must be 1."""
        if not self.started or self.problem.born[b] > self.after or self.h.sizes[b] == 0:
            return None
        if b in self.present:
            return [(1, self.present[b])]
        touched = self.problem.program.touched[self.problem.order[self.after]]
        return [] if b not in touched and self.h.status(b, self.after) == 0 else None

    def delivering(self, b: int) -> tuple[int, ...]:
        return self.problem.units_of.get(b, ())

    def segment(self, upto: int, high: int) -> dict[int, int]:
        """The base runs between the last event and base step ``upto``, and free reruns, in gaps up to ``high``."""
        low = self.after + 1
        reruns: dict[int, int] = {}
        if self.started and low <= high:
            for u in self.h.units_in(low):
                if any(self.available(b) is not None for b in self.problem.units[u].delivers):
                    reruns[u] = self.model.rerun(u)
            for u, x in reruns.items():
                for e in self.problem.units[u].sources:
                    self.require(e, reruns, [(1, x)])
            if reruns:
                self.model.segments.append(Segment(low, high, reruns))
        for b in dict.fromkeys(b for step in range(low, upto) for b in self.problem.program.touched[self.problem.order[step]]):
            self.require(b, reruns, [])
        return reruns

    def require(self, b: int, reruns: Mapping[int, int], wanted: list[Term]) -> None:
        """``b`` is available if all of ``wanted`` (at most one term; none: always) are 1."""
        terms = self.available(b)
        if terms is None:
            return
        terms.extend((1, reruns[u]) for u in self.delivering(b) if u in reruns)
        bound = 0 if wanted else -1
        self.model.rows.append(Row((*((-a, x) for a, x in terms), *wanted), bound))

    def step(self, step: int) -> bool:
        fixed, undecided = self.h.at_step(step)
        room = self.h.target - fixed
        if room < 0:
            return False
        reruns = self.segment(step, step)
        for b in self.problem.program.touched[self.problem.order[step]]:
            if self.problem.born[b] < step:
                self.require(b, reruns, [])
        now = {b: self.model.variable() for b in undecided}
        for b, x in now.items():
            self.require(b, reruns, [(1, x)])
        self.limit([(self.h.sizes[b], x) for b, x in now.items()], room)
        self.present, self.after, self.started = now, step, True
        return True

    def limit(self, terms: list[Term], room: int) -> None:
        """At most ``room`` bytes."""
        if sum(a for a, _ in terms) > room:
            self.model.rows.append(Row(tuple(terms), room))

    def close(self) -> Retention:
        """Base runs after the last event."""
        self.segment(len(self.problem.order), len(self.problem.order))
        return self.model
