"""Components: statements that neither a dependence nor a storage connects are ordered apart, and the orders merged.

A buffer that is at entry and pinned is a constant charge and connects nothing; any other shared buffer does. ``docs/theory.md``
proves what is used here: what one component's proof shows, with the least rest of the others added, holds for the union; and
one *canonical* order of each component is enough to merge an optimal order of the union.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from typing import Any

from peakmem.ordering.bounds import Births, Pricer, Trap
from peakmem.ordering.cuts import births_of, cheapest_state
from peakmem.ordering.evidence import Evidence
from peakmem.ordering.meter import Meter
from peakmem.ordering.precedence import Arc, Refutation, Round, strengthen
from peakmem.ordering.problem import Problem, State
from peakmem.ordering.rules import ALL, Rules
from peakmem.ordering.walk import descend

STEPS = 3
"""Proofs that begin with safe steps and are tried without them."""


@dataclass
class Component:
    """One of several; ids are its own, ``problem.names`` are those of the union."""

    problem: Problem
    births: Births
    least: int
    """Least rest of all its states, bytes."""


def components(problem: Problem) -> tuple[list[Component], int]:
    """The components of a problem and what is resident whatever they do; no component when there is only one.

    O(program), and one cut for each of several statements.
    """
    n = len(problem)
    leader = list(range(n))

    def find(v: int) -> int:
        while leader[v] != v:
            leader[v] = v = leader[leader[v]]
        return v

    constant = [e and p for e, p in zip(problem.entry, problem.pinned)]
    for v, row in enumerate(problem.preds):
        for u in row:
            leader[find(v)] = find(u)
    for row, fixed in zip(problem.touchers, constant):
        for t in () if fixed else row[1:]:
            leader[find(t)] = find(row[0])
    groups: dict[int, list[int]] = {}
    for v in range(n):
        groups.setdefault(find(v), []).append(v)
    if len(groups) < 2:
        return [], 0
    result = []
    for members in groups.values():
        used = sorted({b for v in members for b in problem.touched[v] if not constant[b]})
        part = problem.among(members, used, 0)
        births = births_of(part)
        result.append(Component(part, births, least_rest(part, births)))
    return result, problem.base + sum(size for size, fixed in zip(problem.size, constant) if fixed)


def least_rest(problem: Problem, births: Births) -> int:
    """Least rest of all states, in bytes; at most one cut."""
    if len(problem) == 1:
        return min(problem.entry_bytes, problem.exit_bytes)
    return cheapest_state(problem, State(problem), range(len(problem)), None, births=births).value


# -- orders ----------------------------------------------------------------------------------------------------------


def merged(parts: Sequence[Component], orders: Sequence[Sequence[int]]) -> list[int]:
    """The best way to run one order of each component interleaved, in ids of the union. O(n log(components))."""
    profiles = [_profile(part.problem, order) for part, order in zip(parts, orders)]
    heads = [_descents(*profile) for profile in profiles]
    tails = [_descents(rests[::-1], memory[::-1]) for rests, memory in profiles]
    called = [[part.problem.names[v] for v in order] for part, order in zip(parts, orders)]
    first = [piece for i, a, b in _interleaved(heads) for piece in called[i][a:b]]
    last = [piece for i, a, b in _interleaved(tails) for piece in called[i][::-1][a:b]]
    middle = []
    for row, head, tail in zip(called, heads, tails):
        middle += row[head[-1].stop if head else 0 : len(row) - (tail[-1].stop if tail else 0)]
    return first + middle + last[::-1]


@dataclass(slots=True)
class _Descent:
    """A stretch of an order that ends with less than it began with: where it stops, its hill, and both rests."""

    stop: int
    hill: int
    before: int
    after: int


def _profile(problem: Problem, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """rest before each step and at the end, and memory at each step."""
    state = State(problem)
    rests, memory = [state.rest], []
    for v in order:
        memory.append(state.mem(v))
        state.push(v)
        rests.append(state.rest)
    return rests, memory


def _descents(rests: Sequence[int], memory: Sequence[int]) -> list[_Descent]:
    """From the start to the least rest: over the least hill behind which something lower lies, as far down as it reaches."""
    found: list[_Descent] = []
    low, hill = rests[0], 0
    for k, height in enumerate(memory):
        hill = max(hill, height)
        if rests[k + 1] < low:
            if found and hill <= found[-1].hill:
                found[-1].stop, found[-1].after = k + 1, rests[k + 1]
            else:
                found.append(_Descent(k + 1, hill, low, rests[k + 1]))
            low, hill = rests[k + 1], 0
    return found


def _interleaved(rows: Sequence[Sequence[_Descent]]) -> list[tuple[int, int, int]]:
    """All descents as (component, start, stop), always the one that needs least beyond what its component holds."""
    heap = [(row[0].hill - row[0].before, i, 0) for i, row in enumerate(rows) if row]
    heapify(heap)
    result = []
    while heap:
        _, i, k = heap[0]
        row = rows[i]
        result.append((i, row[k - 1].stop if k else 0, row[k].stop))
        if k + 1 < len(row):
            heapreplace(heap, (row[k + 1].hill - row[k + 1].before, i, k + 1))
        else:
            heappop(heap)
    return result


def canonical(
    part: Component,
    solve: Callable[[Problem], Sequence[int]],
    *,
    effort: int,
    meter: Meter | None = None,
    rules: Rules = ALL,
) -> list[int]:
    """An order that goes down to the least rest over the least hills, from both ends, and between them as ``solve`` says.

    It is canonical if the walks raised no budget by a guess and ``solve`` is right; else it is just an order. When the meter is
    out it is no order at all.
    """
    problem, births = part.problem, part.births
    meter = meter or Meter()
    n = len(problem)
    head = descend(problem, 0, effort=effort, until=part.least, births=births, meter=meter, rules=rules)
    if meter.out:
        return []
    first = head.order
    taken = set(first)
    order = [*first, *(v for v in range(n) if v not in taken)]
    tail = _renumbered(problem, order).part(len(first), n)
    mirror = tail.reversed()
    foot = descend(mirror, 0, effort=effort, until=part.least, births=births_of(mirror), meter=meter, rules=rules)
    if meter.out:
        return []
    m = len(tail)
    last = [m - 1 - v for v in reversed(foot.order)]
    taken = set(last)
    inner = [v for v in range(m) if v not in taken]
    between = _renumbered(tail, [*inner, *last]).part(0, len(inner))
    path = [*(inner[v] for v in solve(between)), *last]
    return [*first, *(order[len(first) + v] for v in path)]


def _renumbered(problem: Problem, order: Sequence[int]) -> Problem:
    """The problem with its statements listed in another legal order."""
    new = [0] * len(order)
    for i, v in enumerate(order):
        new[v] = i

    def turned(rows: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        return [tuple(sorted(new[u] for u in rows[v])) for v in order]

    return replace(
        problem,
        preds=turned(problem.preds),
        succs=turned(problem.succs),
        touched=[problem.touched[v] for v in order],
        touchers=[tuple(sorted(new[t] for t in row)) for row in problem.touchers],
        workspace=[problem.workspace[v] for v in order],
        names=[problem.names[v] for v in order],
        gains=[problem.gains[v] for v in order],
    )


# -- proofs ----------------------------------------------------------------------------------------------------------


class Lift:
    """Carries what proves a bound for one component over to the union.

    Parameters
    ----------
    union : Problem
    part : Component
    offset : int
        What the rest of the union holds at least, bytes.
    """

    def __init__(self, union: Problem, part: Component, offset: int) -> None:
        self.union = union
        self.part = part
        self.offset = offset
        self.own = frozenset(part.problem.names)
        self.others = [v for v in range(len(union)) if v not in self.own]

    def lifted(self, evidence: Evidence) -> tuple[bool, int, dict[str, Any]] | None:
        """Mirrored or not, the bound, and the fields of the union's evidence; None for what needs an exhausted search or is
        itself the proof of a component.

        Where safe steps come first and the others hold too much to allow them, the trap is priced without them.
        """
        mirrored, names = evidence.mirrored, self.part.problem.names
        level = evidence.level + self.offset
        early = [names[len(names) - 1 - w if mirrored else w] for w in evidence.waypoint]
        late = self.own.difference(early, evidence.problem.names)
        if evidence.refutation is not None:
            return False, level, {"refutation": self._refutation(evidence.refutation, self.union, early, late)}
        problem = self.union
        rounds = []
        for found in evidence.rounds:
            rounds.append(self._round(found, problem))
            stronger = strengthen(problem, rounds[-1].arcs)
            assert isinstance(stronger, Problem)  # it has an order, for the component has
            problem = stronger
        side = problem.reversed() if mirrored else problem
        trap = evidence.trap
        if evidence.entry:
            own = self.part.problem.reversed() if mirrored else self.part.problem
            trap, source = Trap(level, (), tuple(v for v, row in enumerate(own.preds) if not row)), own
        elif trap is None:
            return None
        else:
            source = evidence.problem
        place = self._places(side)
        steps: tuple[tuple[int, ...], ...] = ()
        if evidence.steps:
            moved = tuple(tuple(place[source.names[v]] for v in step) for step in evidence.steps)
            if not early and self._affordable(side, moved, level):
                steps = moved
            else:
                level = self.offset + _without_steps(source, trap)
        trap = self._trap(trap, source, side, early)
        why: dict[str, Any] = {"trap": replace(trap, level=level), "steps": steps}
        if rounds:
            why |= {"rounds": tuple(rounds), "problem": side}
        return mirrored, level, why

    def _places(self, problem: Problem) -> dict[int, int]:
        """Where the statements of the union stand in one of its strengthened or mirrored versions."""
        called = {name: i for i, name in enumerate(problem.names)}
        return {v: called[name] for v, name in enumerate(self.union.names)}

    def _affordable(self, side: Problem, steps: Sequence[Sequence[int]], level: int) -> bool:
        state = State(side)
        for step in steps:
            for v in step:
                if state.mem(v) >= level:
                    return False
                state.push(v)
        return True

    def _trap(self, trap: Trap, source: Problem, side: Problem, before: Sequence[int]) -> Trap:
        """The trap with everything that is not of its component, and what its part had behind it."""
        place = self._places(side)
        members = [*(source.names[v] for v in trap.members), *before, *self.others]
        exits = tuple(sorted(place[source.names[v]] for v in trap.exits))
        return Trap(trap.level, tuple(sorted(place[v] for v in members)), exits, cuts=trap.cuts)

    def _round(self, found: Round, problem: Problem) -> Round:
        place, names = self._places(problem), found.problem.names
        arcs = [Arc(*(place[names[v]] for v in (arc.before, arc.after, arc.at))) for arc in found.arcs]
        return Round(problem, tuple(arcs))

    def _refutation(
        self, refutation: Refutation, problem: Problem, early: Sequence[int], late: Sequence[int] | frozenset[int]
    ) -> Refutation:
        rounds = []
        for found in refutation.rounds:
            rounds.append(self._round(found, problem))
            stronger = strengthen(problem, rounds[-1].arcs)
            if isinstance(stronger, Problem):
                problem = stronger
        place, names = self._places(problem), refutation.problem.names
        trap, branches = refutation.trap, []
        if trap is not None and refutation.backward:
            trap = self._trap(trap, refutation.problem.reversed(), problem.reversed(), tuple(late))
        elif trap is not None:
            trap = self._trap(trap, refutation.problem, problem, early)
        pair = None
        if refutation.pair is not None:
            u, v = (place[names[w]] for w in refutation.pair)
            pair = (u, v)
            for (a, b), branch in zip((pair, pair[::-1]), refutation.branches):
                child = strengthen(problem, [Arc(a, b, b)])
                assert isinstance(child, Problem)  # the two were unordered
                branches.append(self._refutation(branch, child, early, late))
        cycle = tuple(place[names[v]] for v in refutation.cycle)
        return Refutation(problem, tuple(rounds), trap, refutation.backward, cycle, pair, tuple(branches))


def _without_steps(problem: Problem, trap: Trap) -> int:
    """What a trap proves from the empty state, bytes; a cut for each exit."""
    pricer = Pricer(problem, births_of(problem))
    inside = bytearray(len(problem))
    for v in trap.members:
        inside[v] = 1
    return min(pricer.price(v, inside, trap.members, -1)[0] for v in trap.exits)
