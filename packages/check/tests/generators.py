"""Random small programs, random orders, and long programs of a chosen width: tests of all packages and benchmarks use them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from peakmem_check.model import Buffer, Program, Statement


def random_program(
    seed: int,
    statements: int,
    *,
    several_outputs: bool = False,
    in_place: bool = False,
    impure: bool = False,
    reduced: bool = False,
) -> Program:
    """A small random program, the same for the same arguments.

    Parameters
    ----------
    seed, statements : int
    several_outputs : bool
        Some statements write two buffers.
    in_place : bool
        Some statements rewrite a buffer that they read.
    impure : bool
        Some statements may not run twice.
    reduced : bool
        Dependences that others imply are left out, as some adapters do.
    """
    rng = random.Random(seed)
    buffers = [
        Buffer(f"in{i}", rng.randint(0, 6), "input", rng.random() < 0.5) for i in range(rng.randint(1, 2))
    ]
    writers: list[list[int]] = [[] for _ in buffers]
    readers: list[list[int]] = [[] for _ in buffers]
    rows: list[Statement] = []
    for v in range(statements):
        pool = list(range(len(buffers)))
        if rng.random() < 0.6:
            pool = pool[-5:]
        reads = rng.sample(pool, min(rng.randint(1, 3), len(pool)))
        dependences = {w for b in reads for w in writers[b]}
        writes: list[int] = []
        if in_place and rng.random() < 0.35:
            own = [b for b in reads if buffers[b].kind != "input"]
            if own:
                writes.append(rng.choice(own))
                dependences.update(readers[writes[0]])
        if not writes or rng.random() < 0.2:
            for _ in range(2 if several_outputs and rng.random() < 0.25 else 1):
                writes.append(len(buffers))
                buffers.append(Buffer(f"b{len(buffers)}", rng.randint(1, 9)))
                writers.append([])
                readers.append([])
        rows.append(
            Statement(
                f"s{v}",
                rng.choice("AB"),
                tuple(reads),
                tuple(writes),
                tuple(sorted(dependences)),
                workspace=rng.choice([0, 0, 1, 3]),
                cost=rng.choice([0, 1, 2, 5, 9]),
                pure=not impure or rng.random() < 0.85,
            )
        )
        for b in reads:
            if b not in writes:
                readers[b].append(v)
        for b in writes:
            writers[b].append(v)
            readers[b] = []
    if reduced:
        rows = _reduced(rows)
    last = set(rows[-1].writes) if rows else set()
    kept = [
        Buffer(b.name, b.size, "output", True)
        if b.kind != "input" and (i in last or rng.random() < 0.1)
        else b
        for i, b in enumerate(buffers)
    ]
    return Program(tuple(kept), tuple(rows))


def _reduced(rows: Sequence[Statement]) -> list[Statement]:
    above: list[set[int]] = []
    result = []
    for s in rows:
        implied = {a for u in s.dependences for a in above[u]}
        above.append(implied | set(s.dependences))
        result.append(replace(s, dependences=tuple(u for u in s.dependences if u not in implied)))
    return result


def random_order(seed: int, program: Program) -> tuple[int, ...]:
    """A random order that honours the dependences."""
    rng = random.Random(seed)
    order: list[int] = []
    left = set(range(len(program)))
    while left:
        ready = [v for v in sorted(left) if left.isdisjoint(program.predecessors[v])]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return tuple(order)


def ladder(rungs: int, width: int, *, seed: int = 0) -> Program:
    """A long program whose retention graph has a chosen width, for benchmarks.

    ``rungs`` stages in a row; in each, ``width`` cheap values are made from the stage's value, a wide statement is the
    local peak, and then the values are read in reverse. Only the cheap values may be made again, so no stage looks
    back further than its own value.
    """
    rng = random.Random(seed)
    buffers = [Buffer("x", 4, "input", True)]
    rows: list[Statement] = []

    def add(name: str, size: int, reads: Sequence[int], makers: Sequence[int], cost: int, workspace: int = 0) -> int:
        buffers.append(Buffer(name, size))
        rows.append(
            Statement(
                name, "S", tuple(reads), (len(buffers) - 1,), tuple(sorted(set(makers))), workspace, cost, name[0] == "k"
            )
        )
        return len(buffers) - 1

    made = {0: -1}

    def maker(b: int) -> list[int]:
        return [made[b]] if made[b] >= 0 else []

    stage = 0
    for r in range(rungs):
        keep = []
        for w in range(width):
            b = add(f"k{r}.{w}", rng.randint(4, 12), [stage], maker(stage), rng.randint(1, 9))
            made[b] = len(rows) - 1
            keep.append(b)
        wide = add(f"w{r}", 8, [stage], [*maker(stage), *(made[b] for b in keep)], 50, workspace=4 * width)
        made[wide] = len(rows) - 1
        for w in range(width - 1, -1, -1):
            after = add(f"j{r}.{w}", 4, [wide, keep[w]], [made[wide], made[keep[w]]], 1)
            made[after] = len(rows) - 1
            wide = after
        stage = wide
    buffers[stage] = Buffer(buffers[stage].name, buffers[stage].size, "output", True)
    return Program(tuple(buffers), tuple(rows))
