"""Lower an arena with the canonical search: many short attempts, the budget of each growing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from peakmem.arena.greedy import arena_size
from peakmem.arena.items import Item, Placement, unit_of


class Lowering:
    """A search that can be continued: what a budget of nodes finds, a larger one finds as well.

    Each round tries every preorder at the goal, then halfway between it and the best placement for as long as that
    succeeds; the next round allows each attempt four times the nodes. A preorder that suits the items needs few of them, so
    short attempts come first.

    Parameters
    ----------
    items : sequence of Item
    start : Placement
        A valid placement and a bound from below.
    enough : int
        Bytes with which one is content; the goal is this, or the bound if that is more.
    stop : callable
        Asked now and then; true ends the search.

    Attributes
    ----------
    best : Placement
        Never larger than ``start``; its bound rises where the search refuted a size.
    work : int
        Sections of all items, summed: what a node costs at most.
    """

    def __init__(
        self,
        items: Sequence[Item],
        start: Placement,
        enough: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        from peakmem.arena.canonical import parts  # not above: it brings numpy, which listing frontends does without

        self.best = start
        self._items, self._enough, self._stop = items, enough, stop
        self._unit = unit_of(items)
        self._parts = parts(items)
        self.work = sum(end - begin for part in self._parts for begin, end in zip(part.begin, part.end))
        self._nodes = 0
        self._course = self._attempts()

    @property
    def _goal(self) -> int:
        return max(self.best.lower_bound, self._enough)

    def run(self, nodes: int) -> Placement:
        """Continue until ``nodes`` more are opened, the goal is reached, or ``stop`` says so.

        An attempt once begun is finished, so that the course does not depend on where it was interrupted.
        """
        self._nodes += nodes
        while self._nodes > 0 and self.best.size > self._goal and not self._stop():
            self._nodes -= next(self._course)
        return self.best

    def _attempts(self) -> Iterator[int]:
        """Attempts without end, each with the nodes that it opened."""
        limit = 2 * len(self._items)
        while True:
            yield from self._attempt(self._goal, limit)
            size = -1
            while size != self.best.size:
                size = self.best.size
                middle = (self._goal + size) // 2 // self._unit * self._unit
                if middle > self._goal:
                    yield from self._attempt(middle, limit)
            limit *= 4

    def _attempt(self, capacity: int, limit: int) -> Iterator[int]:
        """Try all preorders at one capacity until it is reached or refuted."""
        from peakmem.arena.canonical import PREORDERS, search

        for preorder in range(len(PREORDERS)):
            offsets, left = [0] * len(self._items), limit
            for part in self._parts:
                answer, own, left = search(part, preorder, capacity, left, self._stop)
                if answer != "found":
                    break
                for i, offset in zip(part.members, own):
                    offsets[i] = offset
            if answer == "found":
                size = arena_size(self._items, offsets)
                self.best = Placement(tuple(offsets), size, self.best.lower_bound)
            elif answer == "refuted":  # the next size there can be
                bound = (capacity // self._unit + 1) * self._unit
                self.best = Placement(self.best.offsets, self.best.size, max(self.best.lower_bound, bound))
            yield limit - left
            if answer != "open":
                return
