"""The budgeted pass: walk through a problem at the least budget that the bounds allow.

The walk keeps a state ``S`` and a budget. While it can, it takes *safe moves* and *safe jumps*, which keep the
feasibility of the budget (and of every higher one); between them it searches depth-first for the next jump. Where a
forward trap from ``S``, or the exhausted search, shows that the budget cannot be kept, the budget rises to the proved
price. If no step was a guess, the final budget is at once a lower bound and the peak of the order walked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from peakmem.bounds import OutOfTime, Trap, forward_trap
from peakmem.cuts import births_of, cheapest_state
from peakmem.problem import Problem, State


@dataclass(frozen=True)
class Stop:
    """Why a budget below ``level`` cannot be kept: a trap from the state that the steps lead to.

    Attributes
    ----------
    steps : tuple of tuple of int
        Safe moves (one statement) and safe jumps (several) from the empty state.
    trap : Trap or None
        None when the search from there was exhausted.
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
        Complete, or empty if the pass was stopped.
    peak : int
        Peak of the order, bytes.
    bound : int
        Proved lower bound, bytes.
    stop : Stop or None
        The last proof that raised the bound.
    guesses : int
        Budget rises that were not proved.
    """

    order: list[int] = field(default_factory=list)
    peak: int = 0
    bound: int = 0
    stop: Stop | None = None
    guesses: int = 0
    nodes: int = 0
    cuts: int = 0


FOUND, EXHAUSTED, GAVE_UP = range(3)


class _Search:
    """Depth-first search from a state for the next safe jump within a budget."""

    def __init__(self, problem: Problem, state: State, births: list[tuple[int, ...]] | None) -> None:
        self.problem = problem
        self.state = state
        self.births = births
        self.nodes = 0
        self.cuts = 0
        self.blocked = 0

    def run(self, budget: int, limit: int, deadline: float | None, prune: bool) -> int:
        """Leave ``state`` at the end of a safe jump (FOUND) or where it was."""
        problem, state = self.problem, self.state
        n = len(problem)
        origin = len(state.path)
        rest = state.rest
        blocked = 1 << 62
        bit: dict[int, int] = {}
        seen: set[int] = set()
        mask = 0
        nodes = 0
        # Frames: (depth to unwind to, mask before, children not yet tried, nodes when opened)
        frames: list[tuple[int, int, list[int], int]] = []

        def bit_of(v: int) -> int:
            b = bit.get(v)
            if b is None:
                b = bit[v] = 1 << len(bit)
            return b

        while True:
            # Absorb safe moves, then open a frame or recognise the goal.
            goal = False
            moved = True
            while moved and not goal:
                moved = False
                for v in list(state.ready):
                    mem, change = state.step(v)
                    if mem <= budget and change <= 0:
                        state.push(v)
                        mask |= bit_of(v)
                        moved = True
                        if state.rest <= rest:
                            goal = True
                            break
            if len(state.path) == n:
                self.nodes += nodes
                return FOUND
            if (goal or (state.rest <= rest and mask)) and self._least(origin):
                self.nodes += nodes
                return FOUND
            if mask not in seen:
                seen.add(mask)
                nodes += 1
                if nodes >= limit:
                    self.nodes += nodes
                    self.blocked = blocked
                    state.unwind(origin)
                    return GAVE_UP
                children = []
                for v in state.ready:
                    mem, change = state.step(v)
                    if mem <= budget:
                        children.append((change, mem, v))
                    elif mem < blocked:
                        blocked = mem
                children.sort(reverse=True)
                frames.append((len(state.path), mask, [v for _, _, v in children], nodes))
            # Next child of the deepest frame that has one.
            while frames:
                depth, mask, todo, opened = frames[-1]
                state.unwind(depth)
                if prune and todo and nodes - opened > 200:
                    frames[-1] = (depth, mask, todo, 1 << 60)
                    trap = forward_trap(
                        problem, budget, start=list(state.path), raising=False, births=self.births, limit=400
                    )
                    self.cuts += trap.cuts
                    if trap.closed and trap.exits:
                        blocked = min(blocked, trap.level)
                        todo.clear()
                if todo:
                    v = todo.pop()
                    state.push(v)
                    mask |= bit_of(v)
                    break
                frames.pop()
            else:
                self.nodes += nodes
                self.blocked = blocked
                state.unwind(origin)
                return EXHAUSTED
            if deadline is not None and not nodes & 63 and monotonic() > deadline:
                state.unwind(origin)
                raise OutOfTime

    def _least(self, origin: int) -> bool:
        """Whether the state has the least rest of all down-sets between where the search began and itself."""
        state = self.state
        steps = state.path[origin:]
        here = state.rest
        state.unwind(origin)
        self.cuts += 1
        cut = cheapest_state(self.problem, state, sorted(steps), None, births=self.births)
        state.advance(steps)
        return cut.value >= here


def descend(
    problem: Problem,
    level: int,
    *,
    ceiling: int | None = None,
    effort: int = 3,
    deadline: float | None = None,
    births: list[tuple[int, ...]] | None = None,
    on_bound: Callable[[int], None] | None = None,
) -> Walk:
    """Walk through ``problem`` at the least budget.

    Parameters
    ----------
    problem : Problem
    level : int
        Proved lower bound to begin with, bytes.
    ceiling : int, optional
        Stop (with an empty order) when the budget would exceed it: no better order is to be had here.
    effort : int
        How often the search may grow tenfold before the budget rises unproved.
    deadline : float, optional
        `OutOfTime` is not raised: the walk is returned as it is, with an empty order.
    """
    walk = Walk(bound=level)
    state = State(problem)
    n = len(problem)
    budget = level
    steps: list[tuple[int, ...]] = []
    search = _Search(problem, state, births)
    try:
        while len(state.path) < n:
            _absorb(state, budget, steps)
            if len(state.path) == n:
                break
            origin = len(state.path)
            limit, window = 60, 100
            for attempt in range(effort + 1):
                outcome = search.run(budget, limit, deadline, prune=attempt > 0)
                if outcome == FOUND:
                    steps.append(tuple(state.path[origin:]))
                    break
                if outcome == EXHAUSTED:
                    budget = search.blocked
                    if not walk.guesses:
                        walk.bound = budget
                        walk.stop = Stop(budget, tuple(steps), None)
                    break
                trap = forward_trap(
                    problem,
                    budget,
                    start=list(state.path),
                    raising=False,
                    limit=window,
                    births=births,
                    deadline=deadline,
                )
                walk.cuts += trap.cuts
                if trap.closed and trap.exits:
                    budget = trap.level
                    if not walk.guesses:
                        walk.bound = budget
                        walk.stop = Stop(budget, tuple(steps), trap)
                    break
                limit, window = limit * 10, window * 4
            else:
                budget = search.blocked
                walk.guesses += 1
            if ceiling is not None and budget > ceiling:
                return walk
    except OutOfTime:
        return walk
    finally:
        walk.nodes += search.nodes
        walk.cuts += search.cuts
    walk.order = list(state.path)
    walk.peak = problem.order_peak(walk.order)
    return walk


def _absorb(state: State, budget: int, steps: list[tuple[int, ...]]) -> None:
    """Take every safe move."""
    succs = state.problem.succs
    todo = list(state.ready)
    again = True
    while again:
        again = False
        while todo:
            v = todo.pop()
            if v not in state.ready:
                continue
            mem, change = state.step(v)
            if change <= 0 and mem <= budget:
                state.push(v)
                steps.append((v,))
                todo.extend(w for w in succs[v] if w in state.ready)
                again = True
        if again:
            todo = list(state.ready)
