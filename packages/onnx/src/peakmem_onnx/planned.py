"""A planned arena: how large its first region must be for an order, and the order for which all of them are smallest that was found.

Mostly one region is best, just large enough for a run. Where a few large requests would break it up, a small one and another, which
the first run takes and which is larger by a power of two, hold less. After the first run nothing is taken from the system.

Requests come as the runtime makes them: outputs of a node, its workspace (piece by piece where that was seen), and after the node
the storages that nobody reads any more go. What loading the model has taken and keeps comes first, and the outputs of one run are
held during the next. Exact where the replay of the arena is; no bound is known but the live peak.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from peakmem_onnx.arena import UNIT, Arena, Event, rounded
from peakmem_onnx.facts import Facts
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.graph import Graph
from peakmem_onnx.held import requests
from peakmem_onnx.orders import default_order, priority_order
from peakmem_onnx.planner import plan
from peakmem_onnx.portable import topological
from peakmem_onnx.runtime import scratch

SEED = 5
ENDLESS = 1 << 48
RUNS = 4
"""Runs after which nothing new is expected of an arena."""

PARTS, LARGE, HALVES = 256, 12, 6
"""What is tried for the first region: parts of one that does alone, and of so many large requests so many halves."""

EFFORT = 400_000
"""Requests and releases that are replayed to choose among parts."""

LARGEST_REGION = 1 << 31
"""ONNX Runtime takes the size of an arena's first region as a signed number of 32 bits."""


def events_of(graph: Graph, facts: Facts, order: Sequence[int], *, reuse: bool = False) -> tuple[list[Event], list[Event]]:
    """Requests and releases of one run without bodies, and the releases of its outputs afterwards."""
    values = facts.values[()]
    workspace = [facts.workspace.get(node.name, 0) for node in graph.nodes]
    made = plan(graph, values, order, workspace, reuse=reuse)
    owned = set(made.allocated)
    gone: dict[int, list[str]] = {}
    for name, step in made.released.items():
        gone.setdefault(step, []).append(name)
    numbers: dict[str, int] = {}
    events: list[Event] = []
    count = 0
    for step, v in enumerate(order):
        node = graph.nodes[v]
        for name in node.outputs:
            if name in owned:
                numbers[name] = count
                events.append((count, values[name].size))
                count += 1
        pieces = facts.pieces.get(node.name) or (((0, workspace[v]), (0, -1)) if workspace[v] else ())
        events += [(count + number, size) for number, size in pieces]
        count += 1 + max((number for number, _ in pieces), default=-1)
        events += [(numbers.pop(name), -1) for name in gone.get(step, ())]
    # What nobody reads goes with the run, outputs with the caller.
    results = {made.root[name] for name in graph.outputs if name in made.root}
    events += [(number, -1) for name, number in numbers.items() if name not in results]
    return events, [(number, -1) for name, number in numbers.items() if name in results]


def high_water(graph: Graph, facts: Facts, order: Sequence[int], *, reuse: bool = False) -> int:
    """Bytes that runs touch in a region without end."""
    return Arena(ENDLESS, 1).high_water(_runs(graph, facts, order, 2, reuse=reuse))


def planned_regions(graph: Graph, facts: Facts, order: Sequence[int], *, reuse: bool = False) -> tuple[int, ...]:
    """Regions of an arena in which run after run takes what the first one took; no others found are smaller. Some replays of the arena.

    With ``reuse`` dead storages are kept for later tensors of the same shape, as sessions of the C interface do.
    """
    return least_regions(_runs(graph, facts, order, RUNS, reuse=reuse), len(facts.loading))


def recorded_regions(data: bytes, sets: Sequence[Mapping[str, Any]], session: Mapping[str, Any]) -> tuple[int, ...]:
    """`planned_regions` for the file as it stands, its requests recorded instead of replayed: what bodies ask for depends on the inputs.

    Every set of inputs is run, after every other one. ``session`` is as for `peakmem_onnx.child.options_for`.

    Raises
    ------
    RuntimeFailed
        Where it cannot be run or counted.
    """
    with scratch() as folder:
        path = folder / "model.onnx"
        path.write_bytes(data)
        files = write_feeds(sets, folder)
        step = {"level": "none", **session, "model": str(path), "feeds_files": [files[k] for k in turns(len(files), RUNS)], "turns": 1}
        phases = requests(step, folder)
        return least_regions([event for events in phases for event in events], len(phases[0]))


