"""A shortest path over machine states, to which the solvers are compared; and itself compared with all base orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from generators import random_program
from peakmem.model import Program
from peakmem.transform.recompute import RerunProblem, floor, trace
from peakmem.transform.recompute.eviction import mask_of
from peakmem.transform.recompute.oracle import dijkstra, entry, free_order, small

State = tuple[int, int, tuple[int, ...], int, int]
"""Base steps done, present buffers as a bit set, reruns of each group; while
a row of reruns is under way, also the unit and how many of its members have run. Bits from the number of buffers on
are fresh buffers of the row."""


def shortest_path(problem: RerunProblem, target: int) -> int | None:
    """Least extra MACs for the base order by a shortest path over (step, present set, run counts).

    Every drop, every rerun *of a statement* and every base run is one edge; what a unit is, is taken from its list of
    members alone. None if ``target`` is out of reach.
    """
    program, n = problem.program, len(problem.order)
    small(program)
    sizes = [b.size for b in program.buffers]
    weigh = Weigher(sizes)
    groups = groups_of(problem)
    rows = Rows(problem, target, weigh)

    def edges(state: State) -> Iterator[tuple[int, State]]:
        step, present, counts, unit, done = state
        yield from ((0, (step, rest, counts, unit, done)) for rest in drops(program, present))
        if done:
            yield from rows.proceed(state)
            return
        for k, u in enumerate(problem.units):
            i = groups[u.group]
            if u.ready < step <= u.deadline and counts[i] + 1 < problem.cap:
                yield from rows.proceed((step, present, (*counts[:i], counts[i] + 1, *counts[i + 1 :]), k, 0))
        v = problem.order[step]
        old = mask_of(b for b in program.touched[v] if problem.born[b] < step and sizes[b])
        fresh = mask_of(b for b in program.touched[v] if problem.born[b] == step and sizes[b])
        if present & old == old and weigh(present | fresh) + problem.charged[v] <= target:
            yield 0, (step + 1, present | fresh, counts, 0, 0)

    start = (0, entry(program), (0,) * len(groups), 0, 0)
    return dijkstra(start, lambda s: s[0] == n, edges)


class Rows:
    """Reruns of a unit, statement by statement."""

    def __init__(self, problem: RerunProblem, target: int, weigh: Weigher) -> None:
        self.problem, self.target, self.weigh = problem, target, weigh
        self.buffers = len(problem.program.buffers)

    def proceed(self, state: State) -> Iterator[tuple[int, State]]:
        """The next member of the row; after the last one, fresh buffers take the place of what they bring back."""
        step, present, counts, k, done = state
        problem, unit = self.problem, self.problem.units[k]
        v = unit.members[done]
        mine = {b for m in unit.members for b in problem.writes[m]}
        read = written = 0
        for b in problem.program.touched[v]:
            if problem.program.buffers[b].size:
                bit = 1 << (b + self.buffers if b in mine else b)
                if b in problem.writes[v] and not any(b in problem.program.touched[m] for m in unit.members[:done]):
                    written |= bit
                else:
                    read |= bit
        if present & read != read or self.weigh(present | written) + problem.charged[v] > self.target:
            return
        present |= written
        if done + 1 < len(unit.members):
            yield problem.program.statements[v].cost, (step, present, counts, k, done + 1)
            return
        back = (present >> self.buffers) & mask_of(unit.delivers)
        yield problem.program.statements[v].cost, (step, present & ((1 << self.buffers) - 1) | back, counts, 0, 0)


class Weigher:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = [*sizes, *sizes]
        self.known: dict[int, int] = {}

    def __call__(self, present: int) -> int:
        if present not in self.known:
            self.known[present] = sum(s for b, s in enumerate(self.sizes) if present >> b & 1)
        return self.known[present]


def groups_of(problem: RerunProblem) -> dict[int, int]:
    return {g: i for i, g in enumerate(sorted({u.group for u in problem.units}))}


def drops(program: Program, present: int) -> Iterator[int]:
    fresh = len(program.buffers)
    for b, x in enumerate(program.buffers):
        if present >> b & 1 and not x.pinned:
            yield present & ~(1 << b)
        if present >> (b + fresh) & 1:
            yield present & ~(1 << (b + fresh))


def test_where_the_dependences_force_the_order_every_base_order_is_this_one() -> None:
    reached = missed = 0
    for seed in range(40):
        program = random_program(seed, 6)
        rows = tuple(
            replace(s, dependences=tuple(sorted({*s.dependences, *range(max(0, v - 1), v)})))
            for v, s in enumerate(program.statements)
        )
        forced = Program(program.buffers, rows)
        problem = RerunProblem(forced, tuple(range(6)))
        for target in range(floor(forced).size, trace(problem, ()).peak):
            price = shortest_path(problem, target)
            assert free_order(forced, target) == price
            reached, missed = reached + (price is not None), missed + (price is None)
    assert reached and missed
