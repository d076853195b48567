"""Greedy placements: one item at a time at the lowest offset where it fits."""

from __future__ import annotations

from bisect import insort
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
        for offset, end, f, l in placed:
            if f <= last and first <= l:
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
    pressure: dict[int, int] = {}
    for i in n:
        pressure[i] = _pressure(items, i)
    for key in (
        lambda i: (-pressure[i], -items[i].size, i),
        lambda i: (-items[i].size * (items[i].last - items[i].first + 1), i),
        lambda i: (items[i].first - items[i].last, -items[i].size, i),
        lambda i: (items[i].first, -items[i].size, i),
        lambda i: (-items[i].last, -items[i].size, i),
    ):
        yield first_fit(items, sorted(n, key=key))


def _pressure(items: Sequence[Item], i: int) -> int:
    """Bytes resident at the fullest step of item ``i``."""
    a = items[i]
    return max(
        (
            sum(b.size for b in items if b.first <= step <= b.last)
            for step in {max(a.first, b.first) for b in items if b.first <= a.last and a.first <= b.last}
        ),
        default=a.size,
    )
