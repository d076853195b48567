"""Greedy first, then local search, then exact, each where what came before misses the liveness peak."""

from __future__ import annotations

from collections.abc import Sequence

from peakmem.arena.exact import exact_offsets
from peakmem.arena.greedy import arena_size, greedy_portfolio, improve
from peakmem.arena.items import Item, Placement, check_placement, liveness_peak


MOST_ITEMS = 400
"""Above this many items the exact solver is not tried: it would end with nothing after a long while."""

_ROUNDS = 4_000_000
"""Bound of the local search: placements tried times the square of the number of items."""


def plan(
    items: Sequence[Item], *, alignment: int = 1, deadline: float | None = None, effort: float = 2.0
) -> Placement:
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
        See `peakmem.arena.exact.exact_offsets`; reduced for more than 100 items.

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
    if size > peak:
        best = improve(items, best, peak, min(400, _ROUNDS // len(items) ** 2))
        size = arena_size(items, best)
    placement = Placement(best, size, peak)
    if size > peak and len(items) <= MOST_ITEMS:
        # A step of the solver's deterministic time is dearer the more items there are.
        share = min(1.0, (100 / len(items)) ** 2)
        placement = exact_offsets(items, best, deadline=deadline, effort=effort * share)
    check_placement(items, placement.offsets, alignment=alignment)
    return placement
