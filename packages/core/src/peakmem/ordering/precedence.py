"""Precedence propagation: what a budget forces.

Under a budget B, if every state at which ``v`` could run without ``u`` is too dear, every order within B runs ``u`` before
``v``; if every such state with ``u`` is too dear, ``v`` before ``u``. The arcs found hold for all orders within B. Added to
the DAG they make cuts dearer and traps tighter, so rounds are repeated. A cycle, a statement that is too dear everywhere,
or a trap in the strengthened DAG refutes B. Where nothing new follows, *branching* goes on: two unordered statements are
ordered one way and the other, and both must be refuted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any

from peakmem.ordering.bounds import Trap, forward_trap, statement_trap
from peakmem.ordering.cuts import Cut, births_of, cheapest_state
from peakmem.ordering.meter import Meter
from peakmem.ordering.problem import Problem, State
from peakmem.ordering.rules import ALL, Rules


@dataclass(frozen=True)
class Arc:
    """``before`` runs ahead of ``after`` in every order within the budget, as a cut at the statement ``at`` shows."""

    before: int
    after: int
    at: int


@dataclass(frozen=True)
class Round:
    """Arcs that one DAG forces; ids are those of ``problem``.

    Attributes
    ----------
    problem : Problem
    arcs : tuple of Arc
    dear : int or None
        A statement that exceeds the budget at every state; then nothing more is needed.
    cuts : int
        Minimum cuts computed.
    """

    problem: Problem
    arcs: tuple[Arc, ...]
    dear: int | None = None
    cuts: int = 0

    def reversed(self) -> Round:
        """The same arcs in the mirror image."""
        top = len(self.problem) - 1
        arcs = tuple(Arc(top - a.after, top - a.before, top - a.at) for a in self.arcs)
        return Round(self.problem.reversed(), arcs, None if self.dear is None else top - self.dear)


class Closure:
    """Ancestors and descendants of every statement as bit masks, and cuts between masks."""

    def __init__(self, problem: Problem) -> None:
        n = len(problem)
        self.problem = problem
        self.births = births_of(problem)
        self.ancestors = _closure(problem.preds, range(n))
        self.descendants = _closure(problem.succs, range(n - 1, -1, -1))
        self.everything = (1 << n) - 1
        self.state = State(problem)
        self.cuts = 0

    def free(self, v: int) -> int:
        """Statements that may run before or after v."""
        return self.everything & ~(self.ancestors[v] | self.descendants[v] | 1 << v)

    def cut(self, v: int, lower: int, upper: int, *, want_flow: bool = False) -> Cut:
        """``cut(v | lower, upper)``."""
        self.cuts += 1
        self.state.unwind(0)
        self.state.advance(members(lower))
        return cheapest_state(
            self.problem, self.state, members(upper & ~lower), v, births=self.births, want_flow=want_flow
        )

    def interval(self, arc: Arc) -> tuple[int, int]:
        """The states at ``arc.at`` that the arc excludes: (L, U)."""
        v = arc.at
        lower, upper = self.ancestors[v], self.ancestors[v] | self.free(v)
        if v == arc.after:
            return lower, upper & ~(1 << arc.before | self.descendants[arc.before])
        return lower | 1 << arc.after | self.ancestors[arc.after], upper


def members(mask: int) -> list[int]:
    """Members of a bit mask, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def find_arcs(
    problem: Problem, budget: int, candidates: Iterable[int] | None = None, meter: Meter | None = None
) -> Round:
    """Every arc that a single cut at one of ``candidates`` (default: all statements) forces under ``budget``.

    Each state found for v answers one of the two questions (may u be absent? may u be present?) for every u at once, so
    most questions need no cut of their own. At most 2 n cuts a candidate.
    """
    meter = meter or Meter()
    closure = Closure(problem)
    arcs: dict[tuple[int, int], Arc] = {}
    for v in range(len(problem)) if candidates is None else candidates:
        lower = closure.ancestors[v]
        free = closure.free(v)
        cut = closure.cut(v, lower, lower | free)
        if cut.value > budget:
            return Round(problem, (), v, closure.cuts)
        chosen = _mask(cut.chosen)
        present, absent = chosen, free & ~chosen  # statements known to be possible before v, after v
        for u in members(free):
            meter.check()
            bit = 1 << u
            for known, arc in ((absent, Arc(u, v, v)), (present, Arc(v, u, v))):
                if known & bit:
                    continue
                low, high = closure.interval(arc)
                cut = closure.cut(v, low, high)
                meter.spend(len(problem))
                if cut.value > budget:
                    arcs.setdefault((arc.before, arc.after), arc)
                else:
                    chosen = _mask(cut.chosen) | low & free
                    present |= chosen
                    absent |= free & ~chosen
    return Round(problem, tuple(arcs.values()), None, closure.cuts)


