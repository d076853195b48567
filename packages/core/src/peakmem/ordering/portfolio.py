"""Ordering a program without regard to its bodies: parts, evidence, the best order of each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from peakmem.ordering.beam import beam
from peakmem.ordering.bounds import Births, Pricer, Trap, forward_trap, statement_trap
from peakmem.ordering.closest import closest
from peakmem.ordering.components import STEPS, Component, Lift, canonical, components, merged
from peakmem.ordering.cuts import births_of
from peakmem.ordering.evidence import Beside, Evidence
from peakmem.ordering.greedy import least_growth, post_order
from peakmem.ordering.meter import Meter, OutOfTime
from peakmem.ordering.precedence import propagate
from peakmem.ordering.problem import Problem, State, waypoints
from peakmem.ordering.rules import ALL, Rules
from peakmem.ordering.walk import descend
from peakmem.system.progress import Progress

EFFORTS = 5
"""Rounds of the portfolio; each searches ten times as long as the one before."""

CANONICAL = 30
"""Units of work a statement that the canonical order of a component may cost in the first round; then eight times as many."""

DEPTH = 8
"""Components within components, at most."""

BEAMS = 8, 4, 2
"""Width of the first beam searches, how many are tried from each end before they grow, and by what factor."""

KEEN = 500, 300
"""Units of work for beams that find nothing, a unit spent before, times the square of the gap (a large one more often leaves room
for a better order): after the first round, which costs little, and after the others."""

DEAR = 400_000
"""Units of work of a round, without its beams, from which beams follow it; after a cheaper one, the next round comes first: more
often than beams it ends the search."""

LARGE = 1000
"""Statements of a part beyond which a trap from the very start has to be cheap, or to wait."""

CHEAP = 8
"""Units of work a statement that such a trap may cost before the first walk."""

MISSES = 8, 2
"""Hot statements in a row that raise no bound before their pricing ends: in large parts, in others."""

BRANCHING = {2: 3, 3: 6, 4: 10}
"""Levels of branching on precedences in a round."""


@dataclass
class Part:
    """A part between two waypoints, and what is known about it."""

    problem: Problem
    before: int
    after: int
    given: int
    best: list[int]
    peak: int
    births: Births = None
    mirror: Problem | None = None
    mirror_births: Births = None
    priced: set[int] = field(default_factory=set)
    beams: int = 0
    union: Union | None = None

    def side(self, mirrored: bool) -> tuple[Problem, Births]:
        """The part or its mirror image, with its births."""
        if self.mirror is None:
            self.mirror = self.problem.reversed()
            self.births, self.mirror_births = births_of(self.problem), births_of(self.mirror)
        return (self.mirror, self.mirror_births) if mirrored else (self.problem, self.births)


class Union:
    """The components of a part, each with a solver of its own (unless it is a single statement)."""

    def __init__(self, problem: Problem, solver: Callable[[Problem], Solver]) -> None:
        self.components, self.base = components(problem)
        self.solvers = [solver(c.problem) if len(c.problem) > 1 else None for c in self.components]
        self.least = self.base + sum(c.least for c in self.components)

    def offset(self, part: Component) -> int:
        """What the rest of the union holds at least while this component runs, bytes."""
        return self.least - part.least


@dataclass
class Flat:
    """Outcome for one program: the order, the bound and the evidence for it, best and lightest first."""

    order: list[int]
    peak: int
    bound: int
    evidence: list[Evidence]


class Solver:
    """Orders one `Problem`; anytime."""

    def __init__(
        self, problem: Problem, meter: Meter | None = None, progress: Progress | None = None, rules: Rules = ALL,
        *, depth: int = 0,
    ) -> None:
        self.problem = problem
        self.meter = meter or Meter()
        self.progress = progress
        self.rules = rules
        self.depth = depth
        self.enough = 0
        self._before = self.meter.spent
        self._sides = (False, True) if rules.mirror else (False,)
        n = len(problem)
        start, end = problem.entry_bytes, problem.exit_bytes
        self.bound = max(start, end)
        self.evidence = [Evidence(self.bound, problem, n, mirrored=end > start, entry=True)]
        cuts = waypoints(problem) if rules.waypoints else sorted({0, n})
        self.parts: list[Part] = []
        for k, part in enumerate(problem.parts(cuts)):
            given = part.order_peak(range(len(part)))
            self.parts.append(Part(part, cuts[k], n - cuts[k + 1], given, list(range(len(part))), given))
        if self.parts:
            hot = max(self.parts, key=lambda p: max(p.problem.floor))
            floor = max(hot.problem.floor)
            if floor > self.bound:
                trap = statement_trap(hot.problem, hot.problem.floor.index(floor), floor)
                self._raise(hot, False, floor, trap=trap)

    @property
    def peak(self) -> int:
        return max((part.peak for part in self.parts), default=self.problem.entry_bytes)

    def run(self, rounds: int = EFFORTS) -> bool:
        """Improve until bound and peak meet; False when the meter was out or the rounds ended before."""
        self.start()
        for effort in range(rounds):
            self.round(effort)
            if self.peak <= self.bound or self.meter.out:
                break
        return self.peak <= self.bound

    def start(self) -> None:
        """What costs next to nothing: the hottest statement, greedy orders."""
        for part in self._open():
            self._heat(part, 1)
        for mirrored in self._sides:
            for part in self._open():
                for rule in (least_growth, post_order):
                    self._improve(part, mirrored, rule(part.side(mirrored)[0]))

    def round(self, effort: int) -> None:
        """One round of the portfolio."""
        before = self.meter.spent
        for part in self._open():
            self._heat(part, MISSES[len(part.problem) <= LARGE])
        if self.rules.components and self.depth < DEPTH:
            for part in self._open():
                self._merge(part, effort)
        for mirrored in self._sides:
            for part in self._open():
                self._walk(part, mirrored, effort)
        if self.rules.precedence and effort >= 1:
            for part in self._open():
                self._propagate(part, effort)
        if self.rules.beam and (effort in (0, EFFORTS - 1) or self.meter.spent - before >= DEAR):
            units = KEEN[effort > 0] * (self.meter.spent - self._before)
            parts = self._open()
            for part in parts:
                self._beam(part, units // len(parts) * (part.peak - self.bound) ** 2 // part.peak**2)

    def _open(self) -> list[Part]:
        """Parts whose best peak exceeds the bound (and what is `enough`), worst first; none when the time is up."""
        if self.meter.out:
            return []
        enough = max(self.bound, self.enough)
        return sorted((p for p in self.parts if p.peak > enough), key=lambda p: -p.peak)

    @property
    def best(self) -> list[int]:
        """The best order so far."""
        return [part.before + v for part in self.parts for v in part.best]

    # -- what is tried on a part

    def _heat(self, part: Part, misses: int) -> None:
        """Price the statements at the highest steps of the best order, each once, until ``misses`` in a row prove nothing."""
        if not self.rules.hot_statements:
            return
        problem, births = part.side(False)
        n = len(problem)
        state = State(problem)
        steps = []
        for v in part.best:
            memory = state.mem(v)
            if memory > self.bound:
                steps.append((-memory, v))
            state.push(v)
        self.meter.spend(n)
        pricer = Pricer(problem, births, self.rules, self.meter)
        left = misses = min(misses, max(1, 8 * LARGE // n))
        for memory, v in sorted(steps):
            if -memory <= self.bound or not left or self.meter.out:
                break
            if v in part.priced:
                continue
            part.priced.add(v)
            trap = statement_trap(problem, v, self.bound)
            inside = bytearray(n)
            for u in trap.members:
                inside[u] = 1
            self.meter.spend(n)
            level = pricer.price(v, inside, trap.members, self.bound)[0]
            left = misses if level > self.bound else left - 1
            self._raise(part, False, level, trap=replace(trap, level=level))

    def _walk(self, part: Part, mirrored: bool, effort: int) -> None:
        problem, births = part.side(mirrored)
        n = len(problem)
        if self.rules.start_traps and effort in ((0,) if n <= LARGE else (0, 2)):
            # A trap from the very start makes the smallest certificate. It prices exits against all that came before,
            # where the walk takes its start along: on a large part the walk goes first, unless little is left to price.
            meter = self.meter if effort or n <= LARGE else self.meter.share(CHEAP * n)
            order = [n - 1 - v for v in reversed(part.best)] if mirrored else part.best
            try:
                trap = forward_trap(problem, self.bound, births=births, order=order, meter=meter, rules=self.rules)
            except OutOfTime:
                trap = Trap(self.bound, (), ())
            if trap.exits:
                self._raise(part, mirrored, trap.level, trap=trap)
            if part.peak <= self.bound:
                return
        walk = descend(
            problem,
            self.bound,
            ceiling=part.peak - 1,
            effort=effort,
            meter=self.meter,
            births=births,
            rules=self.rules,
        )
        if walk.stop is not None and walk.bound > self.bound:
            self._raise(part, mirrored, walk.bound, steps=walk.stop.steps, trap=walk.stop.trap)
        if walk.order:
            self._improve(part, mirrored, walk.order)

    def _merge(self, part: Part, effort: int) -> None:
        """Solve the components of a part apart, lift the best bound of each, and merge their orders."""
        fresh = part.union is None
        if part.union is None:
            self.meter.spend(len(part.problem))
            part.union = Union(part.problem, self._below)
        union = part.union
        for component, solver in zip(union.components, union.solvers):
            if solver is None:
                continue
            offset = union.offset(component)
            solver.enough = self.bound - offset
            if fresh:
                solver.start()
            solver.round(effort)
            lift, tries = None, STEPS
            proofs = sorted(solver.evidence, key=lambda e: (-e.level, e.weight))
            for evidence in proofs:
                if evidence.level + offset <= self.bound or not tries or self.meter.out:
                    break
                tries -= bool(evidence.steps)
                lift = lift or Lift(part.problem, component, offset)
                self.meter.spend(len(part.problem))
                found = lift.lifted(evidence)
                if found is not None and found[1] > self.bound:
                    mirrored, level, why = found
                    self._raise(part, mirrored, level, **why)
                    break
            if not part.before and not part.after:  # else a waypoint joins each component to the others
                best = proofs[0]
                self._raise(part, False, best.level + offset, inside=Beside(part.problem, component.problem, best, offset))
        if not union.components or self.meter.out:
            return
        orders = [solver.best if solver else [0] for solver in union.solvers]
        self._improve(part, False, merged(union.components, orders))
        if part.peak <= self.bound:
            return
        for i, (component, solver) in enumerate(zip(union.components, union.solvers)):
            if solver is not None:
                meter = self.meter.share(CANONICAL * 8**effort * len(component.problem))
                enough = self.bound - union.offset(component)

                def between(problem: Problem, meter: Meter = meter, enough: int = enough) -> list[int]:
                    inner = self._below(problem, meter)
                    inner.enough = enough
                    inner.run(effort + 1)
                    return inner.best

                order = canonical(component, between, effort=effort, meter=meter, rules=self.rules)
                if not meter.out:
                    orders[i] = order
        self._improve(part, False, merged(union.components, orders))

    def _below(self, problem: Problem, meter: Meter | None = None) -> Solver:
        return Solver(problem, meter or self.meter, None, self.rules, depth=self.depth + 1)

    def _beam(self, part: Part, units: int) -> None:
        """Beams from both ends, ever wider, each of another seed, until ``units`` of work have brought nothing; the next call goes
        on where this one ends."""
        width, seeds, growth = BEAMS
        meter = self.meter.share(units)
        while part.peak > self.bound and not meter.out:
            for mirrored in self._sides:
                while part.peak > self.bound:
                    wide = width * growth ** (part.beams // seeds)
                    order = beam(part.side(mirrored)[0], wide, part.peak - 1, meter, seed=part.beams % seeds)
                    if not order or not self._improve(part, mirrored, order):
                        break
                    meter = self.meter.share(units)
            part.beams += not meter.out

    def _propagate(self, part: Part, effort: int) -> None:
        """Try to refute ``part.peak - 1``, or find an order within it, with the precedences that it forces."""
        budget = part.peak - 1
        try:
            found = propagate(
                part.problem,
                budget,
                wanted=8 * 4 ** (effort - 1),
                depth=BRANCHING.get(effort, 0),
                meter=self.meter,
                rules=self.rules,
            )
        except OutOfTime:
            return
        if found.refutation is not None:
            self._raise(part, False, part.peak, refutation=found.refutation)
            return
        if not found.rounds:
            return
        for mirrored in self._sides:
            problem = found.problem.reversed() if mirrored else found.problem
            births = births_of(problem)
            walk = descend(
                problem,
                budget,
                ceiling=budget,
                effort=effort,
                meter=self.meter,
                births=births,
                rules=self.rules,
            )
            if walk.stop is not None:
                trap = walk.stop.trap
                self._raise(
                    part,
                    mirrored,
                    part.peak,
                    problem=problem,
                    rounds=found.rounds,
                    steps=walk.stop.steps,
                    trap=trap and Trap(part.peak, trap.members, trap.exits, cuts=trap.cuts),
                )
                return
            if walk.order:
                order = [problem.names[v] - part.before for v in walk.order]
                self._improve(part, False, order[::-1] if mirrored else order)
                return

    # -- what comes of it

    def _raise(
        self, part: Part, mirrored: bool, level: int, *, problem: Problem | None = None, **why: object
    ) -> None:
        if level <= self.bound:
            return
        self.bound = level
        self.evidence.append(
            Evidence(
                level,
                part.side(mirrored)[0] if problem is None else problem,
                len(self.problem),
                tuple(range(part.after if mirrored else part.before)),
                mirrored,
                **why,  # type: ignore[arg-type]
            )
        )
        self._say()

    def _improve(self, part: Part, mirrored: bool, order: Sequence[int]) -> bool:
        n = len(part.problem)
        order = [n - 1 - v for v in reversed(order)] if mirrored else list(order)
        peak = part.problem.order_peak(order)
        if peak >= part.peak:
            return False
        part.best, part.peak = order, peak
        self._say()
        return True

    def _say(self) -> None:
        if self.progress is not None:
            self.progress(f"ordering: lower bound {self.bound:,} B, best peak {self.peak:,} B")

    def result(self) -> Flat:
        """The best order, with every part that need not change left as given."""
        peak = self.peak
        order: list[int] = []
        for part in self.parts:
            if part.given <= peak:
                local: Sequence[int] = range(len(part.problem))
            else:
                local = closest(part.problem, part.best, peak, self.meter)
            order.extend(part.before + v for v in local)
        # A swap towards the given order may lower the peak by the way.
        return Flat(order, self.problem.order_peak(order), self.bound, sorted(self.evidence, key=lambda e: (-e.level, e.weight)))
