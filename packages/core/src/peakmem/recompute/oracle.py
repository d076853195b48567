"""Reference solvers for small programs: Dijkstra over machine states, with no fixing and no dominance rule.

They are slow on purpose and exist to be compared with. `shortest_path` answers the same question as `solve`;
`free_order` lets the base order vary as well, which `solve` does not.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator

from peakmem.errors import UsageError
from peakmem.program import Program
from peakmem.recompute.problem import Problem

LARGEST = 12
"""Most statements the reference solvers accept."""

State = tuple[int, int, tuple[int, ...]]
"""Progress (base steps done, or the set of statements done), present buffers as a bit set, reruns of each group."""


def shortest_path(problem: Problem, target: int) -> int | None:
    """Least extra MACs for the base order by a shortest path over (step, present set, run counts).

    Every drop, every rerun and every base run is one edge. None if ``target`` is out of reach.
    """
    program, n = problem.program, len(problem.order)
    _small(program)
    sizes = [b.size for b in program.buffers]
    weigh = _Weigher(sizes)
    groups = _groups(problem)

    def edges(state: State) -> Iterator[tuple[int, State]]:
        step, present, counts = state
        yield from ((0, (step, rest, counts)) for rest in _drops(program, present))
        for u in problem.units:
            i = groups[u.group]
            if u.ready < step <= u.deadline and counts[i] + 1 < problem.cap:
                sources = _mask(u.sources)
                if present & sources == sources and weigh(present) + u.charge <= target:
                    after = present | _mask(u.delivers)
                    yield u.cost, (step, after, (*counts[:i], counts[i] + 1, *counts[i + 1 :]))
        v = problem.order[step]
        old = _mask(b for b in program.touched[v] if problem.born[b] < step and sizes[b])
        fresh = _mask(b for b in program.touched[v] if problem.born[b] == step and sizes[b])
        if present & old == old and weigh(present | fresh) + problem.charged[v] <= target:
            yield 0, (step + 1, present | fresh, counts)

    start = (0, _entry(program), (0,) * len(groups))
    return _dijkstra(start, lambda s: s[0] == n, edges)


def free_order(program: Program, target: int, *, cap: int = 2, max_extra_macs: int | None = None) -> int | None:
    """Least extra MACs over *all* base orders.

    Raises
    ------
    UsageError
        Where some buffer has several writers or an input is written: which reruns are allowed would then depend on
        the order.
    """
    _small(program)
    problem = Problem(program, tuple(range(len(program))), cap=cap)
    if any(len(w) > (b.kind != "input") for w, b in zip(problem.writers, program.buffers)):
        raise UsageError("free order: the program has buffers that are written twice; give one without")
    sizes = [b.size for b in program.buffers]
    weigh = _Weigher(sizes)
    groups = _groups(problem)
    everything = (1 << len(program)) - 1
    before = [_mask(p) for p in program.predecessors]

    def edges(state: State) -> Iterator[tuple[int, State]]:
        done, present, counts = state
        yield from ((0, (done, rest, counts)) for rest in _drops(program, present))
        for u in problem.units:
            i = groups[u.group]
            if done >> u.members[0] & 1 and counts[i] + 1 < cap:
                sources = _mask(u.sources)
                if present & sources == sources and weigh(present) + u.charge <= target:
                    after = present | _mask(u.delivers)
                    yield u.cost, (done, after, (*counts[:i], counts[i] + 1, *counts[i + 1 :]))
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

    start = (0, _entry(program), (0,) * len(groups))
    least = _dijkstra(start, lambda s: s[0] == everything, edges)
    return None if least is None or (max_extra_macs is not None and least > max_extra_macs) else least


class _Weigher:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.known: dict[int, int] = {}

    def __call__(self, present: int) -> int:
        if present not in self.known:
            self.known[present] = sum(s for b, s in enumerate(self.sizes) if present >> b & 1)
        return self.known[present]


def _groups(problem: Problem) -> dict[int, int]:
    return {g: i for i, g in enumerate(sorted({u.group for u in problem.units}))}


def _small(program: Program) -> None:
    if len(program) > LARGEST:
        raise UsageError(f"reference solver: {len(program)} statements are more than the {LARGEST} it can take")


def _mask(bits: Iterable[int]) -> int:
    result = 0
    for b in bits:
        result |= 1 << b
    return result


def _entry(program: Program) -> int:
    return _mask(
        b
        for b, x in enumerate(program.buffers)
        if x.kind == "input" and x.size and (x.pinned or program.touchers[b])
    )


def _drops(program: Program, present: int) -> Iterator[int]:
    for b, x in enumerate(program.buffers):
        if present >> b & 1 and not x.pinned:
            yield present & ~(1 << b)


def _dijkstra(
    start: State, final: Callable[[State], bool], edges: Callable[[State], Iterator[tuple[int, State]]]
) -> int | None:
    order = itertools.count()
    best = {start: 0}
    queue = [(0, next(order), start)]
    while queue:
        cost, _, state = heapq.heappop(queue)
        if cost > best[state]:
            continue
        if final(state):
            return cost
        for price, then in edges(state):
            if cost + price < best.get(then, cost + price + 1):
                best[then] = cost + price
                heapq.heappush(queue, (cost + price, next(order), then))
    return None
