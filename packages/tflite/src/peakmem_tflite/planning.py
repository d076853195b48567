"""From an ordering to what TFLite Micro realizes best: an order with an offline plan, or an order alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

from peakmem.arena import Item, liveness_peak, plan
from peakmem.model import Program, scheduled_timeline
from peakmem.system import clock

from peakmem_tflite.arena import Allocation, allocations, simulate, untouched
from peakmem_tflite.build import Mapped
from peakmem_tflite.graph import Graph
from peakmem_tflite.joins import Family
from peakmem_tflite.overlays import pairs
from peakmem_tflite.scratch import ALIGNMENT, rounded
from peakmem_tflite.targets import Target

Orders = Mapping[str, tuple[int, ...]]

LARGEST_ARENA = 2**31
"""Offsets in a plan are 32-bit numbers with a sign."""

_PART = -2
"""In the place of a tensor's number: a part of tensors that lie inside one another."""

_WORK = 4_000_000
"""Bound of a search: evaluations times the square of the number of buffers. About two seconds."""


@dataclass(frozen=True)
class Outcome:
    """Orders, the offsets by tensor counted through (None: left to the interpreter), and the head they lead to."""

    orders: dict[str, tuple[int, ...]]
    offsets: tuple[int, ...] | None
    head: int
    exact: bool


def by_subgraph(mapped: Mapped, orders: Orders) -> dict[int, tuple[int, ...]]:
    """Orders by subgraph instead of body path."""
    return {mapped.subgraph_of[path]: tuple(order) for path, order in orders.items() if path in mapped.subgraph_of}


def greedy_head(graph: Graph, mapped: Mapped, target: Target, orders: Orders) -> int:
    """Head of the arena without a plan."""
    return simulate(allocations(graph, target, by_subgraph(mapped, orders)))[0]


def place(
    graph: Graph,
    mapped: Mapped,
    target: Target,
    orders: Orders,
    deadline: float | None = None,
    effort: float = 2.0,
) -> Outcome:
    """Offsets for given orders.

    Where the interpreter's own planner already reaches the liveness peak no plan is made. Otherwise tensors are placed
    by `peakmem.arena.plan`, outputs on dying inputs where that is permitted and helps, and those that nothing touches at the start of the arena. Scratch cannot be planned, the interpreter puts it into the first gap that holds it; so
    the scratch of an operator is placed as one block, and whatever gap each request is put into, all of it fits below
    the block's end. If that costs bytes, requests are placed one by one and the simulated head decides.
    """
    every = allocations(graph, target, by_subgraph(mapped, orders))
    buffers = [b for b in every if b.first >= 0]
    idle = [b for b in every if b.first < 0]  # nobody touches them, so they may all lie at the start
    buffers, groups = _parts(buffers, mapped.families)
    number = {b.tensor: i for i, b in enumerate(buffers) if b.tensor >= 0}
    for family, group in zip(mapped.families, groups):
        for t in (family.whole, *family.members):
            covered = family.covered(t, graph.subgraphs[0].tensors[t].size)
            if len(covered) == 1:
                number[t] = group[covered[0]]
    share = [(number[a], number[o]) for a, o in pairs(graph, mapped.permitted) if a in number and o in number]
    peak = max(liveness_peak(_items(buffers), share), max((b.size for b in idle), default=0))
    size, _ = simulate(every)
    best = Outcome(dict(orders), None, size, size == peak)
    if size == peak:
        return best
    trials = [True, False] if any(b.tensor == -1 for b in buffers) else [False]
    for together, blocks in product(_permissions(buffers, share, peak), trials):
        items, owners = _blocks(buffers) if blocks else (_items(buffers), [[i] for i in range(len(buffers))])
        owner = {i: at for at, own in enumerate(owners) for i in own}
        may_share = [(owner[a], owner[o]) for a, o in together]
        contiguous = [[owner[i] for i in group] for group in groups]
        placement = plan(items, alignment=ALIGNMENT, may_share=may_share, contiguous=contiguous, deadline=deadline, effort=effort)
        offsets = [-1] * graph.tensor_count
        for b in idle:
            if b.tensor >= 0:
                offsets[b.tensor] = 0
        for owned, at in zip(owners, placement.offsets):
            b = buffers[owned[0]]
            if b.tensor >= 0:
                offsets[b.tensor] = at
        for family, group in zip(mapped.families, contiguous):
            for t, start in {family.whole: 0, **family.members}.items():
                offsets[t] = placement.offsets[group[0]] + start
        reached, _ = simulate(every, offsets)
        if reached < best.head and reached < LARGEST_ARENA:
            best = Outcome(dict(orders), tuple(offsets), reached, reached == placement.lower_bound)
        if best.head == peak:
            break
    return best


def _parts(buffers: list[Allocation], families: Sequence[Family]) -> tuple[list[Allocation], list[list[int]]]:
    """Buffers with the parts of each family in the place of its tensors, and the positions of these parts, family by family."""
    if not families:
        return buffers, []
    inside = {t for f in families for t in (f.whole, *f.members)}
    of = {b.tensor: b for b in buffers if b.tensor in inside}
    result = [b for b in buffers if b.tensor not in inside]
    groups = []
    for family in families:
        spans: list[list[Allocation]] = [[] for _ in family.parts]
        for t in (family.whole, *family.members):
            for n in family.covered(t, of[t].size):
                spans[n].append(of[t])
        groups.append(list(range(len(result), len(result) + len(spans))))
        result += [
            Allocation(_PART, 0, -1, high - low, min(b.first for b in found), max(b.last for b in found))
            for (low, high), found in zip(family.parts, spans)
        ]
    return result, groups