def least_regions(events: Sequence[Event], loading: int = 0) -> tuple[int, ...]:
    """The regions of which fewest bytes were found for these requests and releases; the first ``loading`` ones only take one.

    Tried for the first region are parts of the least one that does alone, and the largest requests over powers of two.
    """
    alone = least_region(events)
    parts = max(16, min(PARTS, EFFORT // max(1, len(events))))
    sizes = sorted({size for _, size in events if size > 0})[-LARGE:]
    tried = {alone * k // parts for k in range(1, parts)} | {size >> k for size in sizes for k in range(HALVES)}
    best: tuple[int, ...] = (alone,)
    for first in sorted({rounded(size) for size in tried if size}, reverse=True):
        arena, most = Arena(first, 1), sum(best) - 1
        if arena.run(events[:loading], min(first, most)) and arena.run(events[loading:], most) and arena.regions[:1] == [first]:
            best = tuple(arena.regions)
    return best


def least_region(events: Sequence[Event]) -> int:
    """The least size found of a region that does alone for all of these requests and releases."""
    size = max(UNIT, Arena(ENDLESS, 1).high_water(events))
    if _fits(events, size):
        return size
    # Whether a region is large enough is not quite monotone in its size: larger and larger steps, then halves.
    low, step = size, UNIT
    while not _fits(events, low + step):
        low += step
        step += max(1, step // (4 * UNIT)) * UNIT
    high = low + step
    while high - low > UNIT:
        middle = (low + high) // (2 * UNIT) * UNIT
        low, high = (low, middle) if _fits(events, middle) else (middle, high)
    return high


def _fits(events: Sequence[Event], size: int) -> bool:
    arena = Arena(size, 1)
    arena.run(events)
    return len(arena.regions) <= 1


def _runs(graph: Graph, facts: Facts, order: Sequence[int], count: int, *, reuse: bool = False) -> list[Event]:
    """Loading, then runs during each of which the outputs of the run before are still held, as in ``y = session.run(...)``.

    Of several shapes each follows itself and every other one.
    """
    runs = [events_of(graph, one, order, reuse=reuse) for one in facts.shapes]
    loaded = 1 + max((number for number, _ in facts.loading), default=-1)
    many = 1 + max((number for once, _ in runs for number, _ in once), default=-1)
    events = list(facts.loading)
    closing: list[Event] = []
    for k, shape in enumerate(turns(len(runs), count)):
        here, before = (loaded + many * (turn % 2) for turn in (k, k + 1))
        events += [(here + number, size) for number, size in runs[shape][0]]
        events += [(before + number, size) for number, size in closing]
        closing = runs[shape][1]
    return events


def turns(shapes: int, count: int) -> list[int]:
    """Which shape each run is of: every shape twice, ``count`` times, and then whatever has not followed another one yet."""
    if shapes == 1:
        return [0] * count
    found = [shape for many in (2, count) for shape in range(shapes) for _ in range(many)]
    for pair in product(range(shapes), repeat=2):
        if pair not in list(pairwise(found)):
            found += pair if pair[0] != found[-1] else pair[1:]
    return found


def best_order(
    graph: Graph,
    facts: Facts,
    starts: Sequence[Sequence[int]],
    effort: int | None = None,
    *,
    allowed: Callable[[Sequence[int]], bool] = lambda order: True,
    numbered: bool = False,
    reuse: bool = False,
) -> tuple[tuple[int, ...], int]:
    """An order of the file's nodes, and the bytes of the planned regions of a session that runs it.

    With the recipe's options a session runs the order of the file; what is ``numbered`` runs the default order of it.

    Parameters
    ----------
    graph : Graph
    facts : Facts
    starts : sequence of sequence of int
        Orders to begin with.
    effort : int, optional
        Replays to spend; by default fewer for larger graphs. The result depends on nothing else.
    allowed : callable
        Which orders come into question; the first of ``starts`` does.
    numbered, reuse : bool
        See `peakmem_onnx.ways.Way`.
    """
    n = len(graph.nodes)
    spend = max(20, min(200, 20_000 // max(n, 1))) if effort is None else effort
    source = random.Random(SEED)

    def written(order: Sequence[int]) -> tuple[int, ...]:
        return tuple(order) if numbered else priority_order(graph, order)

    def executed(order: Sequence[int]) -> Sequence[int]:
        return default_order(graph, order) if numbered else order

    def touched(order: Sequence[int]) -> int:
        return high_water(graph, facts, executed(order), reuse=reuse)

    first = [order for order in map(written, starts) if allowed(order)]
    best, least = _least(first, touched)
    for _ in range(spend):
        rank = [0.0] * n
        for i, v in enumerate(best):
            rank[v] = float(i)
        for _ in range(source.choice((1, 1, 2, 4))):
            rank[source.randrange(n)] = source.uniform(-1, n)
        other = written(topological(graph.predecessors, rank))
        if allowed(other):
            best, least = _least([best, other], touched, least)
    # What is touched in a region without end is not quite the size of one with an end.
    return _least([best, *first], lambda order: sum(planned_regions(graph, facts, executed(order), reuse=reuse)))


def _least(
    orders: Sequence[tuple[int, ...]], size_of: Callable[[Sequence[int]], int], known: int | None = None
) -> tuple[tuple[int, ...], int]:
    """The first of the orders of least size; ``known`` is that of the first one."""
    best, least = orders[0], size_of(orders[0]) if known is None else known
    for order in orders[1:]:
        size = size_of(order)
        if size < least:
            best, least = order, size
    return best, least