def strengthen(problem: Problem, arcs: Sequence[Arc]) -> Problem | list[int]:
    """The problem with the arcs added and its statements renumbered; or, if that is cyclic, a cycle (in its ids)."""
    n = len(problem)
    preds = [set(p) for p in problem.preds]
    for arc in arcs:
        preds[arc.after].add(arc.before)
    succs: list[list[int]] = [[] for _ in range(n)]
    for v, before in enumerate(preds):
        for u in before:
            succs[u].append(v)
    missing = [len(p) for p in preds]
    ready = [v for v in range(n) if not missing[v]]
    heapify(ready)
    order: list[int] = []
    while ready:
        v = heappop(ready)
        order.append(v)
        for w in succs[v]:
            missing[w] -= 1
            if not missing[w]:
                heappush(ready, w)
    if len(order) < n:
        return _cycle(preds, {v for v in range(n) if missing[v]})
    new = [0] * n
    for i, v in enumerate(order):
        new[v] = i
    return replace(
        problem,
        preds=[tuple(sorted(new[u] for u in preds[v])) for v in order],
        succs=[tuple(sorted(new[w] for w in succs[v])) for v in order],
        touched=[problem.touched[v] for v in order],
        touchers=[tuple(sorted(new[t] for t in row)) for row in problem.touchers],
        workspace=[problem.workspace[v] for v in order],
        names=[problem.names[v] for v in order],
        gains=[problem.gains[v] for v in order],
    )


def _cycle(preds: Sequence[set[int]], stuck: set[int]) -> list[int]:
    """Some cycle among statements each of which has a predecessor in ``stuck``, in the direction of the arcs."""
    v = min(stuck)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while v not in seen:
        seen[v] = len(walk)
        walk.append(v)
        v = min(u for u in preds[v] if u in stuck)
    return walk[seen[v] :][::-1]


def _closure(rows: Sequence[Sequence[int]], order: Iterable[int]) -> list[int]:
    result = [0] * len(rows)
    for v in order:
        mask = 0
        for u in rows[v]:
            mask |= result[u] | 1 << u
        result[v] = mask
    return result


def _mask(statements: Iterable[int]) -> int:
    mask = 0
    for v in statements:
        mask |= 1 << v
    return mask


@dataclass(frozen=True)
class Refutation:
    """Why no order stays within a budget: rounds of forced arcs, then a trap, a cycle, or two branches.

    Attributes
    ----------
    problem : Problem
        The DAG after the rounds, in which the rest is stated.
    rounds : tuple of Round
        Each found in the DAG that the one before left.
    trap : Trap or None
        ``backward`` tells whether it is one of the mirror image (its ids are then those of ``problem.reversed()``).
    cycle : tuple of int
        Statements of the last round's problem, each before the next and the last before the first.
    pair : tuple of int or None
        The two statements branched on; ``branches`` refute the budget with the first before the second, and the
        second before the first.
    """

    problem: Problem
    rounds: tuple[Round, ...]
    trap: Trap | None = None
    backward: bool = False
    cycle: tuple[int, ...] = ()
    pair: tuple[int, int] | None = None
    branches: tuple[Refutation, ...] = ()


