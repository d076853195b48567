"""Search for a placement within a given capacity, or for the proof that there is none.

The method is that of M. D. Moffitt, *MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
Learning* (ASPLOS 2023, volume 4), with one rule more (5 below).

Take a placement of the least sum of offsets among those within the capacity. Nothing in it can slide down, so every item
lies at 0 or rests on a neighbour (an item resident with it at some step) that lies lower. Listed by offset, ties in any
fixed order of the items, its *preorder*, each item lies at the largest end of the neighbours before it. So it is enough
to place items in such *canonical* sequences, each at its *least offset* now, depth first:

1. *Canonical*: an item whose least offset is below that of the item placed last, or equal and before it in the preorder,
   is passed over until a neighbour below lifts it.
2. *Dominance*: no item goes where another one would fit below it: sliding that one down would lower the sum.
3. *Sections*: a section is a set of items resident together that no other such set contains, in order of time. What is
   still to be placed there lies above the least of its least offsets, so that floor and those sizes fit together.
4. *Hatless*: an item without neighbours still to be placed is in nobody's way; if the rest fails, it fails everywhere.
5. *Support*: an item passed over rests in the end on a neighbour that is still to be placed, so it lies at least the
   smallest such neighbour above the present offset; without one it has no place.
6. *Parts*: where the items still to be placed fall apart in time, each part is solved by itself.

Budgets are counted in nodes, so an answer depends on nothing else. This module is the specification; `canonical.c` is the
same search, some hundred times faster, and is used where a compiler is found.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from peakmem.arena.items import Item, overlaps
from peakmem.model import RuntimeMissing
from peakmem.system.native import build_library

Answer = Literal["refuted", "found", "open"]

PREORDERS = (
    (False, lambda item: (-_width(item), -item.size)),
    (True, lambda item: (-_width(item) * item.size, -_width(item))),
    (True, lambda item: (-_width(item), -item.size)),
    (True, lambda item: (-_width(item), 0)),
)
"""Whether items of the fullest sections come first, and what decides then: long lives and large areas."""

_LARGEST = 2**61
"""Bytes of all items together up to which the compiled search computes without overflow."""

_PULSE = 1 << 14


def _width(item: Item) -> int:
    return item.last - item.first + 1


@dataclass(frozen=True)
class Part:
    """Items connected through time, numbered from 0, with their sections.

    Attributes
    ----------
    members : tuple of int
        Positions of the items in the caller's list.
    size, begin, end : tuple of int
        Bytes of each item, the first of its sections, and the one after the last.
    near : tuple of tuple of int
        The neighbours of each item, smallest first.
    sections : int
        How many there are.
    ranks : tuple of tuple of int
        For each of `PREORDERS` the place of each item.
    """

    members: tuple[int, ...]
    size: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    near: tuple[tuple[int, ...], ...]
    sections: int
    ranks: tuple[tuple[int, ...], ...]


def parts(items: Sequence[Item]) -> list[Part]:
    """Split items into parts that share no step; items of no bytes belong to none. O(n log n + pairs)."""
    result: list[Part] = []
    members: list[int] = []
    end = 0
    for i in sorted((i for i, item in enumerate(items) if item.size), key=lambda i: items[i].first):
        if members and items[i].first > end:
            result.append(_part(items, members))
            members = []
        end = max(end, items[i].last) if members else items[i].last
        members.append(i)
    return [*result, _part(items, members)] if members else result


def _part(items: Sequence[Item], members: Sequence[int]) -> Part:
    own = [items[i] for i in members]
    begin, end = [0] * len(own), [0] * len(own)
    section, grown = 0, False
    events = [(item.first, 1, k) for k, item in enumerate(own)] + [(item.last + 1, 0, k) for k, item in enumerate(own)]
    for _, born, k in sorted(events):
        if born:
            begin[k], grown = section, True
        else:
            section, grown = section + grown, False
            end[k] = section
    near = overlaps([(item.first, item.last) for item in own])
    ranks = []
    for _, key in PREORDERS:
        order = sorted(range(len(own)), key=lambda k: key(own[k]))
        ranks.append(tuple(sorted(order, key=order.__getitem__)))
    return Part(
        tuple(members),
        tuple(item.size for item in own),
        tuple(begin),
        tuple(end),
        tuple(tuple(sorted(n, key=lambda k: (own[k].size, k))) for n in near),
        section,
        tuple(ranks),
    )


def search(
    part: Part, preorder: int, capacity: int, nodes: int, stop: Callable[[], bool] = lambda: False, native: bool = True
) -> tuple[Answer, tuple[int, ...], int]:
    """Place the items of one part within a capacity.

    Parameters
    ----------
    part : Part
    preorder : int
        Which of `PREORDERS`.
    capacity : int
        Bytes.
    nodes : int
        Nodes that may be opened.
    stop : callable
        Asked now and then; true ends the search as if the nodes were used up.
    native : bool
        Whether the compiled search is used if there is one.

    Returns
    -------
    answer : {"found", "refuted", "open"}
        Open: the nodes did not suffice.
    offsets : tuple of int
        Of the part's items; empty unless found.
    left : int
        Nodes that were not opened.
    """
    if native and sum(part.size) < _LARGEST and capacity < _LARGEST and kernel() is not None:
        return _search_native(part, preorder, capacity, nodes, stop)
    run = _Search(part, preorder, capacity, nodes, stop)
    with _deep_enough(4 * len(part.size)):
        answer = run.part(list(range(len(part.size))), 0)
    return answer, tuple(run.offsets) if answer == "found" else (), run.nodes


@contextmanager
def _deep_enough(frames: int) -> Iterator[None]:
    """Room for one recursion over all items; pure Python calls use no stack of C."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class _Search:
    """The state that nodes share. Lists of items hold pairs: the place in the part's preorder, and the item."""

    def __init__(self, part: Part, preorder: int, capacity: int, nodes: int, stop: Callable[[], bool]) -> None:
        self.p = part
        self.by_total, self.rank = PREORDERS[preorder][0], part.ranks[preorder]
        self.capacity, self.nodes, self.stop = capacity, nodes, stop
        self.least = [0] * len(part.size)
        self.offsets = [0] * len(part.size)
        self.placed = [False] * len(part.size)

    def part(self, members: list[int], offset: int) -> Answer:
        """Place a part above ``offset``, in a preorder of its own."""
        p = self.p
        total = dict.fromkeys(range(p.sections), 0)
        for u in members:
            for t in range(p.begin[u], p.end[u]):
                total[t] += p.size[u]

        def key(u: int) -> tuple[int, int]:
            return (-max(total[t] for t in range(p.begin[u], p.end[u])) if self.by_total else 0, self.rank[u])

        return self.node(list(enumerate(sorted(members, key=key))), offset, -1)

    def split(self, rest: list[tuple[int, int]], offset: int, last: int) -> Answer:
        """Go on with what remains, part by part."""
        p = self.p
        found: list[tuple[int, set[int]]] = []  # the end of a part so far, and its items
        for _, u in sorted(rest, key=lambda entry: p.begin[entry[1]]):
            if found and p.begin[u] < found[-1][0]:
                found[-1] = (max(found[-1][0], p.end[u]), found[-1][1] | {u})
            else:
                found.append((p.end[u], {u}))
        if len(found) == 1:
            return self.node(rest, offset, last)
        for _, members in found:
            answer = self.part([u for _, u in rest if u in members], offset)
            if answer != "found":
                return answer
        return "found"

    def node(self, entries: list[tuple[int, int]], offset: int, last: int) -> Answer:
        """Place one item, then the rest; ``offset`` and ``last`` (place in the preorder) are those of the item before."""
        p, least, placed = self.p, self.least, self.placed
        if self.nodes <= 0 or (self.nodes % _PULSE == 0 and self.stop()):
            return "open"
        self.nodes -= 1
        choices = []
        floor: dict[int, int] = {}
        total: dict[int, int] = {}
        for entry in entries:
            place, u = entry
            low = least[u]
            if (low, place) < (offset, last):
                support = next((j for j in p.near[u] if not placed[j]), None)
                if support is None:
                    return "refuted"
                low = max(low, offset + p.size[support])
            else:
                choices.append(entry)
            for t in range(p.begin[u], p.end[u]):
                total[t] = total.get(t, 0) + p.size[u]
                floor[t] = min(floor.get(t, low), low)
        if any(floor[t] + total[t] > self.capacity for t in total):
            return "refuted"
        height = min(least[u] + p.size[u] for _, u in entries)
        for entry in sorted((e for e in choices if least[e[1]] < height), key=lambda e: (least[e[1]], e[0])):
            place, x = entry
            at = least[x]
            open_near = [u for u in p.near[x] if not placed[u]]
            before = [(u, least[u]) for u in open_near]
            placed[x] = True
            for u in open_near:
                least[u] = max(least[u], at + p.size[x])
            answer = self.split([e for e in entries if e is not entry], at, place) if len(entries) > 1 else "found"
            for u, low in before:
                least[u] = low
            placed[x] = False
            if answer == "found":
                self.offsets[x] = at
            if answer != "refuted" or not open_near:
                return answer
        return "refuted"


