"""The retention model: keep, drop or rerun, as 0/1 decisions under linear constraints.

Time is a list of *events* at which memory is enforced: chosen base steps, and *slots*, each of which may hold one
rerun in a chosen gap. Between two events memory is not limited, so nothing is dropped there, and what must be rerun
there can be rerun at the first moment after the earlier event. One builder serves three models:

- few base steps, no slots: a *relaxation*, whose optimum is a lower bound;
- all base steps at which the target could be exceeded, no slots: still a relaxation, since reruns are not limited;
- also slots in all gaps in which a rerun could exceed the target: the *full problem*, given enough slots in each gap.

The *retention graph* has the undecided decisions as vertices, joined where they meet in a constraint. The tree
decomposition solver works on it; the MILP solver takes the same constraints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.plan import Rerun
from peakmem.transform.recompute.reruns import RerunProblem

Term = tuple[int, int]
"""Coefficient and variable."""


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


@dataclass(frozen=True)
class Slot:
    """At most one rerun in ``gap``: unit -> its variable."""

    gap: int
    reruns: Mapping[int, int]


@dataclass
class Retention:
    """A 0/1 model; ``None`` from `build` means that it has no solution.

    Attributes
    ----------
    prices : list of int
        MACs of each variable (0 for keeping).
    rows : list of Row
        Memory, availability and slots; the cap and the budget are kept apart.
    runs : dict of int to list of int
        Group -> its rerun variables in time order; at most ``cap - 1`` of them are 1.
    parts : list of Segment or Slot
        Where the rerun variables stand in time.
    steps, slots : int
        How many base steps and slots enforce memory.
    """

    problem: RerunProblem
    target: int
    prices: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    runs: dict[int, list[int]] = field(default_factory=dict)
    parts: list[Segment | Slot] = field(default_factory=list)
    steps: int = 0
    slots: int = 0

    @property
    def size(self) -> int:
        return len(self.prices)

    def variable(self, price: int = 0) -> int:
        self.prices.append(price)
        return len(self.prices) - 1

    def reruns(self, values: Sequence[int]) -> list[tuple[Segment | Slot, list[int]]]:
        """Units that a solution reruns, part by part."""
        chosen = [(p, [u for u, x in p.reruns.items() if values[x]]) for p in self.parts]
        return [(p, units) for p, units in chosen if units]


def build(
    horizon: Horizon,
    steps: Iterable[int],
    slots: Mapping[int, int] | None = None,
    crowded: Collection[tuple[int, int]] = (),
) -> Retention | None:
    """Write down the model; None if a memory constraint cannot hold whatever is dropped.

    Parameters
    ----------
    horizon : Horizon
    steps : iterable of int
        Base steps at which memory is enforced.
    slots : mapping of int to int, optional
        Gap -> how many slots; memory is then enforced on the base step after it, too.
    crowded : collection of (int, int)
        Enforced base steps, each with a unit: if that unit reruns between the event before and this one, it must fit
        beside what stays present from one to the other. Every plan keeps to that.
    """
    slots = slots or {}
    model = Retention(horizon.problem, horizon.target)
    builder = _Builder(horizon, model, crowded)
    for step in sorted({*steps, *slots}):
        for _ in range(slots.get(step, 0)):
            if not builder.slot(step):
                return None
        if not builder.step(step):
            return None
    builder.close()
    return model


class _Builder:
    def __init__(self, horizon: Horizon, model: Retention, crowded: Collection[tuple[int, int]]) -> None:
        self.crowded: dict[int, list[int]] = {}
        for step, u in sorted(crowded):
            self.crowded.setdefault(step, []).append(u)
        self.h, self.model, self.problem = horizon, model, horizon.problem
        self.after = -1  # base steps up to here are done at the last event
        self.slot_before = False
        self.present: dict[int, int] = {}  # undecided buffer -> variable at the last event
        self.back: dict[tuple[int, int], int] = {}  # unit and buffer -> whether the last event, a slot, brought it
        self.started = False
        self.previous: list[Term] = []

    def available(self, b: int) -> list[Term] | None:
        """After the last event: None if surely there, else the variables of which one must be 1."""
        if not self.started or self.problem.born[b] > self.after or self.h.sizes[b] == 0:
            return None
        if b in self.present:
            return [(1, self.present[b]), *((1, self.back[u, b]) for u in self.delivering(b) if (u, b) in self.back)]
        if self.slot_before:
            if self.h.status(b, self.after + 1, gap=True) == 0:
                return []
        elif (
            b not in self.problem.program.touched[self.problem.order[self.after]]
            and self.h.status(b, self.after, gap=False) == 0
        ):
            return []
        return None

    def delivering(self, b: int) -> tuple[int, ...]:
        return self.problem.units_of.get(b, ())

    def segment(self, upto: int, *, before_slot: bool) -> dict[int, int]:
        """Free reruns between the last event and base step (or gap) ``upto``, and the base runs in between."""
        low = self.after + 1
        high = upto - 1 if before_slot else upto
        reruns: dict[int, int] = {}
        if self.started and not self.slot_before and low <= high:
            for u in self.h.units_in(low):
                if upto in self.crowded or any(self.available(b) is not None for b in self.problem.units[u].delivers):
                    reruns[u] = self.model.variable(self.problem.units[u].cost)
            for u, x in reruns.items():
                for e in self.problem.units[u].sources:
                    self.require(e, reruns, [(1, x)])
                self.model.runs.setdefault(self.problem.units[u].group, []).append(x)
            if reruns:
                self.model.parts.append(Segment(low, high, reruns))
        seen: set[int] = set()
        for step in range(low, upto):
            for b in self.problem.program.touched[self.problem.order[step]]:
                if b not in seen:
                    seen.add(b)
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
        reruns = self.segment(step, before_slot=False)
        for b in self.problem.program.touched[self.problem.order[step]]:
            if self.problem.born[b] < step:
                self.require(b, reruns, [])
        crowded = [u for u in self.crowded.get(step, ()) if u in reruns]
        staying = self.staying(step, undecided, reruns) if crowded else []
        now = self.advance(step, undecided, reruns, {})
        if crowded:
            self.beside(crowded, staying, now, reruns)
        self.limit([(self.h.sizes[b], x) for b, x in now.items()], [], room)
        self.after, self.slot_before, self.back = step, False, {}
        self.previous = []
        self.model.steps += 1
        return True

    def staying(self, step: int, undecided: Sequence[int], reruns: Mapping[int, int]) -> list[tuple[int, int | None]]:
        """What may be present all the way from the last event to base step ``step``.

        Returns
        -------
        list of (buffer, variable at the last event or None where it is surely there)
        """
        found: list[tuple[int, int | None]] = []
        touched = set(self.problem.program.touched[self.problem.order[step]])
        units, low = self.problem.units, self.after + 1
        for b in self.h.possible[step]:
            if self.problem.born[b] > self.after:
                continue  # born in between: it may come after the rerun
            if any(
                self.h.usable[u] and u not in reruns and units[u].ready < step and self.h.last[u] >= low
                for u in self.delivering(b)
            ):
                continue  # it may be dropped and come back without a variable that says so
            if b not in touched and b not in undecided and self.h.status(b, step, gap=False) <= 0:
                continue
            terms = self.available(b)
            if terms is None:
                found.append((b, None))
            elif len(terms) == 1:
                found.append((b, terms[0][1]))
        return found

    def beside(
        self,
        crowded: Sequence[int],
        staying: Sequence[tuple[int, int | None]],
        now: Mapping[int, int],
        reruns: Mapping[int, int],
    ) -> None:
        """Memory while each of the ``crowded`` units reruns: itself, its sources, and what stays present throughout.

        A value present at both events stays present in between unless a unit that delivers it reruns there; those
        for which that has no variable are left out.
        """
        sizes = self.h.sizes
        fixed: set[int] = set()
        stays: dict[int, int] = {}
        for b, before in staying:
            again: list[Term] = [(-1, reruns[u]) for u in self.delivering(b) if u in reruns]
            ends: list[Term] = [(1, x) for x in (before, now.get(b)) if x is not None]
            if not again and not ends:
                fixed.add(b)
                continue
            stays[b] = self.model.variable()
            self.model.rows.append(Row((*ends, *again, (-1, stays[b])), len(ends) - 1))
        for u in crowded:
            unit = self.problem.units[u]
            for i, fresh in enumerate(unit.inner):
                read = {b for b, last in zip(unit.sources, unit.read_until) if last >= i}
                need = fresh + sum(sizes[b] for b in read | fixed)
                terms = [(sizes[b], z) for b, z in stays.items() if b not in read and b not in unit.delivers]
                room = self.h.target - need
                excess = sum(a for a, _ in terms) - room
                if excess > 0:
                    self.model.rows.append(Row((*terms, (excess, reruns[u])), room + excess))

    def slot(self, gap: int) -> bool:
        fixed, undecided = self.h.in_gap(gap)
        room = self.h.target - fixed
        if room < 0:
            return False
        reruns = {} if self.slot_before else self.segment(gap, before_slot=True)
        units = self.problem.units
        rows = {u: self.model.variable(units[u].cost) for u in self.h.units_in(gap)}
        back: dict[tuple[int, int], int] = {}
        loans: dict[int, int] = {}  # early source of some row -> whether it is there when the row begins
        for u, y in rows.items():
            self.model.runs.setdefault(units[u].group, []).append(y)
            sources, made = units[u].early
            loans.update((b, -1) for b in sources if b in undecided)
            for b in units[u].delivers:
                if b in made:
                    back[u, b] = self.model.variable()
                    self.model.rows.append(Row(((1, back[u, b]), (-1, y)), 0))
                else:
                    back[u, b] = y
        for b in loans:
            loans[b] = self.model.variable()
        now = self.advance(gap, undecided, reruns, loans)
        whole = [(units[u].charge, y) for u, y in rows.items() if not any(units[u].early)]
        self.limit([(self.h.sizes[b], x) for b, x in now.items()], whole, room)
        for u, y in rows.items():
            if any(units[u].early):
                self.row(u, y, now, loans, back, room)
            early, _ = units[u].early
            for e in units[u].sources:
                if e in now:
                    self.model.rows.append(Row(((1, y), (-1, loans[e] if e in early else now[e])), 0))
                elif self.h.status(e, gap, gap=True) == 0:
                    self.model.rows.append(Row(((1, y),), 0))
        ones: list[Term] = [(1, y) for y in rows.values()]
        if len(ones) > 1:
            self.model.rows.append(Row(tuple(ones), 1))
        if self.previous and ones:  # idle slots come last
            self.model.rows.append(Row((*ones, *((-a, y) for a, y in self.previous)), 0))
        self.after, self.slot_before, self.back = gap - 1, True, back
        self.previous = ones
        self.model.parts.append(Slot(gap, rows))
        self.model.slots += 1
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
            self.limit(terms, [(fresh, y)], room)

    def limit(self, terms: list[Term], charges: list[Term], room: int) -> None:
        """At most ``room`` bytes, where at most one of ``charges`` counts."""
        if sum(a for a, _ in terms) + max((a for a, _ in charges), default=0) > room:
            self.model.rows.append(Row((*terms, *charges), room))

    def advance(
        self, step: int, undecided: Sequence[int], reruns: Mapping[int, int], loans: Mapping[int, int]
    ) -> dict[int, int]:
        """Decide what is present at the new event, and what of it is only there when the event begins."""
        now = {b: self.model.variable() for b in undecided}
        for b, x in now.items():
            if b in loans:
                self.require(b, reruns, [(1, loans[b])])
                self.model.rows.append(Row(((1, x), (-1, loans[b])), 0))
            else:
                self.require(b, reruns, [(1, x)])
        self.present = now
        self.started = True
        return now

    def close(self) -> None:
        """Base runs after the last event."""
        self.segment(len(self.problem.order), before_slot=False)


def place(problem: RerunProblem, chosen: Sequence[tuple[Segment | Slot, list[int]]]) -> list[tuple[Rerun, tuple[int, int]]]:
    """Put each rerun as late as it can stand: right before its first reader in its part.

    Returns
    -------
    list of (rerun, (low, high))
        In execution order, with the gaps between which each may move.
    """
    result: list[tuple[Rerun, tuple[int, int]]] = []
    for part, units in chosen:
        if isinstance(part, Slot):
            result.extend(((part.gap, u), (part.gap, part.gap)) for u in units)
            continue
        gap = {}
        for u in sorted(units, reverse=True):
            unit = problem.units[u]
            gap[u] = part.high
            for b in unit.delivers:
                gap[u] = min(gap[u], next((s for s in problem.uses[b] if s >= part.low), part.high))
                for w, g in list(gap.items()):
                    if b in problem.units[w].sources:
                        gap[u] = min(gap[u], g)
            gap[u] = min(gap[u], unit.deadline)
        result.extend(((gap[u], u), (part.low, gap[u])) for u in sorted(units, key=lambda u: (gap[u], u)))
    return result