@dataclass(frozen=True)
class Propagation:
    """What `propagate` ends with: a refutation, or the rounds and the DAG that they leave."""

    problem: Problem
    rounds: tuple[Round, ...]
    refutation: Refutation | None = None


def propagate(
    problem: Problem, budget: int, *, wanted: int, depth: int = 0, meter: Meter | None = None, rules: Rules = ALL
) -> Propagation:
    """Add what a budget forces until nothing new follows or the budget is refuted.

    Parameters
    ----------
    problem : Problem
    budget : int
        Bytes.
    wanted : int
        Statements looked at in each round, those that are dearest in the given order first.
    depth : int
        How many levels to branch where propagation ends: on a pair of unordered statements, both ways.
    meter : Meter, optional
        `OutOfTime` when it is out.
    """
    meter = meter or Meter()
    rounds: list[Round] = []
    while True:
        found = find_arcs(problem, budget, _dearest(problem)[:wanted], meter)
        if found.dear is not None:
            trap = statement_trap(problem, found.dear, budget + 1)
            return _refuted(problem, rounds, trap=trap)
        if not found.arcs:
            break
        rounds.append(found)
        stronger = strengthen(problem, found.arcs)
        if isinstance(stronger, list):
            return _refuted(problem, rounds, cycle=tuple(stronger))
        problem = stronger
        closed = _closed(problem, budget, meter, rules)
        if closed is not None:
            return _refuted(problem, rounds, trap=closed[0], backward=closed[1])
    if depth > 0:
        pair = _pair(problem, budget, meter)
        if pair is not None:
            branches = []
            for before, after in (pair, pair[::-1]):
                child = strengthen(problem, [Arc(before, after, after)])
                assert isinstance(child, Problem)  # the two were unordered
                closed = _closed(child, budget, meter, rules)
                if closed is not None:
                    branches.append(Refutation(child, (), closed[0], closed[1]))
                    continue
                below = propagate(child, budget, wanted=wanted, depth=depth - 1, meter=meter, rules=rules)
                if below.refutation is None:
                    return Propagation(problem, tuple(rounds))
                branches.append(below.refutation)
            return _refuted(problem, rounds, pair=pair, branches=tuple(branches))
    return Propagation(problem, tuple(rounds))


def _refuted(problem: Problem, rounds: list[Round], **why: Any) -> Propagation:
    return Propagation(problem, tuple(rounds), Refutation(problem, tuple(rounds), **why))


def _closed(problem: Problem, budget: int, meter: Meter, rules: Rules) -> tuple[Trap, bool] | None:
    """A trap that closes above the budget from one of the ends, and whether that is the far end."""
    for backward in (False, True):
        side = problem.reversed() if backward else problem
        trap = forward_trap(side, budget, births=births_of(side), raising=False, meter=meter, rules=rules)
        if trap.exits:
            return trap, backward
    return None


def _dearest(problem: Problem) -> list[int]:
    """Statements by the memory they need in the given order, most first: those force others."""
    state = State(problem)
    memory = []
    for v in range(len(problem)):
        memory.append((-state.mem(v), v))
        state.push(v)
    return [v for _, v in sorted(memory)]


def _pair(problem: Problem, budget: int, meter: Meter) -> tuple[int, int] | None:
    """The unordered pair (u, v) for which the dearer of both ways costs v most on the cheaper way."""
    closure = Closure(problem)
    best: tuple[int, tuple[int, int] | None] = (-1, None)
    for v in _dearest(problem)[:8]:
        for u in members(closure.free(v))[:24]:
            meter.check()
            meter.spend(2 * len(problem))
            both = [closure.cut(v, *closure.interval(arc)).value for arc in (Arc(u, v, v), Arc(v, u, v))]
            best = max(best, (min(both), (u, v)), key=lambda item: item[0])
    return best[1]