@cache
def kernel() -> Any | None:
    """The compiled search, or None where no compiler is found."""
    try:
        library = ctypes.CDLL(str(build_library(Path(__file__).with_name("canonical.c"), ("-O2",))))
    except (RuntimeMissing, OSError):
        return None
    return library.canonical_search


_STOP = ctypes.CFUNCTYPE(ctypes.c_int)
_ANSWERS: tuple[Answer, ...] = ("refuted", "found", "open")


def _search_native(
    part: Part, preorder: int, capacity: int, nodes: int, stop: Callable[[], bool]
) -> tuple[Answer, tuple[int, ...], int]:
    n = len(part.size)
    raised: list[BaseException] = []

    def asked() -> int:
        try:
            return stop()
        except BaseException as error:  # Ctrl-C among them: it passes through C as a wish to stop
            raised.append(error)
            return 1

    def array(values: Sequence[int]) -> Any:
        return (ctypes.c_int64 * len(values))(*values)

    first_near = [0]
    for near in part.near:
        first_near.append(first_near[-1] + len(near))
    left, offsets = ctypes.c_int64(nodes), (ctypes.c_int64 * n)()
    run = kernel()
    assert run is not None
    code = run(
        ctypes.c_int64(n),
        ctypes.c_int64(part.sections),
        array(part.size),
        array(part.begin),
        array(part.end),
        array(first_near),
        array([j for near in part.near for j in near]),
        array(part.ranks[preorder]),
        ctypes.c_int64(PREORDERS[preorder][0]),
        ctypes.c_int64(capacity),
        ctypes.byref(left),
        offsets,
        _STOP(asked),
    )
    if raised:
        raise raised[0]
    if code >= len(_ANSWERS):
        raise MemoryError
    answer = _ANSWERS[code]
    return answer, tuple(offsets) if answer == "found" else (), left.value
