"""What is placed, what a placement is, and what makes one valid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from peakmem.model import InputError

MOST_MATCHED = 12
"""Items dying at one step, or born there, of which every subset is looked at."""


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


def liveness_peak(items: Sequence[Item], may_share: Sequence[tuple[int, int]] = ()) -> int:
    """The most bytes resident at one step. O(n log n), and one matching for each step at which several pairs meet.

    Parameters
    ----------
    items : sequence of Item
    may_share : sequence of pair of int
        See `sharing`. A pair saves the smaller of its two sizes at the step where it meets. The first bytes of two
        items differ unless they are a pair, so each item shares with one other at most: what a step saves is a matching
        of largest weight.

    Examples
    --------
    >>> liveness_peak([Item("a", 16, 0, 1), Item("b", 32, 1, 2)])
    48
    >>> liveness_peak([Item("a", 16, 0, 1), Item("b", 32, 1, 2)], [(0, 1)])
    32
    """
    change: dict[int, int] = {}
    for item in items:
        change[item.first] = change.get(item.first, 0) + item.size
        change[item.last + 1] = change.get(item.last + 1, 0) - item.size
    meeting: dict[int, list[tuple[int, int]]] = {}
    for a, o in sharing(items, may_share):
        meeting.setdefault(items[o].first, []).append((a, o))
    now = peak = 0
    for step in sorted(change):
        now += change[step]
        peak = max(peak, now - (_saved(items, meeting[step]) if step in meeting else 0))
    return peak


def _saved(items: Sequence[Item], pairs: Sequence[tuple[int, int]]) -> int:
    """The most bytes that pairs meeting at one step can save together; no less than that beyond `MOST_MATCHED`."""
    gains = [min(items[a].size, items[o].size) for a, o in pairs]
    if len({a for a, _ in pairs}) == 1 or len({o for _, o in pairs}) == 1:
        return max(gains)
    # A matching of the dying with the born. Statements that overlay have few of either, so subsets of the fewer are tabled.
    few, many = (0, 1) if len({a for a, _ in pairs}) <= len({o for _, o in pairs}) else (1, 0)
    rows: dict[int, dict[int, int]] = {}
    for pair, gain in zip(pairs, gains):
        rows.setdefault(pair[many], {})[pair[few]] = gain
    columns = {i: 1 << k for k, i in enumerate(sorted({pair[few] for pair in pairs}))}
    if len(columns) > MOST_MATCHED:
        return sum(max(row.get(i, 0) for row in rows.values()) for i in columns)
    best = {0: 0}
    for row in rows.values():
        for used, saved in list(best.items()):
            for i, gain in row.items():
                if not used & columns[i]:
                    then = used | columns[i]
                    best[then] = max(best.get(then, 0), saved + gain)
    return max(best.values())


def sharing(items: Sequence[Item], may_share: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs that meet: those which a placement can use.

    Parameters
    ----------
    items : sequence of Item
    may_share : sequence of pair of int
        Pairs ``(a, o)`` of positions in ``items``: the bytes of ``o`` may begin at the first byte of ``a``, on which its
        statement wrote it over its dying input. A permission, not an order; each item keeps its own life and size. A
        pair counts where ``a``, born before, dies at the very step at which ``o`` is born; elsewhere it permits nothing.

    Raises
    ------
    InputError
        When a pair names an item that is not there, or one item twice.
    """
    for a, o in may_share:
        if not (0 <= a < len(items) and 0 <= o < len(items)) or a == o:
            raise InputError(f"placement: the pair ({a}, {o}) does not name two of the {len(items)} items")
    return sorted({(a, o) for a, o in may_share if items[a].first < items[a].last == items[o].first})


def check_contiguous(items: Sequence[Item], contiguous: Sequence[Sequence[int]]) -> None:
    """Refuse groups of items that no placement can lay side by side because they make no sense.

    Raises
    ------
    InputError
        When a group names an item that is not there, or when an item is named twice.
    """
    named = [i for group in contiguous for i in group]
    if any(not 0 <= i < len(items) for i in named):
        raise InputError(f"placement: a contiguous group names an item that is not among the {len(items)}")
    if len(set(named)) < len(named):
        raise InputError("placement: an item is named twice by contiguous groups")


def least_extent(
    items: Sequence[Item], may_share: Sequence[tuple[int, int]] = (), contiguous: Sequence[Sequence[int]] = ()
) -> int:
    """A bound from below for every arena: the liveness peak, or the longest contiguous group if that is more."""
    longest = max((sum(items[i].size for i in group) for group in contiguous), default=0)
    return max(liveness_peak(items, may_share), longest)


def unit_of(items: Sequence[Item]) -> int:
    """Bytes of which all sizes are multiples, and therefore the least arena too; 1 if there are none.

    Where nothing can slide down any more every offset is a sum of sizes.
    """
    return math.gcd(*(i.size for i in items if i.size)) or 1


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


def check_placement(
    items: Sequence[Item],
    offsets: Sequence[int],
    *,
    alignment: int = 1,
    may_share: Sequence[tuple[int, int]] = (),
    contiguous: Sequence[Sequence[int]] = (),
) -> int:
    """Check a placement pair by pair and return the arena's size.

    Two items resident at one step may share bytes only if they are a pair of ``may_share``, their offsets are equal, and
    that step is the one at which the first of them dies and the second is born (see `sharing`). The items of a group of
    ``contiguous`` follow each other without a gap, in the order of the group.

    Raises
    ------
    InputError
        When an offset is negative or not aligned, an item has no lifetime, two items share a byte that they may not, or
        a group is torn; the message names them. O(n log n + pairs resident together).
    """
    if len(items) != len(offsets):
        raise InputError(f"placement: {len(offsets)} offsets for {len(items)} items")
    for item, offset in zip(items, offsets):
        if item.first > item.last or item.size < 0:
            raise InputError(f"placement: {item.name!r} has no lifetime or a negative size")
        if offset < 0 or offset % alignment:
            raise InputError(f"placement: offset {offset} of {item.name!r} is not a multiple of {alignment}")
    pairs = set(sharing(items, may_share))
    for i, near in enumerate(overlaps([(item.first, item.last) for item in items])):
        a, at = items[i], offsets[i]
        for j in near:
            b, bt = items[j], offsets[j]
            if j < i and at < bt + b.size and bt < at + a.size:
                pair = (i, j) in pairs or (j, i) in pairs
                if not pair or at != bt:
                    hint = "; they may share the first byte only" if pair else ""
                    raise InputError(f"placement: {a.name!r} and {b.name!r} overlap in time and in bytes{hint}")
    check_contiguous(items, contiguous)
    for group in contiguous:
        for i, j in pairwise(group):
            if offsets[j] != offsets[i] + items[i].size:
                raise InputError(f"placement: {items[j].name!r} does not follow {items[i].name!r} without a gap")
    return max((offset + item.size for item, offset in zip(items, offsets)), default=0)
