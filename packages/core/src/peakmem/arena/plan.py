"""Greedy first, then local search, then exact, each where what came before misses the liveness peak."""

from __future__ import annotations

from collections.abc import Sequence

from peakmem.arena.greedy import arena_size, greedy_portfolio, improve, relations
from peakmem.arena.items import Item, Placement, check_contiguous, check_placement, least_extent
from peakmem.arena.solver import least_offsets

MOST_PAIRS = 10_000
"""With more pairs of items resident together the exact solver is not tried: it would end with nothing after long."""

_WORK = 1_000_000
"""Bound of the local search: placements tried times items and pairs of them resident together. Half a second."""


def plan(
    items: Sequence[Item],
    *,
    alignment: int = 1,
    may_share: Sequence[tuple[int, int]] = (),
    contiguous: Sequence[Sequence[int]] = (),
    deadline: float | None = None,
    effort: float = 2.0,
) -> Placement:
    """Place items as low as can be found.

    Parameters
    ----------
    items : sequence of Item
        Sizes are multiples of ``alignment``; the offsets are too.
    alignment : int
        Bytes.
    may_share : sequence of pair of int
        Pairs of items that may have the same first byte where one dies and the other is born; see
        `peakmem.arena.items.sharing`.
    contiguous : sequence of sequence of int
        Groups of items, each in the order in which its items shall lie one after another without a gap.
    deadline : float, optional
        A `time.monotonic` value for the exact part.
    effort : float
        See `peakmem.arena.solver.least_offsets`; reduced where more than 2,000 pairs of items are resident together.

    Returns
    -------
    Placement
        Checked pair by pair before it is returned.
    """
    check_contiguous(items, contiguous)
    peak = least_extent(items, may_share, contiguous)
    known = relations(items, may_share, contiguous)
    best: tuple[int, ...] = ()
    size = -1
    for offsets in greedy_portfolio(items, known):
        reached = arena_size(items, offsets)
        if size < 0 or reached < size:
            best, size = offsets, reached
        if size == peak:
            break
    placement = Placement(best, size, peak)
    if size > peak:
        pairs = sum(map(len, known.near)) // 2
        best = improve(items, best, peak, min(400, _WORK // (len(items) + pairs)), known)
        placement = Placement(best, arena_size(items, best), peak)
        if not placement.least and pairs <= MOST_PAIRS:
            # The solver's deterministic time grows dearer with the pairs it must keep apart.
            share = min(1.0, (2000 / pairs) ** 3) if pairs else 1.0
            placement = least_offsets(
                items, best, may_share=may_share, contiguous=contiguous, deadline=deadline, effort=effort * share
            )
    check_placement(items, placement.offsets, alignment=alignment, may_share=may_share, contiguous=contiguous)
    return placement
