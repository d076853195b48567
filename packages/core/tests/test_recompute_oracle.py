"""A shortest path over machine states, to which the solvers are compared; and itself compared with all base orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from generators import random_program
from peakmem.model import Program
from peakmem.transform.recompute import RerunProblem, floor, trace
from peakmem.transform.recompute.eviction import mask_of
from peakmem.transform.recompute.oracle import (
    Rows,
    State,
    Weigher,
    dijkstra,
    drops,
    entry,
    free_order,
    groups_of,
    small,
)


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
