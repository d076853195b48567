"""Beam search: many partial orders side by side, the best kept at each length."""

from __future__ import annotations

import random

from peakmem.ordering import native
from peakmem.ordering.meter import Meter
from peakmem.ordering.problem import Problem, State

Link = tuple[int, int, "Link"] | None
"""A partial order as a linked list: its length, its last statement, what came before."""

KEYS = (1 << 64) - 1


def beam(problem: Problem, width: int, ceiling: int, meter: Meter | None = None, *, seed: int = 0) -> list[int]:
    """An order of peak at most ``ceiling`` by beam search, or an empty one.

    At each length the ``width`` states of least ``rest`` are kept; equal states are merged. A state that is kept first takes its
    safe moves (statements within the ceiling that leave no more than they found), so its children may be longer by more than
    one. O(width x n x ready statements), and the steps between neighbouring states.

    Parameters
    ----------
    problem : Problem
    width : int
        States kept at each length, at least 1.
    ceiling : int
        Bytes that no step may exceed.
    meter : Meter, optional
        When it is out, the search ends without an order.
    seed : int
        Decides between states of the same ``rest``.
    """
    n = len(problem)
    meter = meter or Meter()
    # A state is known by the sum of its statements' random numbers: if two ever collided, one would be lost, no more.
    numbers = random.Random(n + (seed << 32))
    mark = [numbers.getrandbits(64) for _ in range(n)]
    kernel = native.kernel()
    if kernel is not None and kernel.fits(problem):
        return kernel.beam(problem, width, ceiling, mark, meter)
    walker = _Walker(problem)
    state = walker.state
    layers: list[dict[int, tuple[int, int, int, Link]]] = [{} for _ in range(n + 1)]
    layers[0][0] = (state.rest, 0, -1, None)
    for length in range(n + 1):
        layer, layers[length] = layers[length], {}
        last = sorted(entry[:2] for entry in layer.values())[:width][-1:]
        # Kept are neighbours in the tree of partial orders, one after the other: from one to the next it is not far.
        for rest, key, v, link in layer.values():
            if (rest, key) > last[0]:
                continue
            if meter.out:
                return []
            walker.go(link)
            if v >= 0:
                link = walker.run(v, link)
            moved = True
            while moved:
                moved = False
                meter.spend(1 + len(state.ready))
                children = []
                for v in sorted(state.ready):
                    mem, change = state.step(v)
                    if mem > ceiling:
                        continue
                    if change <= 0:
                        link = walker.run(v, link)
                        key += mark[v]
                        moved = True
                    else:
                        children.append((v, state.rest + change))
            if len(state.path) == n:
                return state.path
            following = layers[len(state.path) + 1]
            for v, then in children:
                child = (key + mark[v]) & KEYS
                if child not in following:
                    following[child] = (then, child, v, link)
    return []


class _Walker:
    """Moves one state between partial orders along what they share."""

    def __init__(self, problem: Problem) -> None:
        self.state = State(problem)
        self.links: list[Link] = []

    def run(self, v: int, link: Link) -> Link:
        """Run ready ``v`` where the state is at ``link``."""
        self.state.push(v)
        link = (len(self.state.path), v, link)
        self.links.append(link)
        return link

    def go(self, link: Link) -> None:
        ahead: list[Link] = []
        while link is not None and not (link[0] <= len(self.links) and self.links[link[0] - 1] is link):
            ahead.append(link)
            link = link[2]
        common = 0 if link is None else link[0]
        self.state.unwind(common)
        del self.links[common:]
        for entry in reversed(ahead):
            assert entry is not None
            self.state.push(entry[1])
            self.links.append(entry)
