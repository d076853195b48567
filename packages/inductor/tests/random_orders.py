"""Random orders of programs, and random enlargements by statements that run again."""

from __future__ import annotations

import random
from typing import Any

import generators


def random_order(program: Any, rng: random.Random) -> tuple[int, ...]:
    """A random order that honours the dependences."""
    return generators.random_order(rng.randrange(1 << 30), program)


def random_expansion(program: Any, rng: random.Random) -> Any:
    """The program with random reruns for a random base order, most of them of no use."""
    from peakmem.transform.recompute.expand import expand
    from peakmem.transform.recompute.plan import make_plan
    from peakmem.transform.recompute.reruns import RerunProblem

    problem = RerunProblem(program, random_order(program, rng), cap=3)
    share = rng.choice([0.05, 0.2])
    count: dict[int, int] = {}
    reruns = []
    for gap in range(len(problem.order)):
        for u, unit in enumerate(problem.units):
            if unit.ready < gap <= unit.deadline and count.get(unit.group, 0) < 2 and rng.random() < share:
                count[unit.group] = count.get(unit.group, 0) + 1
                reruns.append((gap, u))
    return expand(make_plan(problem, reruns))
