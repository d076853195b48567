"""Greedy first, exact where greedy misses the liveness peak."""

from __future__ import annotations

from collections.abc import Sequence

from peakmem.arena.exact import exact_offsets
from peakmem.arena.greedy import arena_size, greedy_portfolio
from peakmem.arena.items import Item, Placement, check_placement, liveness_peak


def plan(
    items: Sequence[Item], *, alignment: int = 1, deadline: float | None = None, effort: float = 10.0
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
        See `peakmem.arena.exact.exact_offsets`.

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
        placement = exact_offsets(items, best, deadline=deadline, effort=effort)
    check_placement(items, placement.offsets, alignment=alignment)
    return placement
