"""The budgeted pass: walk through a problem at the least budget that the bounds allow.

The walk keeps a state ``S`` and a budget. While it can, it takes *safe moves* and *safe jumps*, which keep the
feasibility of the budget (and of every higher one); between them it searches depth-first for the next jump. Where a
forward trap from ``S``, or the exhausted search, shows that the budget cannot be kept, the budget rises to the proved
price. If no rise was a guess, the final budget is at once a lower bound and the peak of the order walked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from peakmem.ordering import native
from peakmem.ordering.bounds import Births, Pricer, Trap, forward_trap
from peakmem.ordering.cuts import cheapest_state
from peakmem.ordering.meter import Meter, OutOfTime
from peakmem.ordering.problem import Problem, State
from peakmem.ordering.rules import ALL, Rules

PATIENCE = 200
"""States searched below one state before a trap is tried there."""

WIDTH = 50
"""Ready statements looked at per state, on average, before a search gives up."""


@dataclass(frozen=True)
class Stop:
    """Why no order stays below ``level``.

    Attributes
    ----------
    level : int
        Bytes.
    steps : tuple of tuple of int
        Safe moves (one statement) and safe jumps (several) from the empty state.
    trap : Trap or None
        The trap that closed after these steps; None when the search from there was exhausted.
    """

    level: int
    steps: tuple[tuple[int, ...], ...]
    trap: Trap | None


@dataclass
class Walk:
    """Result of a pass.

    Attributes
    ----------
    order : list of int
        Complete, or empty if the pass was given up.
    peak : int
        Peak of the order, bytes.
    bound : int
        Proved lower bound, bytes.
    stop : Stop or None
        The last proof that raised the bound.
    guesses : int
        Rises of the budget that were not proved.
    nodes, cuts : int
        States searched, minimum cuts computed.
    """

    order: list[int] = field(default_factory=list)
    peak: int = 0
    bound: int = 0
    stop: Stop | None = None
    guesses: int = 0
    nodes: int = 0
    cuts: int = 0


FOUND, EXHAUSTED, GAVE_UP = range(3)


def descend(
    problem: Problem,
    level: int,
    *,
    ceiling: int | None = None,
    effort: int = 3,
    until: int | None = None,
    meter: Meter | None = None,
    births: Births = None,
    rules: Rules = ALL,
) -> Walk:
    """Walk through ``problem`` at the least budget.

    Parameters
    ----------
    problem : Problem
    level : int
        Proved lower bound to begin with, bytes.
    ceiling : int, optional
        Give up when the budget would exceed it: no better order is to be had here.
    effort : int
        How often the search may grow tenfold before the budget rises by a guess.
    until : int, optional
        End at the first state that holds no more than this, in bytes. From ``level`` 0, and without guesses, the walk then goes
        over the least hill behind which something lower lies, as far down as it reaches, and again.
    meter : Meter, optional
        When it is out, the walk is returned as it is, without an order.
    births : list, optional
        `peakmem.cuts.births_of` the problem.
    """
    return _Pass(problem, births, meter or Meter(), rules).run(level, ceiling, effort, until)


class _Pass:
    def __init__(self, problem: Problem, births: Births, meter: Meter, rules: Rules) -> None:
        self.problem = problem
        self.births = births
        self.meter = meter
        self.rules = rules
        self.state = State(problem)
        self.pricer = Pricer(problem, births, rules)
        self.compiled: native.Search | None = None
        self.nodes = 0
        self.cuts = 0
        self.blocked = 0
        """Least memory of a statement that the last search could not afford."""

    def run(self, level: int, ceiling: int | None, effort: int, until: int | None) -> Walk:
        walk = Walk(bound=level)
        state, n = self.state, len(self.problem)
        budget = level
        steps: list[tuple[int, ...]] = []
        low = -1 if until is None else until
        try:
            while len(state.path) < n and state.rest > low:
                self.meter.check()
                if self.rules.safe_moves:
                    done = len(state.path)
                    self._take_safe_moves(budget, steps)
                    self.meter.spend(len(state.path) - done)
                    if len(state.path) == n or state.rest <= low:
                        break
                origin = len(state.path)
                limit, window = 60, 100
                for attempt in range(effort + 1):
                    outcome = self._search(budget, limit, attempt > 0)
                    if outcome == FOUND:
                        steps.append(tuple(state.path[origin:]))
                        break
                    if outcome == EXHAUSTED:
                        budget = self.blocked
                        if not walk.guesses:
                            walk.bound, walk.stop = budget, Stop(budget, tuple(steps), None)
                        break
                    trap = self._trap(budget, window)
                    if trap.exits and (until is None or self._no_lower(trap)):
                        budget = trap.level
                        if not walk.guesses:
                            walk.bound, walk.stop = budget, Stop(budget, tuple(steps), trap)
                        break
                    limit, window = limit * 10, window * 4
                else:
                    budget = self.blocked
                    walk.guesses += 1
                if ceiling is not None and budget > ceiling:
                    return walk
        except OutOfTime:
            return walk
        finally:
            walk.nodes, walk.cuts = self.nodes, self.cuts + self.pricer.cuts
        walk.order = list(state.path)
        walk.peak = self.problem.order_peak(walk.order)
        return walk

    def _trap(self, budget: int, window: int, steps: Sequence[int] = ()) -> Trap:
        return forward_trap(
            self.problem,
            budget,
            state=self.state,
            steps=steps,
            pricer=self.pricer,
            raising=False,
            limit=window,
            meter=self.meter,
            rules=self.rules,
        )

    def _no_lower(self, trap: Trap) -> bool:
        """Whether no state from here within the trap holds less: then what is lower lies behind its exits."""
        state = self.state
        inside = [v for v in trap.members if not state.inside[v]]
        self.cuts += 1
        self.meter.spend(len(inside))
        return cheapest_state(self.problem, state, inside, None, births=self.births).value >= state.rest

    def _take_safe_moves(self, budget: int, steps: list[tuple[int, ...]]) -> None:
        state, succs = self.state, self.problem.succs
        todo = list(state.ready)
        while todo:
            moved = False
            while todo:
                v = todo.pop()
                if v not in state.ready:
                    continue
                mem, change = state.step(v)
                if change <= 0 and mem <= budget:
                    state.push(v)
                    steps.append((v,))
                    todo.extend(w for w in succs[v] if w in state.ready)
                    moved = True
            if moved:  # what was too dear or too large before may fit now
                todo = list(state.ready)

    def _search(self, budget: int, limit: int, patient: bool) -> int:
        """Depth-first for the next safe jump; leaves ``state`` at its end (FOUND) or where it was."""
        rest = self.state.rest if self.rules.safe_jumps else -1
        patience = PATIENCE if patient and self.rules.search_traps else 1 << 61
        kernel = native.kernel()
        if self.compiled is None and kernel is not None:
            self.compiled = kernel.search(self.problem)
        if self.compiled is None:
            outcome = self._python(budget, rest, limit, patience)
        else:
            outcome = self._native(self.compiled, budget, rest, limit, patience)
        self.state.settle()
        return outcome

    def _native(self, search: native.Search, budget: int, rest: int, limit: int, patience: int) -> int:
        """`_python`, compiled: ``state`` stays where the search began until it is found."""
        state, rules = self.state, self.rules

        def trap(steps: list[int]) -> int:
            level = self._exits(budget, steps)
            return -1 if level is None else level

        try:
            outcome, steps = search.run(
                state.path, budget, rest, limit, WIDTH * limit, patience, rules.safe_moves, rules.memo, self.meter, self._least, trap
            )
        finally:
            self.nodes += search.nodes
        self.blocked = search.blocked
        state.advance(steps)
        return {native.FOUND: FOUND, native.EXHAUSTED: EXHAUSTED, native.GAVE_UP: GAVE_UP}[outcome]

    def _exits(self, budget: int, steps: Sequence[int] = ()) -> int | None:
        """The price of the exits of a trap around the state that ``steps`` lead to, if there is one that is not too large."""
        trap = self._trap(budget, 400, steps)
        return trap.level if trap.exits else None

    def _python(self, budget: int, rest: int, limit: int, patience: int) -> int:
        problem, state, rules = self.problem, self.state, self.rules
        n = len(problem)
        origin = len(state.path)
        blocked = 1 << 62
        bit: dict[int, int] = {}
        seen: set[int] = set()
        mask = 0
        nodes = work = told = 0
        # Frames: depth to unwind to, mask there, children not yet tried, states searched when it was opened.
        frames: list[tuple[int, int, list[int], int]] = []

        def take(v: int) -> None:
            nonlocal mask
            state.push(v)
            b = bit.get(v)
            if b is None:
                b = bit[v] = 1 << len(bit)
            mask |= b

        try:
            while True:
                moved = rules.safe_moves
                looked: list[tuple[int, int, int]] | None = None
                while moved and (state.rest > rest or not mask):
                    moved = False
                    looked = []
                    for v in sorted(state.ready):
                        mem, change = state.step(v)
                        if mem <= budget and change <= 0:
                            take(v)
                            moved = True
                            if state.rest <= rest:
                                break
                        else:
                            looked.append((change, mem, v))
                if len(state.path) == n:
                    return FOUND
                if mask and state.rest <= rest:
                    steps, here = state.path[origin:], state.rest
                    state.unwind(origin)
                    least = self._least(steps, here)
                    state.advance(steps)
                    if least:
                        return FOUND
                if mask not in seen:
                    if rules.memo:
                        seen.add(mask)
                    nodes += 1
                    work += len(state.ready)
                    if nodes >= limit or work > WIDTH * limit:
                        self.blocked = blocked
                        state.unwind(origin)
                        return GAVE_UP
                    if not nodes & 63:
                        self.meter.spend(work - told)
                        told = work
                        self.meter.check()
                    if moved or looked is None:  # else the last look saw all of them as they are now
                        looked = [(change, mem, v) for v in state.ready for mem, change in (state.step(v),)]
                    blocked = min([blocked, *(mem for _, mem, _ in looked if mem > budget)])
                    children = sorted((child for child in looked if child[1] <= budget), reverse=True)
                    frames.append((len(state.path), mask, [v for _, _, v in children], nodes))
                while frames:
                    depth, mask, todo, opened = frames[-1]
                    state.unwind(depth)
                    if todo and nodes - opened > patience:
                        frames[-1] = (depth, mask, todo, 1 << 60)
                        level = self._exits(budget)
                        if level is not None:
                            blocked = min(blocked, level)
                            todo.clear()
                    if todo:
                        take(todo.pop())
                        break
                    frames.pop()
                else:
                    self.blocked = blocked
                    return EXHAUSTED
        finally:
            self.nodes += nodes
            self.meter.spend(work - told)

    def _least(self, steps: list[int], rest: int) -> bool:
        """Whether ``rest`` is the least of all down-sets between the state and the one that ``steps`` lead to, whose it is."""
        self.cuts += 1
        self.meter.spend(len(steps))
        return cheapest_state(self.problem, self.state, sorted(steps), None, births=self.births).value >= rest
