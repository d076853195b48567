"""Random orders of programs, and random enlargements by statements that run again."""

from __future__ import annotations

import random
from typing import Any


def random_order(program: Any, rng: random.Random) -> tuple[int, ...]:
    """A topological order."""
    waiting = [len(p) for p in program.predecessors]
    ready = [v for v, w in enumerate(waiting) if not w]
    order = []
    while ready:
        v = ready.pop(rng.randrange(len(ready)))
        order.append(v)
        for w in program.successors[v]:
            waiting[w] -= 1
            if not waiting[w]:
                ready.append(w)
    return tuple(order)


def random_expansion(program: Any, rng: random.Random) -> Any:
    """The program with random reruns for a random base order, most of them of no use."""
    from peakmem.recompute.expand import expand
    from peakmem.recompute.plan import make_plan
    from peakmem.recompute.problem import Problem

    problem = Problem(program, random_order(program, rng), cap=3)
    share = rng.choice([0.05, 0.2])
    count: dict[int, int] = {}
    reruns = []
    for gap in range(len(problem.order)):
        for u, unit in enumerate(problem.units):
            if unit.ready < gap <= unit.deadline and count.get(unit.group, 0) < 2 and rng.random() < share:
                count[unit.group] = count.get(unit.group, 0) + 1
                reruns.append((gap, u))
    return expand(make_plan(problem, reruns))
