"""Ordering a program without regard to its bodies: parts, evidence, the best order of each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from peakmem.bounds import OutOfTime, forward_trap
from peakmem.cuts import births_of
from peakmem.frontend import Progress
from peakmem.ordering.beam import beam
from peakmem.ordering.closest import closest
from peakmem.ordering.descent import descend
from peakmem.problem import Problem, waypoints
from peakmem.proof import Births, Evidence, floor_evidence

EFFORTS = (0, 1, 2, 3, 4)
"""How hard the walk may search at each round; see `peakmem.ordering.descent.descend`."""


@dataclass
class Part:
    """A part between two waypoints, and what is known about it."""

    problem: Problem
    before: range
    after: range
    given: int
    best: list[int]
    peak: int
    bound: int
    births: Births = None
    mirror: Problem | None = None
    mirror_births: Births = None

    def sides(self) -> tuple[Problem, Problem]:
        if self.mirror is None:
            self.births = births_of(self.problem)
            self.mirror = self.problem.reversed()
            self.mirror_births = births_of(self.mirror)
        return self.problem, self.mirror


@dataclass
class Flat:
    """Outcome for one program: the order, the bound and the evidence for it (best first)."""

    order: list[int]
    peak: int
    bound: int
    evidence: list[Evidence]
    resident: tuple[int, int]
    """Bytes resident at entry and at the end: bounds that need no flow."""


class Solver:
    """Orders one `Problem`; anytime."""

    def __init__(self, problem: Problem, deadline: float | None, progress: Progress | None) -> None:
        self.problem = problem
        self.deadline = deadline
        self.progress = progress
        self.evidence: list[Evidence] = []
        self.resident = (problem.entry_bytes, problem.exit_bytes)
        self.bound = max(self.resident)
        n = len(problem)
        cuts = waypoints(problem)
        self.parts = []
        floor_part, floor_at, floor = None, 0, -1
        for k, part in enumerate(problem.parts(cuts)):
            start, stop = cuts[k], cuts[k + 1]
            given = part.order_peak(range(len(part))) if len(part) > 1 else part.floor[0]
            top = max(range(len(part)), key=part.floor.__getitem__)
            self.parts.append(
                Part(part, range(start), range(stop, n), given, list(range(len(part))), given, part.floor[top])
            )
            if part.floor[top] > floor:
                floor_part, floor_at, floor = self.parts[-1], top, part.floor[top]
        if floor_part is not None:
            self.bound = max(self.bound, floor)
            self.evidence.append(
                floor_evidence(floor_part.problem, n, tuple(floor_part.before), floor_at, None)
            )

    @property
    def peak(self) -> int:
        return max((part.peak for part in self.parts), default=self.problem.entry_bytes)

    def run(self) -> bool:
        """Improve until bound and peak meet; False when the time was up or the efforts ended before."""
        for effort in EFFORTS:
            for mirrored in (False, True):
                for part in sorted(self.parts, key=lambda p: -p.peak):
                    if part.peak > self.bound:
                        self._walk(part, mirrored, effort)
                        if self._late():
                            return self.peak <= self.bound
            if self.peak <= self.bound:
                return True
            if effort == 1:
                for part in self.parts:
                    if part.peak > self.bound:
                        self._beam(part, 64)
        return self.peak <= self.bound

    def _late(self) -> bool:
        return self.deadline is not None and monotonic() > self.deadline

    def _walk(self, part: Part, mirrored: bool, effort: int) -> None:
        problem = part.sides()[mirrored]
        births = part.mirror_births if mirrored else part.births
        total = len(self.problem)
        waypoint = tuple(range(len(part.after) if mirrored else len(part.before)))
        if effort == 0:
            # A trap from the very start makes the smallest certificate; it is worth a look before any search.
            trap = self._trap(problem, births)
            if trap is not None and trap.exits and trap.level > self.bound:
                self._raise(Evidence(trap.level, problem, total, waypoint, mirrored, trap=trap, births=births))
        if part.peak <= self.bound:
            return
        walk = descend(
            problem, self.bound, ceiling=part.peak - 1, effort=effort, deadline=self.deadline, births=births
        )
        if walk.stop is not None and walk.bound > self.bound:
            stop = walk.stop
            self._raise(Evidence(stop.level, problem, total, waypoint, mirrored, stop.steps, stop.trap, births))
        if walk.order and walk.peak < part.peak:
            n = len(problem)
            part.best = [n - 1 - v for v in reversed(walk.order)] if mirrored else walk.order
            part.peak = walk.peak
            self._say()

    def _trap(self, problem: Problem, births: Births):  # type: ignore[no-untyped-def]
        try:
            return forward_trap(problem, self.bound, births=births, deadline=self.deadline)
        except OutOfTime:
            return None

    def _beam(self, part: Part, width: int) -> None:
        for mirrored in (False, True):
            problem = part.sides()[mirrored]
            order, peak = beam(problem, width, part.peak - 1, self.deadline)
            if order and peak < part.peak:
                n = len(problem)
                part.best = [n - 1 - v for v in reversed(order)] if mirrored else order
                part.peak = peak
                self._say()

    def _raise(self, evidence: Evidence) -> None:
        self.bound = evidence.level
        self.evidence.append(evidence)
        self._say()

    def _say(self) -> None:
        if self.progress is not None:
            self.progress(f"ordering: lower bound {self.bound:,} B, best peak {self.peak:,} B")

    def result(self) -> Flat:
        """The best order, parts that need no change unchanged."""
        peak = self.peak
        order: list[int] = []
        for part in self.parts:
            if part.given <= peak:
                local: Sequence[int] = range(len(part.problem))
            else:
                local = closest(part.problem, part.best, peak, self.deadline)
            order.extend(len(part.before) + v for v in local)
        ranked = sorted(self.evidence, key=lambda e: (-e.level, e.weight))
        return Flat(order, peak, self.bound, ranked, self.resident)
