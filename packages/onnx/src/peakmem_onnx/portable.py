"""The best file for sessions that cannot be told to run a file's order.

C, C++ and JavaScript sessions run the default order, a depth-first search whose ties the node numbers break, and reuse
dead storages of the same shape. Renumbering the nodes reaches some of the orders; a seeded local search over numberings
looks for the one whose default order, replayed with reuse on, takes least. No bound is known for this: best found.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from peakmem.model import Schedule

from peakmem_onnx.build import replay
from peakmem_onnx.facts import Facts
from peakmem_onnx.graph import Graph
from peakmem_onnx.orders import default_order
from peakmem_onnx.programs import ancestors

SEED = 4


@dataclass(frozen=True)
class Numbered(Schedule):
    """The orders that a default session runs, and the numbering of the top level's nodes that makes it do so.

    Attributes
    ----------
    untied : Facts or None
        Of the file whose declared shapes keep a session from keeping dead storages; None where they stay as they are.
    """

    numbering: tuple[int, ...] = ()
    untied: Facts | None = None


def best_numbering(
    graph: Graph, facts: Facts, starts: Sequence[Sequence[int]], effort: int | None = None, *, reuse: bool = True
) -> tuple[tuple[int, ...], int]:
    """A topological numbering of the nodes and the bytes that a default session takes with it.

    Parameters
    ----------
    graph : Graph
    facts : Facts
    starts : sequence of sequence of int
        Orders to begin with, as indices into the graph's nodes; each is tried as a numbering and by `numbering_of`.
    effort : int, optional
        Replays to spend; by default fewer for larger graphs (about a second in all). The result depends on nothing
        else.
    reuse : bool
        Whether dead storages are kept for later tensors of the same declared shape.
    """
    n = len(graph.nodes)
    spend = max(20, min(300, 40_000 // max(n, 1))) if effort is None else effort
    random_source = random.Random(SEED)

    def bytes_of(numbering: Sequence[int]) -> int:
        def ordered(level: Graph) -> Sequence[int]:
            return default_order(level, numbering if level is graph else None)

        return max(max(replay(graph, one, ordered, reuse=reuse), default=0) for one in facts.shapes)

    best: tuple[int, ...] = tuple(range(n))
    least = bytes_of(best)
    for start in (best, *(tuple(s) for s in starts if len(s) == n)):
        for numbering in (start, numbering_of(graph, start)):
            found = bytes_of(numbering)
            if found < least:
                best, least = numbering, found
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


def numbering_of(graph: Graph, order: Sequence[int]) -> tuple[int, ...]:
    """A numbering with which a default session runs ``order``; one that leads near it where none does.

    The search of a default session visits the leaf and then the input of the largest number first. So wherever it has
    the choice in ``order``, what it visits later must have a smaller number, unless it comes along as an ancestor.
    O(edges * nodes / word + sum of squared numbers of inputs).
    """
    before = graph.predecessors
    above = ancestors(before, tuple(order))
    place = {v: i for i, v in enumerate(order)}
    read = {u for sources in before for u in sources}
    after_all: list[set[int]] = [set() for _ in before]  # v -> nodes whose number must be smaller
    visited: set[int] = set()

    def expand(choices: Sequence[int]) -> list[int]:
        found = sorted((u for u in choices if u not in visited), key=place.__getitem__)
        for j, u in enumerate(found):
            after_all[u].update(w for w in found[j + 1 :] if not above[w] >> u & 1)
        return found

    stack: list[tuple[int, list[int]]] = [(-1, expand([v for v in range(len(before)) if v not in read])[::-1])]
    while stack:
        v, waiting = stack[-1]
        while waiting and waiting[-1] in visited:
            waiting.pop()
        if waiting:
            u = waiting.pop()
            stack.append((u, expand(before[u])[::-1]))
        else:
            visited.add(v)
            stack.pop()
    wanted = [tuple({*sources, *more}) for sources, more in zip(before, after_all, strict=True)]
    rank = [-float(place[v]) for v in range(len(before))]
    numbering = topological(wanted, rank)
    # The wishes contradict the edges where no numbering leads to the order.
    return numbering if len(numbering) == len(before) else topological(before, rank)


def topological(before: Sequence[Sequence[int]], rank: Sequence[float]) -> tuple[int, ...]:
    """The topological order that always takes the ready node of least rank; without the nodes behind a cycle.

    O(edges + nodes log nodes).
    """
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
