"""The least price over every base order of a small program: Dijkstra over machine states, with no fixing and no
dominance rule. It is slow on purpose.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import TypeVar

from peakmem.model import Program, UsageError
from peakmem.system import clock
from peakmem.transform.recompute.eviction import mask_of
from peakmem.transform.recompute.reruns import RerunProblem

LARGEST = 12
"""Most statements the reference solvers accept."""

State = TypeVar("State", bound=Hashable)


def free_order(
    program: Program, target: int, *, cap: int = 2, max_extra_macs: int | None = None, deadline: float | None = None
) -> int | None:
    """Least extra MACs over *all* base orders; None if none of them reaches ``target``.

    States are the set of statements done, the set of buffers present, and the reruns of each statement.

    Raises
    ------
    TimeoutError
        When the ``deadline`` (a moment of `peakmem.system.clock`) passes first.
    UsageError
        Where some buffer has several writers or an input is written: which reruns are allowed would then depend on
        the order.
    """
    small(program)
    problem = RerunProblem(program, tuple(range(len(program))), cap=cap)
    if any(len(w) > (b.kind != "input") for w, b in zip(problem.writers, program.buffers)):
        raise UsageError("free order: the program has buffers that are written twice; give one without")
    sizes = [b.size for b in program.buffers]
    everything = (1 << len(program)) - 1
    before = [mask_of(p) for p in program.predecessors]
    droppable = [1 << b for b, x in enumerate(program.buffers) if not x.pinned]

    @cache
    def weigh(present: int) -> int:
        return sum(s for b, s in enumerate(sizes) if present >> b & 1)

    def edges(state: tuple[int, int, tuple[int, ...]]) -> Iterator[tuple[int, tuple[int, int, tuple[int, ...]]]]:
        done, present, counts = state
        yield from ((0, (done, present ^ b, counts)) for b in droppable if present & b)
        for k, u in enumerate(problem.units):  # one statement each, since nothing is written twice
            allowed = done >> u.members[0] & 1 and counts[k] + 1 < cap and not mask_of(u.sources) & ~present
            if allowed and weigh(present) + u.inner[0] <= target:
                again = (*counts[:k], counts[k] + 1, *counts[k + 1 :])
                yield u.cost, (done, present | mask_of(u.delivers), again)
        for v in range(len(program)):
            if not done >> v & 1 and done & before[v] == before[v]:
                old = fresh = 0
                for b in program.touched[v]:
                    if sizes[b]:
                        if program.buffers[b].kind == "input" or any(done >> t & 1 for t in program.touchers[b]):
                            old |= 1 << b
                        else:
                            fresh |= 1 << b
                if present & old == old and weigh(present | fresh) + problem.charged[v] <= target:
                    yield 0, (done | 1 << v, present | fresh, counts)

    start = (0, entry(program), (0,) * len(problem.units))
    least = dijkstra(start, lambda s: s[0] == everything, edges, deadline)
    return None if least is None or (max_extra_macs is not None and least > max_extra_macs) else least


def small(program: Program) -> None:
    """Refuse a program that is too large for a reference solver."""
    if len(program) > LARGEST:
        raise UsageError(f"reference solver: {len(program)} statements are more than the {LARGEST} it can take")


def entry(program: Program) -> int:
    """The set of buffers that are present before anything runs."""
    return mask_of(b for b in program.entry if program.buffers[b].size)


def dijkstra(
    start: State,
    final: Callable[[State], bool],
    edges: Callable[[State], Iterator[tuple[int, State]]],
    deadline: float | None = None,
) -> int | None:
    """The price of the cheapest way from ``start`` to a final state."""
    order = itertools.count()
    best = {start: 0}
    queue = [(0, next(order), start)]
    while queue:
        cost, count, state = heapq.heappop(queue)
        if deadline is not None and count % 64 == 0 and clock.late(deadline):
            raise TimeoutError
        if cost > best[state]:
            continue
        if final(state):
            return cost
        for price, then in edges(state):
            if cost + price < best.get(then, cost + price + 1):
                best[then] = cost + price
                heapq.heappush(queue, (cost + price, next(order), then))
    return None
