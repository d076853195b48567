"""Greedy orders: quick first incumbents for problems of any size."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from peakmem.ordering.problem import Problem, State


def least_growth(problem: Problem) -> list[int]:
    """List scheduling: of the ready statements always the one that adds least to what stays resident.

    Ties go to the one that needs least while it runs, then to the given order. A key changes only when a buffer of the
    statement is born or loses a toucher, so the whole takes O((n + touches of neighbours) log n).
    """
    state = State(problem)
    keys: dict[int, tuple[int, int]] = {}

    def key(v: int) -> tuple[int, int]:
        mem, change = state.step(v)
        return change, mem - state.rest

    heap = []
    for v in state.ready:
        keys[v] = key(v)
        heap.append((*keys[v], v))
    heapify(heap)
    touchers, touched, remaining = problem.touchers, problem.touched, state.remaining
    while heap:
        change, need, v = heappop(heap)
        if v not in state.ready or keys[v] != (change, need):
            continue
        state.push(v)
        del keys[v]
        again = {w for w in problem.succs[v] if w in state.ready}
        for b in touched[v]:
            # Readers of a buffer feel it only when it is born or about to die.
            if remaining[b] <= 2 or state.born[b] == 1:
                again.update(t for t in touchers[b] if t in state.ready)
        for w in again:
            fresh = key(w)
            if keys.get(w) != fresh:
                keys[w] = fresh
                heappush(heap, (*fresh, w))
    return state.path


def post_order(problem: Problem) -> list[int]:
    """Depth-first from the sinks: what a statement needs is computed just before it, the most demanding part first.

    The demand of a statement is estimated as on a tree (Sethi and Ullman 1970; Liu 1987): its inputs are computed one
    after the other, by decreasing (demand - bytes kept). Exact on trees whose buffers have one reader. O(n log n + arcs).
    """
    n = len(problem)
    size, touchers, touched, preds = problem.size, problem.touchers, problem.touched, problem.preds
    kept = [0] * n  # bytes that a statement bears and leaves behind
    for b, row in enumerate(touchers):
        if row and not problem.entry[b] and (problem.pinned[b] or len(row) > 1):
            kept[row[0]] += size[b]
    demand = [0] * n
    inputs: list[list[int]] = [[] for _ in range(n)]
    for v in range(n):
        inputs[v] = sorted(preds[v], key=lambda u: (kept[u] - demand[u], u))
        now = most = 0
        for u in inputs[v]:
            most = max(most, now + demand[u])
            now += kept[u]
        demand[v] = max(most, problem.workspace[v] + sum(size[b] for b in touched[v]))
    order: list[int] = []
    done = bytearray(n)
    sinks = sorted((v for v in range(n) if not problem.succs[v]), key=lambda v: (kept[v] - demand[v], v))
    for sink in sinks:
        stack = [(sink, 0)]
        while stack:
            v, k = stack.pop()
            if done[v]:
                continue
            needed = inputs[v]
            while k < len(needed) and done[needed[k]]:
                k += 1
            if k < len(needed):
                stack.append((v, k + 1))
                stack.append((needed[k], 0))
            else:
                done[v] = 1
                order.append(v)
    return order
