"""In which order ONNX Runtime runs the nodes of a file."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from peakmem_onnx.graph import Graph

FIRST = frozenset({"Shape", "Size"})
"""Operators that the priority-based order prefers to all others."""


def priority_order(graph: Graph, order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Order under ``execution_order = PRIORITY_BASED`` of a file whose nodes stand in ``order``.

    Kahn's algorithm; among the ready nodes Shape and Size go first, then the lowest position in the file. (A node may
    carry a priority; nothing in a file sets one.) The result is a fixed point: a file written in it runs as written.

    Returns
    -------
    tuple of int
        Indices into ``graph.nodes``. O(nodes log nodes + edges).
    """
    sequence = range(len(graph.nodes)) if order is None else order
    position = {v: i for i, v in enumerate(sequence)}
    before = graph.predecessors
    missing = [len(p) for p in before]
    after: list[list[int]] = [[] for _ in graph.nodes]
    for v, sources in enumerate(before):
        for u in sources:
            after[u].append(v)

    def key(v: int) -> tuple[bool, int, int]:
        node = graph.nodes[v]
        return (not (not node.domain and node.op in FIRST), position[v], v)

    ready = [key(v) for v in range(len(graph.nodes)) if missing[v] == 0]
    heapq.heapify(ready)
    result = []
    while ready:
        v = heapq.heappop(ready)[2]
        result.append(v)
        for w in after[v]:
            missing[w] -= 1
            if missing[w] == 0:
                heapq.heappush(ready, key(w))
    return tuple(result)


def default_order(graph: Graph, order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Order under the default ``execution_order`` of a file whose nodes stand in ``order``.

    A depth-first search backwards from the leaves (nodes without a reader among the nodes), visited post-order. The
    stack starts with the leaves in file order, so the last one goes first; the inputs of a node are pushed in
    ascending file order, so the latest goes first.

    Returns
    -------
    tuple of int
        Indices into ``graph.nodes``. O(nodes log nodes + edges).
    """
    sequence = list(range(len(graph.nodes))) if order is None else list(order)
    position = {v: i for i, v in enumerate(sequence)}
    before = graph.predecessors
    read = {u for sources in before for u in sources}
    stack: list[tuple[int, bool]] = [(v, False) for v in sequence if v not in read]
    visited: set[int] = set()
    result = []
    while stack:
        v, leave = stack.pop()
        if leave:
            result.append(v)
            continue
        if v in visited:
            continue
        visited.add(v)
        stack.append((v, True))
        for u in sorted(before[v], key=position.__getitem__):
            if u not in visited:
                stack.append((u, False))
    return tuple(result)


def file_order(graph: Graph, order: Sequence[int] | None = None) -> tuple[int, ...]:
    """The order written, which node-by-node execution runs."""
    return tuple(range(len(graph.nodes))) if order is None else tuple(order)
