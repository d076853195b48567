"""Greedy first, then local search, then two exact ones, each where what came before misses the liveness peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peakmem.arena.greedy import arena_size, greedy_portfolio, improve, relations
from peakmem.arena.items import Item, Placement, check_contiguous, check_placement, least_extent
from peakmem.arena.lowering import Lowering
from peakmem.arena.solver import least_offsets
from peakmem.system import clock

MOST_PAIRS, MOST_PAIRS_AFTER_SEARCH = 10_000, 2_000
"""With more pairs of items resident together CP-SAT is not tried: it would end with nothing after long.

After the canonical search the smaller number holds: what that left open among many items CP-SAT does not find either.
"""

MOST_ITEMS = 2_000
"""With more items the canonical search is not tried: its memory grows with their square."""

LARGE = 4_000
"""Sections of all items, summed, above which there are fewer nodes, in proportion to what each of them costs."""

NODES = {0.1: 20_000, 0.5: 100_000, 2.0: 500_000, 10.0: 5_000_000, 50.0: 25_000_000, 250.0: 125_000_000}
"""Efforts, spent one after the other up to the one asked for, and the nodes of the canonical search until each ends.

A greater effort begins with all of a lesser one. A million nodes take a second or two with peakmem-native, a minute or two without.
"""

_WORK = 1_000_000
"""Bound of the local search: placements tried times items and pairs of them resident together. Half a second."""


def plan(
    items: Sequence[Item],
    *,
    alignment: int = 1,
    may_share: Sequence[tuple[int, int]] = (),
    contiguous: Sequence[Sequence[int]] = (),
    enough: int = 0,
    deadline: float | None = None,
    effort: float = 2.0,
    found: Callable[[Placement], None] | None = None,
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
    enough : int
        Bytes with which one is content, such as the size of a memory: what is not larger is not improved.
    deadline : float, optional
        A moment of `peakmem.system.clock` for the exact part.
    effort : float
        Roughly seconds of the exact part with peakmem-native; spent in the steps of `NODES`, so that more never ends worse than less, and
        below the first of them not at all. CP-SAT gets less where more than 2,000 pairs of items are resident together.
    found : callable, optional
        Told of placements on the way, none worse than the one before, for callers who want to keep the best on Ctrl-C.

    Returns
    -------
    Placement
        Checked pair by pair before it is returned. The same input gives the same result unless the deadline cuts in.
    """
    check_contiguous(items, contiguous)
    peak = least_extent(items, may_share, contiguous)
    known = relations(items, may_share, contiguous)
    goal = max(peak, enough)
    best: tuple[int, ...] = ()
    size = -1
    for offsets in greedy_portfolio(items, known):
        reached = arena_size(items, offsets)
        if size < 0 or reached < size:
            best, size = offsets, reached
        if size <= goal:
            break
    if size > goal:
        pairs = sum(map(len, known.near)) // 2
        best = improve(items, best, goal, min(400, _WORK // (len(items) + pairs)), known)
        size = arena_size(items, best)
    placement = Placement(best, size, peak)
    tell = found or (lambda placement: None)
    tell(placement)
    if size > goal:
        lowering = None
        if len(items) <= MOST_ITEMS and not any(known.partners) and not contiguous:
            lowering = Lowering(items, placement, enough, lambda: _late(deadline))
        few_pairs = pairs <= (MOST_PAIRS_AFTER_SEARCH if lowering is not None else MOST_PAIRS)
        spent = 0
        for rung, nodes in NODES.items():
            if rung > effort or placement.size <= max(placement.lower_bound, enough) or _late(deadline):
                break
            if lowering is not None:
                lowering.best = placement
                try:
                    share = LARGE / max(LARGE, lowering.work)
                    placement = lowering.run(int((nodes - spent) * share))
                finally:
                    tell(lowering.best)
            if placement.size > max(placement.lower_bound, enough) and few_pairs:
                # The solver's deterministic time grows dearer with the pairs it must keep apart.
                placement = least_offsets(
                    items,
                    placement.offsets,
                    may_share=may_share,
                    contiguous=contiguous,
                    lower_bound=placement.lower_bound,
                    deadline=deadline,
                    effort=rung * min(1.0, (2000 / pairs) ** 3 if pairs else 1.0),
                )
            tell(placement)
            spent = nodes
    check_placement(items, placement.offsets, alignment=alignment, may_share=may_share, contiguous=contiguous)
    return placement


def _late(deadline: float | None) -> bool:
    return clock.late(deadline)
