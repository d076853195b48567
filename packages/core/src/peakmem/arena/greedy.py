"""Greedy placements: one item at a time at the lowest offset where it fits."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peakmem.arena.items import Item, overlaps, sharing


@dataclass(frozen=True)
class Relations:
    """What keeps items apart and together, for callers that place the same items often.

    Attributes
    ----------
    near : sequence of sequence of int
        For each item those resident with it at some step.
    partners : sequence of frozenset of int
        For each item those whose offset it may have although they are resident together.
    bodies : mapping of int to sequence of pair of int
        For each item of a contiguous group the group's items and their distances in bytes from this item.
    """

    near: Sequence[Sequence[int]]
    partners: Sequence[frozenset[int]]
    bodies: dict[int, tuple[tuple[int, int], ...]]


def relations(
    items: Sequence[Item], may_share: Sequence[tuple[int, int]] = (), contiguous: Sequence[Sequence[int]] = ()
) -> Relations:
    """What `may_share` and `contiguous` (see `peakmem.arena.items.check_placement`) say of each item."""
    partners: list[set[int]] = [set() for _ in items]
    for a, o in sharing(items, may_share):
        partners[a].add(o)
        partners[o].add(a)
    bodies = {}
    for group in contiguous:
        begins = [sum(items[i].size for i in group[:k]) for k in range(len(group))]
        for i, begin in zip(group, begins):
            bodies[i] = tuple((j, other - begin) for j, other in zip(group, begins))
    return Relations(
        overlaps([(item.first, item.last) for item in items]), [frozenset(p) for p in partners], bodies
    )


def first_fit(items: Sequence[Item], sequence: Sequence[int], known: Relations | None = None) -> tuple[int, ...]:
    """Place the items in ``sequence``, each at the lowest offset free during its whole lifetime.

    The first item of a contiguous group places the whole group; a pair shares its first byte where that is lowest.
    Sorts the neighbours of each item; offsets keep the alignment of the sizes.
    """
    if known is None:
        known = relations(items)
    offsets = [-1] * len(items)
    for i in sequence:
        if i in known.bodies or known.partners[i]:
            if offsets[i] < 0:
                _fit_body(items, i, known, offsets)
            continue
        size, at = items[i].size, 0
        for offset, end in sorted([(offsets[j], offsets[j] + items[j].size) for j in known.near[i] if offsets[j] >= 0]):
            if offset - at >= size:
                break
            if end > at:
                at = end
        offsets[i] = at
    return tuple(offsets)


def _fit_body(items: Sequence[Item], i: int, known: Relations, offsets: list[int]) -> None:
    """Place item ``i``, and its whole group if it has one, at the lowest offset where all of it fits."""
    body = known.bodies.get(i, ((i, 0),))
    lowest = max(-distance for _, distance in body)
    blocked = []  # open intervals of offsets of i, each with the one offset inside it that is free all the same
    for k, distance in body:
        for j in known.near[k]:
            if offsets[j] >= 0:
                low = offsets[j] - distance
                free = low if j in known.partners[k] else -1
                blocked.append((low - items[k].size, low + items[j].size, free))
    blocked.sort()
    at = lowest
    for low, high, _ in blocked:
        if low >= at:
            break
        at = max(at, high)
    for at_partner in sorted({free for _, _, free in blocked if lowest <= free < at}):
        if all(not low < at_partner < high or free == at_partner for low, high, free in blocked):
            at = at_partner
            break
    for k, distance in body:
        offsets[k] = at + distance


def arena_size(items: Sequence[Item], offsets: Sequence[int]) -> int:
    """Largest end of an item, in bytes."""
    return max((offset + item.size for item, offset in zip(items, offsets)), default=0)


def greedy_by_size(items: Sequence[Item], known: Relations | None = None) -> tuple[int, ...]:
    """Largest first, ties as listed (Pisarchyk & Lee 2020, *Efficient Memory Management for Deep Neural Net Inference*)."""
    return first_fit(items, sorted(range(len(items)), key=lambda i: -items[i].size), known)


def greedy_portfolio(items: Sequence[Item], known: Relations | None = None) -> Iterator[tuple[int, ...]]:
    """Placements by several rules, greedy by size first; each without pairs as well, since sharing can cost bytes."""
    if known is None:
        known = relations(items)
    alone = Relations(known.near, [frozenset()] * len(items), known.bodies) if any(known.partners) else None
    n = range(len(items))
    pressure = _pressures(items)
    for key in (
        lambda i: -items[i].size,
        lambda i: (-pressure[i], -items[i].size, i),
        lambda i: (-items[i].size * (items[i].last - items[i].first + 1), i),
        lambda i: (items[i].first - items[i].last, -items[i].size, i),
        lambda i: (items[i].first, -items[i].size, i),
        lambda i: (-items[i].last, -items[i].size, i),
    ):
        sequence = sorted(n, key=key)
        yield first_fit(items, sequence, known)
        if alone is not None:
            yield first_fit(items, sequence, alone)


def improve(
    items: Sequence[Item], start: Sequence[int], goal: int, rounds: int, known: Relations | None = None
) -> tuple[int, ...]:
    """Local search over sequences of `first_fit`: whatever ends at the top of the arena is placed earlier.

    Parameters
    ----------
    start : sequence of int
        Offsets to begin with; the result is never larger.
    goal : int
        Bytes at which the search stops.
    rounds : int
        Placements tried. Seeded: the same input gives the same result.
    """
    rng = random.Random(0)
    if known is None:
        known = relations(items)
    best, size = tuple(start), arena_size(items, start)
    sequence = sorted(range(len(items)), key=lambda i: (start[i], -items[i].size))
    current, current_size = best, size
    for _ in range(rounds):
        if size <= goal:
            break
        top = [k for k, i in enumerate(sequence) if current[i] + items[i].size == current_size]
        k = rng.choice(top) if top else rng.randrange(len(sequence))
        trial = list(sequence)
        item = trial.pop(k)
        trial.insert(rng.randrange(k + 1), item)
        if rng.random() < 0.3:
            a, b = rng.randrange(len(trial)), rng.randrange(len(trial))
            trial[a], trial[b] = trial[b], trial[a]
        offsets = first_fit(items, trial, known)
        reached = arena_size(items, offsets)
        if reached <= current_size:
            sequence, current, current_size = trial, offsets, reached
        if reached < size:
            best, size = offsets, reached
    return best


def _pressures(items: Sequence[Item]) -> list[int]:
    """For each item the bytes resident at its fullest step."""
    points = sorted({i.first for i in items})  # the fullest step of any span is one at which something begins
    index = {p: k for k, p in enumerate(points)}
    resident = [0] * len(points)
    spans = []
    for item in items:
        begin, end = index[item.first], bisect_right(points, item.last)
        spans.append((begin, end))
        for k in range(begin, end):
            resident[k] += item.size
    return [max(resident[begin:end]) for begin, end in spans]
