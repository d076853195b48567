"""A planned arena: how large its one region must be for an order, and the order for which it is smallest that was found.

Requests come as the runtime makes them: outputs of a node, its workspace (piece by piece where that was seen), and after the node
the storages that nobody reads any more go. What loading the model has taken and keeps comes first, and the outputs of one run are
held during the next. Exact where the replay of the arena is; no bound is known but the live peak.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from peakmem_onnx.arena import UNIT, Arena, Event
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
    return events, [(number, -1) for number in numbers.values()]


def high_water(graph: Graph, facts: Facts, order: Sequence[int], *, reuse: bool = False) -> int:
    """Bytes that runs touch in a region without end."""
    return Arena(ENDLESS, 1).high_water(_runs(graph, facts, order, 2, reuse=reuse))


def planned_size(graph: Graph, facts: Facts, order: Sequence[int], *, reuse: bool = False) -> int:
    """The least size found of a region with which run after run needs no other one. A few replays of the arena.

    With ``reuse`` dead storages are kept for later tensors of the same shape, as sessions of the C interface do.
    """
    return least_region(_runs(graph, facts, order, RUNS, reuse=reuse))


def recorded_size(data: bytes, sets: Sequence[Mapping[str, Any]], session: Mapping[str, Any]) -> int:
    """`planned_size` for the file as it stands, its requests recorded instead of replayed: what bodies ask for depends on the inputs.

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
        return least_region([event for events in requests(step, folder) for event in events])


def least_region(events: Sequence[Event]) -> int:
    """The least size found of a region that does for all of these requests and releases."""
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
    """An order of the file's nodes, and the size of the planned region of a session that runs it.

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
    return _least([best, *first], lambda order: planned_size(graph, facts, executed(order), reuse=reuse))


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
