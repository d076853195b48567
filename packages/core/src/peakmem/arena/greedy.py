"""Greedy placements: one item at a time at the lowest offset where it fits."""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

from peakmem.arena.items import Item


def first_fit(items: Sequence[Item], sequence: Sequence[int]) -> tuple[int, ...]:
    """Place the items in ``sequence``, each at the lowest offset free during its whole lifetime.

    O(n^2) in all; offsets keep the alignment of the sizes.
    """
    offsets = [0] * len(items)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    for i in sequence:
        item = items[i]
        size, first, last = item.size, item.first, item.last
        at = 0
        for offset, end, born, dies in placed:
            if born <= last and first <= dies:
                if offset - at >= size:
                    break
                if end > at:
                    at = end
        offsets[i] = at
        insort(placed, (at, at + size, first, last))
    return tuple(offsets)


def arena_size(items: Sequence[Item], offsets: Sequence[int]) -> int:
    """Largest end of an item, in bytes."""
    return max((offset + item.size for item, offset in zip(items, offsets)), default=0)


def greedy_by_size(items: Sequence[Item]) -> tuple[int, ...]:
    """Largest first, ties as listed (Pisarchyk & Lee 2020, *Efficient Memory Management for Deep Neural Net Inference*)."""
    return first_fit(items, sorted(range(len(items)), key=lambda i: -items[i].size))


def greedy_portfolio(items: Sequence[Item]) -> Iterator[tuple[int, ...]]:
    """Placements by several rules, greedy by size first."""
    yield greedy_by_size(items)
    n = range(len(items))
    pressure = _pressures(items)
    for key in (
        lambda i: (-pressure[i], -items[i].size, i),
        lambda i: (-items[i].size * (items[i].last - items[i].first + 1), i),
        lambda i: (items[i].first - items[i].last, -items[i].size, i),
        lambda i: (items[i].first, -items[i].size, i),
        lambda i: (-items[i].last, -items[i].size, i),
    ):
        yield first_fit(items, sorted(n, key=key))


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
        offsets = first_fit(items, trial)
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
