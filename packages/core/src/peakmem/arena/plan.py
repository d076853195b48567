"""Greedy first, then local search, then exact, each where what came before misses the liveness peak."""

from __future__ import annotations

from collections.abc import Sequence

from peakmem.arena.greedy import arena_size, greedy_portfolio, improve, neighbours
from peakmem.arena.items import Item, Placement, check_placement, liveness_peak
from peakmem.arena.solver import least_offsets

MOST_PAIRS = 10_000
"""With more pairs of items resident together the exact solver is not tried: it would end with nothing after long."""

_WORK = 1_000_000
"""Bound of the local search: placements tried times items and pairs of them resident together. Half a second."""


def plan(items: Sequence[Item], *, alignment: int = 1, deadline: float | None = None, effort: float = 2.0) -> Placement:
    """Place items as low as can be found.

    Parameters
    ----------
    items : sequence of Item
        Sizes are multiples of ``alignment``; the offsets are too.
    alignment : int
        Bytes.
    deadline : float, optional
        A `time.monotonic` value for the exact part.
    effort : float
        See `peakmem.arena.solver.least_offsets`; reduced where more than 2,000 pairs of items are resident together.

    Returns
    -------
    Placement
        Checked pair by pair before it is returned.
    """
    peak = liveness_peak(items)
    best: tuple[int, ...] = ()
    size = -1
    for offsets in greedy_portfolio(items):
        reached = arena_size(items, offsets)
        if size < 0 or reached < size:
            best, size = offsets, reached
        if size == peak:
            break
    placement = Placement(best, size, peak)
    if size > peak:
        pairs = sum(map(len, neighbours(items))) // 2
        best = improve(items, best, peak, min(400, _WORK // (len(items) + pairs)))
        placement = Placement(best, arena_size(items, best), peak)
        if not placement.least and pairs <= MOST_PAIRS:
            # The solver's deterministic time grows dearer with the pairs it must keep apart.
            share = min(1.0, (2000 / pairs) ** 3)
            placement = least_offsets(items, best, deadline=deadline, effort=effort * share)
    check_placement(items, placement.offsets, alignment=alignment)
    return placement