def _permissions(
    buffers: Sequence[Allocation], share: Sequence[tuple[int, int]], peak: int
) -> list[Sequence[tuple[int, int]]]:
    """Which pairs to try: those alone without which a step exceeds the peak, as others gain nothing, then all."""
    change: dict[int, int] = {}
    for b in buffers:
        change[b.first] = change.get(b.first, 0) + b.size
        change[b.last + 1] = change.get(b.last + 1, 0) - b.size
    steps = sorted(change)
    live = dict(zip(steps, accumulate(change[step] for step in steps)))
    needed = [(a, o) for a, o in share if live[buffers[o].first] > peak]
    return [needed, share] if len(needed) < len(share) else [needed]


def _items(buffers: Sequence[Allocation]) -> list[Item]:
    return [Item(str(i), b.size, b.first, b.last) for i, b in enumerate(buffers)]


def _blocks(buffers: Sequence[Allocation]) -> tuple[list[Item], list[list[int]]]:
    """Items with the scratch of each operator joined, and the buffers of each item."""
    owners: dict[object, list[int]] = {}
    for i, b in enumerate(buffers):
        key: object = ("scratch", b.subgraph, b.operator) if b.tensor == -1 else i
        owners.setdefault(key, []).append(i)
    items = [
        Item(str(k), sum(buffers[i].size for i in own), buffers[own[0]].first, buffers[own[0]].last)
        for k, own in enumerate(owners.values())
    ]
    return items, list(owners.values())


def with_plan(
    graph: Graph,
    mapped: Mapped,
    target: Target,
    given: Orders,
    wanted: Orders,
    others: Iterable[tuple[int, ...]],
    deadline: float | None,
) -> Outcome:
    """The best order with a plan: the wanted one if its arena reaches its liveness peak, else what others give.

    Fragmentation belongs to an order, so where it costs bytes other orders are planned: the given one, ``others`` of
    the wanted peak, and orders met on a random walk (seeded) that never exceeds that peak.
    """
    program = mapped.program
    best = place(graph, mapped, target, wanted, deadline)
    goal = max(scheduled_timeline(program, wanted).peak, max((rounded(t.size) for _, _, t in untouched(graph)), default=0))
    if best.head <= goal:
        return best
    tries = max(2, min(200, _WORK // 20 // max(1, len(program)) ** 2))
    for orders in _candidates(program, given, wanted, goal, others, tries):
        if _late(deadline):
            break
        if scheduled_timeline(program, orders).peak >= best.head:
            continue
        outcome = place(graph, mapped, target, orders, deadline, effort=0.1)
        if outcome.head < best.head:
            best = outcome
        if best.head <= goal:
            break
    return best


def _candidates(
    program: Program, given: Orders, wanted: Orders, goal: int, others: Iterable[tuple[int, ...]], tries: int
) -> Iterator[Orders]:
    if given != wanted:
        yield given
    starts = [wanted]
    for order in others:
        starts.append({**wanted, "": order})
        yield starts[-1]
    rng = random.Random(0)
    for k in range(tries):
        at = k % len(starts)
        orders = starts[at]
        for _ in range(8):
            moved = _move(program, orders[""], rng)
            if moved is None:
                return
            trial = {**orders, "": moved}
            if scheduled_timeline(program, trial).peak <= goal:
                orders = trial
        if orders is not starts[at]:
            starts[at] = orders
            yield orders


def without_plan(
    graph: Graph, mapped: Mapped, target: Target, given: Orders, wanted: Orders, floor: int, deadline: float | None
) -> Outcome:
    """An order whose arena is small when the interpreter's greedy planner places everything.

    A lower liveness peak can mean a larger greedy arena, so the arena itself is searched: from the given and from the
    wanted order, moving one operator at a time within what its dependences allow, and keeping what is not worse.
    Seeded, and bounded by work and not by time, so the same model gives the same order unless ``deadline`` cuts in.

    Parameters
    ----------
    floor : int
        Bytes below which no order can go; the search stops there.
    """
    program = mapped.program
    buffers = len(allocations(graph, target))
    budget = max(8, min(4000, _WORK // max(1, buffers * buffers)))
    starts = [given, wanted] if wanted != given else [given]
    heads = [greedy_head(graph, mapped, target, start) for start in starts]
    best = min((Outcome(dict(s), None, h, False) for s, h in zip(starts, heads)), key=lambda o: o.head)
    for start, head in sorted(zip(starts, heads), key=lambda pair: pair[1]):
        current, key = start, (head, scheduled_timeline(program, start).peak)
        rng = random.Random(0)
        for _ in range(budget // len(starts)):
            if best.head <= floor or _late(deadline):
                return best
            moved = _move(program, current[""], rng)
            if moved is None:
                break
            orders = {**current, "": moved}
            size = greedy_head(graph, mapped, target, orders)
            trial = (size, scheduled_timeline(program, orders).peak)
            if trial <= key:
                current, key = orders, trial
            if size < best.head:
                best = Outcome(dict(orders), None, size, False)
    return best


def _move(program: Program, order: tuple[int, ...], rng: random.Random) -> tuple[int, ...] | None:
    """Move one statement to another place between its last predecessor and its first successor; None if none can."""
    n = len(order)
    place = {v: i for i, v in enumerate(order)}
    for _ in range(4 * n):
        i = rng.randrange(n) if n else 0
        v = order[i]
        low = max((place[p] + 1 for p in program.predecessors[v]), default=0)
        high = min((place[s] - 1 for s in program.successors[v]), default=n - 1)
        if high > low:
            j = rng.randrange(low, high)
            j += j >= i
            rest = [*order[:i], *order[i + 1 :]]
            rest.insert(j, v)
            return tuple(rest)
    return None


def _late(deadline: float | None) -> bool:
    return clock.late(deadline)
