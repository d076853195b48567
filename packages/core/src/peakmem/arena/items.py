"""What is placed, what a placement is, and what makes one valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peakmem.model import InputError


@dataclass(frozen=True, slots=True)
class Item:
    """One block of the arena.

    Attributes
    ----------
    name : str
        Unique among the items placed together.
    size : int
        Bytes, already rounded to the arena's alignment.
    first, last : int
        First and last step, both included, at which it is resident. Any integers with ``first <= last``.
    """

    name: str
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Placement:
    """Offsets in one arena.

    Attributes
    ----------
    offsets : tuple of int
        Byte offset of each item from the start of the arena.
    size : int
        Bytes of the arena: the largest end of an item.
    lower_bound : int
        No placement of these items is smaller. At least the liveness peak; more where a solver refuted it.
    """

    offsets: tuple[int, ...]
    size: int
    lower_bound: int

    @property
    def least(self) -> bool:
        """Whether no smaller placement of the same items exists."""
        return self.size == self.lower_bound


def liveness_peak(items: Sequence[Item]) -> int:
    """The most bytes resident at one step. O(n log n).

    >>> liveness_peak([Item("a", 16, 0, 1), Item("b", 32, 1, 2)])
    48
    """
    change: dict[int, int] = {}
    for item in items:
        change[item.first] = change.get(item.first, 0) + item.size
        change[item.last + 1] = change.get(item.last + 1, 0) - item.size
    now = peak = 0
    for step in sorted(change):
        now += change[step]
        peak = max(peak, now)
    return peak


def overlaps(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """For each span (first and last step, both included) the others it shares a step with; O(n log n + pairs).

    >>> overlaps([(0, 1), (1, 2), (2, 2)])
    [[1], [0, 2], [1]]
    """
    result: list[list[int]] = [[] for _ in spans]
    open_now: list[int] = []
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        first = spans[i][0]
        open_now = [j for j in open_now if spans[j][1] >= first]
        result[i].extend(open_now)
        for j in open_now:
            result[j].append(i)
        open_now.append(i)
    return result


def check_placement(items: Sequence[Item], offsets: Sequence[int], *, alignment: int = 1) -> int:
    """Check a placement pair by pair and return the arena's size.

    Raises
    ------
    InputError
        When an offset is negative or not aligned, an item has no lifetime, or two items are resident at one step and
        share a byte; the message names them. O(n log n + pairs resident together).
    """
    if len(items) != len(offsets):
        raise InputError(f"placement: {len(offsets)} offsets for {len(items)} items")
    for item, offset in zip(items, offsets):
        if item.first > item.last or item.size < 0:
            raise InputError(f"placement: {item.name!r} has no lifetime or a negative size")
        if offset < 0 or offset % alignment:
            raise InputError(f"placement: offset {offset} of {item.name!r} is not a multiple of {alignment}")
    for i, near in enumerate(overlaps([(item.first, item.last) for item in items])):
        a, at = items[i], offsets[i]
        for j in near:
            b, bt = items[j], offsets[j]
            if j < i and at < bt + b.size and bt < at + a.size:
                raise InputError(f"placement: {a.name!r} and {b.name!r} overlap in time and in bytes")
    return max((offset + item.size for item, offset in zip(items, offsets)), default=0)
