"""Greedy placements: one item at a time at the lowest offset where it fits."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from peakmem.arena.items import Item, overlaps


def first_fit(
    items: Sequence[Item], sequence: Sequence[int], near: Sequence[Sequence[int]] | None = None
) -> tuple[int, ...]:
    """Place the items in ``sequence``, each at the lowest offset free during its whole lifetime.

    ``near`` is what `peakmem.arena.items.overlaps` says of the items, for callers that place them often. Sorts the
    neighbours of each item; offsets keep the alignment of the sizes.
    """
    if near is None:
        near = neighbours(items)
    offsets = [-1] * len(items)
    for i in sequence:
        size, at = items[i].size, 0
        for offset, end in sorted([(offsets[j], offsets[j] + items[j].size) for j in near[i] if offsets[j] >= 0]):
            if offset - at >= size:
                break
            if end > at:
                at = end
        offsets[i] = at
    return tuple(offsets)


def neighbours(items: Sequence[Item]) -> list[list[int]]:
    """For each item those resident with it at some step."""
    return overlaps([(item.first, item.last) for item in items])


def arena_size(items: Sequence[Item], offsets: Sequence[int]) -> int:
    """Largest end of an item, in bytes."""
    return max((offset + item.size for item, offset in zip(items, offsets)), default=0)


def greedy_by_size(items: Sequence[Item], near: Sequence[Sequence[int]] | None = None) -> tuple[int, ...]:
    """Largest first, ties as listed (Pisarchyk & Lee 2020, *Efficient Memory Management for Deep Neural Net Inference*)."""
    return first_fit(items, sorted(range(len(items)), key=lambda i: -items[i].size), near)


def greedy_portfolio(items: Sequence[Item]) -> Iterator[tuple[int, ...]]:
    """Placements by several rules, greedy by size first."""
    near = neighbours(items)
    yield greedy_by_size(items, near)
    n = range(len(items))
    pressure = _pressures(items)
    for key in (
        lambda i: (-pressure[i], -items[i].size, i),
        lambda i: (-items[i].size * (items[i].last - items[i].first + 1), i),
        lambda i: (items[i].first - items[i].last, -items[i].size, i),
        lambda i: (items[i].first, -items[i].size, i),
        lambda i: (-items[i].last, -items[i].size, i),
    ):
        yield first_fit(items, sorted(n, key=key), near)


def improve(items: Sequence[Item], start: Sequence[int], goal: int, rounds: int) -> tuple[int, ...]:
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
    near = neighbours(items)
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
        offsets = first_fit(items, trial, near)
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
