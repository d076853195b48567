"""The least price over every base order of a small program: Dijkstra over machine states, with no fixing and no
dominance rule. It is slow on purpose.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator

from peakmem.model import Program, UsageError
from peakmem.transform.recompute.eviction import mask_of
from peakmem.transform.recompute.reruns import RerunProblem

LARGEST = 12
"""Most statements the reference solvers accept."""

State = tuple[int, int, tuple[int, ...], int, int]
"""Progress (base steps done, or the set of statements done), present buffers as a bit set, reruns of each group; while
a row of reruns is under way, also the unit and how many of its members have run. Bits from the number of buffers on
are fresh buffers of the row."""


def free_order(
    program: Program, target: int, *, cap: int = 2, max_extra_macs: int | None = None, deadline: float | None = None
) -> int | None:
    """Least extra MACs over *all* base orders; None if none of them reaches ``target``.

    Raises
    ------
    TimeoutError
        When the ``deadline`` (a `time.monotonic` value) passes first.
    UsageError
        Where some buffer has several writers or an input is written: which reruns are allowed would then depend on
        the order.
    """
    small(program)
    problem = RerunProblem(program, tuple(range(len(program))), cap=cap)
    if any(len(w) > (b.kind != "input") for w, b in zip(problem.writers, program.buffers)):
        raise UsageError("free order: the program has buffers that are written twice; give one without")
    sizes = [b.size for b in program.buffers]
    weigh = Weigher(sizes)
    groups = groups_of(problem)
    rows = Rows(problem, target, weigh)
    everything = (1 << len(program)) - 1
    before = [mask_of(p) for p in program.predecessors]

    def edges(state: State) -> Iterator[tuple[int, State]]:
        done, present, counts, _, _ = state
        yield from ((0, (done, rest, counts, 0, 0)) for rest in drops(program, present))
        for k, u in enumerate(problem.units):
            i = groups[u.group]
            if done >> u.members[0] & 1 and counts[i] + 1 < cap:
                yield from rows.proceed((done, present, (*counts[:i], counts[i] + 1, *counts[i + 1 :]), k, 0))
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
                    yield 0, (done | 1 << v, present | fresh, counts, 0, 0)

    start = (0, entry(program), (0,) * len(groups), 0, 0)
    least = dijkstra(start, lambda s: s[0] == everything, edges, deadline)
    return None if least is None or (max_extra_macs is not None and least > max_extra_macs) else least


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


def small(program: Program) -> None:
    if len(program) > LARGEST:
        raise UsageError(f"reference solver: {len(program)} statements are more than the {LARGEST} it can take")


def entry(program: Program) -> int:
    return mask_of(b for b in program.entry if program.buffers[b].size)


def drops(program: Program, present: int) -> Iterator[int]:
    fresh = len(program.buffers)
    for b, x in enumerate(program.buffers):
        if present >> b & 1 and not x.pinned:
            yield present & ~(1 << b)
        if present >> (b + fresh) & 1:
            yield present & ~(1 << (b + fresh))


def dijkstra(
    start: State,
    final: Callable[[State], bool],
    edges: Callable[[State], Iterator[tuple[int, State]]],
    deadline: float | None = None,
) -> int | None:
    order = itertools.count()
    best = {start: 0}
    queue = [(0, next(order), start)]
    while queue:
        cost, count, state = heapq.heappop(queue)
        if deadline is not None and count % 64 == 0 and time.monotonic() > deadline:
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
