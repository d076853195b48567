"""Beam search: many partial orders side by side, the best kept at each length."""

from __future__ import annotations

import random

from peakmem.ordering.meter import Meter
from peakmem.ordering.problem import Problem, State

Link = tuple[int, int, "Link"] | None
"""A partial order as a linked list: its length, its last statement, what came before."""


def beam(problem: Problem, width: int, ceiling: int, meter: Meter | None = None) -> list[int]:
    """An order of peak at most ``ceiling`` by beam search, or an empty one.

    At each length the ``width`` states of least ``rest`` are kept; equal states are merged. O(width x n x ready
    statements), and the steps between neighbouring states.
    """
    n = len(problem)
    meter = meter or Meter()
    # A state is known by the sum of its statements' random numbers: if two ever collided, one would be lost, no more.
    numbers = random.Random(n)
    mark = [numbers.getrandbits(62) for _ in range(n)]
    walker = _Walker(problem)
    state = walker.state
    layer: list[tuple[int, int, Link]] = [(state.rest, 0, None)]
    for _ in range(n):
        following: dict[int, tuple[int, int, Link]] = {}
        for _, key, link in layer:
            if meter.out:
                return []
            walker.go(link)
            meter.spend(1 + len(state.ready))
            length = len(state.path) + 1
            for v in state.ready:
                mem, change = state.step(v)
                if mem <= ceiling:
                    then = key + mark[v]
                    if then not in following:
                        following[then] = (state.rest + change, then, (length, v, link))
        if not following:
            return []
        layer = sorted(following.values(), key=lambda entry: entry[:2])[:width]
    walker.go(layer[0][2])
    return state.path


class _Walker:
    """Moves one state between partial orders along what they share."""

    def __init__(self, problem: Problem) -> None:
        self.state = State(problem)
        self.links: list[Link] = []

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
