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

Budgets are counted in nodes, so an answer depends on nothing else. This module is the specification; `canonical.c` of
peakmem-native is the same search, some fifty times faster, and is used where that is installed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from peakmem.arena.items import Item, overlaps
from peakmem.system import compiled

Items = npt.NDArray[np.intp]

Answer = Literal["refuted", "found", "open"]

PREORDERS = (
    (True, lambda item: (-_width(item), -item.size)),
    (True, lambda item: (-_width(item) * item.size, -_width(item))),
    (True, lambda item: (-_width(item), 0)),
    (False, lambda item: (-_width(item), -item.size)),
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
    part: Part, preorder: int, capacity: int, nodes: int, stop: Callable[[], bool] = lambda: False
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

    Returns
    -------
    answer : {"found", "refuted", "open"}
        Open: the nodes did not suffice.
    offsets : tuple of int
        Of the part's items; empty unless found.
    left : int
        Nodes that were not opened.
    """
    kernel = _kernel()
    if kernel is not None and sum(part.size) < _LARGEST and capacity < _LARGEST:
        return _search_native(kernel, part, preorder, capacity, nodes, stop)
    run = _Search(part, preorder, capacity, nodes, stop)
    with _deep_enough(4 * len(part.size)):
        answer = run.part(np.arange(len(part.size)), 0)
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
    """The state that nodes share; items of a list stand in their part's preorder, ``place`` tells where each stood there."""

    def __init__(self, part: Part, preorder: int, capacity: int, nodes: int, stop: Callable[[], bool]) -> None:
        n, whole = len(part.size), sum(part.size)
        kind = np.dtype(np.int64 if max(whole, capacity) < _LARGEST else object)
        self.p = part
        self.by_total, self.rank = PREORDERS[preorder][0], part.ranks[preorder]
        self.capacity, self.nodes, self.stop = capacity, nodes, stop
        self.never = 2 * (whole + capacity) + 1
        self.size, self.least = np.array(part.size, kind), np.zeros(n, kind)
        self.begin, self.end = np.array(part.begin), np.array(part.end)
        sections = np.arange(part.sections)
        self.resident = (self.begin[:, None] <= sections) & (sections < self.end[:, None])
        self.near = [np.array(near, np.intp) for near in part.near]
        self.total = np.where(self.resident, self.size[:, None], 0).sum(0)  # of each section, what is not placed
        self.place = np.zeros(n, np.intp)
        self.placed = bytearray(n)
        self.is_placed = np.frombuffer(self.placed, np.bool_)
        self.offsets = [0] * n

    def part(self, members: Items, offset: int) -> Answer:
        """Place a part above ``offset``, in a preorder of its own."""
        p, total = self.p, self.total

        def key(u: int) -> tuple[int, int]:
            return (-max(total[p.begin[u] : p.end[u]]) if self.by_total else 0, self.rank[u])

        ordered = np.array(sorted(members.tolist(), key=key), np.intp)
        before = self.place[ordered]
        self.place[ordered] = np.arange(len(ordered))
        window = slice(int(self.begin[ordered].min()), int(self.end[ordered].max()))
        answer = self.node(ordered, window, offset, -1)
        self.place[ordered] = before
        return answer

    def split(self, rest: Items, offset: int, last: int) -> Answer:
        """Go on with what remains, part by part."""
        by_time = rest[np.argsort(self.begin[rest], kind="stable")]
        begin, end = self.begin[by_time], np.maximum.accumulate(self.end[by_time])
        gaps = (begin[1:] >= end[:-1]).nonzero()[0] + 1
        if not gaps.size:
            return self.node(rest, slice(int(begin[0]), int(end[-1])), offset, last)
        for members in np.split(by_time, gaps):
            answer = self.part(members, offset)
            if answer != "found":
                return answer
        return "found"

    def node(self, items: Items, window: slice, offset: int, last: int) -> Answer:
        """Place one item, then the rest; ``offset`` and ``last`` (place in the preorder) are those of the item before."""
        if self.nodes <= 0 or (self.nodes % _PULSE == 0 and self.stop()):
            return "open"
        self.nodes -= 1
        p, placed, places = self.p, self.placed, self.place[items]
        least = self.least[items]
        low = least.copy()
        passed = (low < offset) | ((low == offset) & (places < last))
        for k in passed.nonzero()[0].tolist():
            support = next((j for j in p.near[items[k]] if not placed[j]), None)
            if support is None:
                return "refuted"
            low[k] = max(low[k], offset + p.size[support])
        floor = np.where(self.resident[items, window], low[:, None], self.never).min(0)
        if ((floor < self.never) & (floor > self.capacity - self.total[window])).any():
            return "refuted"
        height = (least + self.size[items]).min()
        choices = (~passed & (least < height)).nonzero()[0]
        for k in choices[np.argsort(least[choices], kind="stable")].tolist():
            x, at = int(items[k]), int(least[k])
            near = self.near[x]
            near = near[~self.is_placed[near]]
            before, span = self.least[near], slice(p.begin[x], p.end[x])
            placed[x] = True
            self.least[near] = np.maximum(before, at + p.size[x])
            self.total[span] -= p.size[x]
            others = np.concatenate((items[:k], items[k + 1 :]))
            answer: Answer = self.split(others, at, int(places[k])) if others.size else "found"
            self.least[near] = before
            self.total[span] += p.size[x]
            placed[x] = False
            if answer == "found":
                self.offsets[x] = at
            if answer != "refuted" or not near.size:
                return answer
        return "refuted"


def _kernel() -> Any | None:
    library = compiled.library()
    return None if library is None else library.peakmem_canonical_search


_STOP = ctypes.CFUNCTYPE(ctypes.c_int)
_ANSWERS: tuple[Answer, ...] = ("refuted", "found", "open")


def _search_native(
    run: Any, part: Part, preorder: int, capacity: int, nodes: int, stop: Callable[[], bool]
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
