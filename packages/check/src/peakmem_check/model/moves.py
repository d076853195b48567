"""Which statements an order moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """One statement that left its place.

    Attributes
    ----------
    statement : int
        Its id, which is its step in the given order.
    step : int
        Its step in the new order.
    """

    statement: int
    step: int


def moves(order: Sequence[int]) -> tuple[Move, ...]:
    """The fewest statements that must be taken out of the given order and put back elsewhere to get ``order``.

    What stays is a longest increasing subsequence of the order, found by patience sorting in O(n log n); of several,
    the one with the smallest last elements. Moves are listed by their new step.
    """
    tails: list[int] = []  # tails[k]: the smallest last element of an increasing subsequence of length k + 1
    steps: list[int] = []  # the step of tails[k]
    before: list[int] = []  # the step ahead of each step in its subsequence
    for step, v in enumerate(order):
        k = bisect_left(tails, v)
        before.append(steps[k - 1] if k else -1)
        if k == len(tails):
            tails.append(v)
            steps.append(step)
        else:
            tails[k] = v
            steps[k] = step
    stays: set[int] = set()
    at = steps[-1] if steps else -1
    while at >= 0:
        stays.add(at)
        at = before[at]
    return tuple(Move(v, step) for step, v in enumerate(order) if step not in stays)
