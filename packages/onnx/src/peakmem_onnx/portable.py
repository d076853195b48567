"""The best file for sessions that cannot be told to run a file's order.

C, C++ and JavaScript sessions run the default order, a depth-first search whose ties the node numbers break, and reuse
dead storages of the same shape. Renumbering the nodes reaches some of the orders; a seeded local search over numberings
looks for the one whose default order, replayed with reuse on, takes least. No bound is known for this: best found.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from peakmem_onnx.build import replay
from peakmem_onnx.graph import Graph
from peakmem_onnx.orders import default_order

if TYPE_CHECKING:
    from peakmem_onnx.model import OnnxModel

SEED = 4


def best_numbering(model: OnnxModel, starts: Sequence[Sequence[int]], effort: int | None = None) -> tuple[tuple[int, ...], int]:
    """A topological numbering of the nodes and the bytes that a default session takes with it.

    Parameters
    ----------
    model : OnnxModel
    starts : sequence of sequence of int
        Numberings to begin with, as indices into the model's nodes.
    effort : int, optional
        Replays to spend; by default fewer for larger graphs (about a second in all). The result depends on nothing
        else.
    """
    graph = model.graph
    n = len(graph.nodes)
    spend = max(20, min(300, 40_000 // max(n, 1))) if effort is None else effort
    random_source = random.Random(SEED)

    def bytes_of(numbering: Sequence[int]) -> int:
        def ordered(level: Graph) -> Sequence[int]:
            return default_order(level, numbering if level is graph else None)

        return max(replay(graph, model.facts, ordered, reuse=True), default=0)

    best: tuple[int, ...] = tuple(range(n))
    least = bytes_of(best)
    for start in starts:
        found = bytes_of(start)
        if found < least:
            best, least = tuple(start), found
    before = graph.predecessors
    for _ in range(spend):
        rank = [0.0] * n
        for i, v in enumerate(best):
            rank[v] = float(i)
        for _ in range(random_source.choice((1, 1, 2, 4))):
            rank[random_source.randrange(n)] = random_source.uniform(-1, n)
        numbering = topological(before, rank)
        found = bytes_of(numbering)
        if found <= least:
            best, least = numbering, found
    return best, least


def topological(before: Sequence[Sequence[int]], rank: Sequence[float]) -> tuple[int, ...]:
    """The topological order that always takes the ready node of least rank. O(edges + nodes log nodes)."""
    missing = [len(p) for p in before]
    after: list[list[int]] = [[] for _ in before]
    for v, sources in enumerate(before):
        for u in sources:
            after[u].append(v)
    ready = [(rank[v], v) for v, m in enumerate(missing) if m == 0]
    heapq.heapify(ready)
    result = []
    while ready:
        v = heapq.heappop(ready)[1]
        result.append(v)
        for w in after[v]:
            missing[w] -= 1
            if missing[w] == 0:
                heapq.heappush(ready, (rank[w], w))
    return tuple(result)
