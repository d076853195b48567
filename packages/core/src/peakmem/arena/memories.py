"""Several memories: the hottest items into the first one, what does not fit into the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peakmem.arena.items import Item, Placement, check_contiguous, least_extent, sharing
from peakmem.arena.plan import NODES, plan
from peakmem.model import InputError, Refused
from peakmem.system import clock


@dataclass(frozen=True)
class Spread:
    """Items over memories.

    Attributes
    ----------
    memory : tuple of int
        The memory of each item, by its place in the list of capacities.
    offsets : tuple of int
        Byte offset of each item from the start of its memory.
    sizes : tuple of int
        Bytes used of each memory.
    interrupted : bool
        Whether Ctrl-C ended the search; what was left then was placed with no effort.
    """

    memory: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    interrupted: bool = False


def spread(
    items: Sequence[Item],
    capacities: Sequence[int],
    *,
    heat: Sequence[float] | None = None,
    alignment: int = 1,
    may_share: Sequence[tuple[int, int]] = (),
    contiguous: Sequence[Sequence[int]] = (),
    deadline: float | None = None,
    effort: float = 2.0,
) -> Spread:
    """Give each item a memory and an offset in it.

    Each memory in turn takes the hottest items whose liveness peak fits; where no placement of them is found that fits
    too, the coldest that sticks out is left to the next memory. Sound, since every memory is placed and checked by
    `peakmem.arena.plan`; not optimal in any sense.

    Parameters
    ----------
    items : sequence of Item
    capacities : sequence of int
        Bytes of each memory, the preferred one first.
    heat : sequence of float, optional
        How much each item gains from a preferred memory, such as its accesses per byte; equals go as listed.
    alignment, may_share, contiguous, deadline, effort
        See `peakmem.arena.plan`, which is asked once for each memory and with little effort while items are left out. A
        contiguous group stays together and is as hot as its hottest item; a pair can share bytes in one memory only.

    Raises
    ------
    Refused
        When something is left that the last memory cannot take.
    """
    check_contiguous(items, contiguous)
    if heat is not None and len(heat) != len(items):
        raise InputError(f"placement: {len(heat)} heats for {len(items)} items")
    grouped = {i for group in contiguous for i in group}
    units = [tuple(group) for group in contiguous] + [(i,) for i in range(len(items)) if i not in grouped]
    hottest = heat if heat is not None else [0.0] * len(items)
    left = sorted(units, key=lambda unit: (-max(hottest[i] for i in unit), min(unit)))
    pairs = sharing(items, may_share)
    interrupted = False
    memory, offsets, sizes = [-1] * len(items), [0] * len(items), []

    def instance(chosen: Sequence[tuple[int, ...]]) -> tuple[list[int], list[Item], list[tuple[int, int]], list[list[int]]]:
        numbers = sorted(i for unit in chosen for i in unit)
        at = {i: k for k, i in enumerate(numbers)}
        inside = [(at[a], at[o]) for a, o in pairs if a in at and o in at]
        return numbers, [items[i] for i in numbers], inside, [[at[i] for i in unit] for unit in chosen if len(unit) > 1]

    def place(chosen: Sequence[tuple[int, ...]], capacity: int, effort: float) -> tuple[list[int], Placement]:
        nonlocal interrupted
        numbers, own, inside, groups = instance(chosen)
        best: list[Placement] = []
        try:
            return numbers, plan(
                own,
                alignment=alignment,
                may_share=inside,
                contiguous=groups,
                enough=capacity,
                deadline=deadline,
                effort=0.0 if interrupted else effort,
                found=best.append,
            )
        except KeyboardInterrupt:
            if interrupted or not best:
                raise
            interrupted = True
            return numbers, best[-1]

    for m, capacity in enumerate(capacities):
        chosen: list[tuple[int, ...]] = []
        for unit in left:
            if least_extent(*instance([*chosen, unit])[1:]) <= capacity:
                chosen.append(unit)
        numbers, placement = place(chosen, capacity, effort)
        while placement.size > capacity:
            out = {i for i, o in zip(numbers, placement.offsets) if o + items[i].size > capacity}
            chosen.remove(next(unit for unit in reversed(chosen) if out.intersection(unit)))
            late = interrupted or clock.late(deadline)
            numbers, placement = place(chosen, capacity, 0.0 if late else min(effort, *NODES))
        for i, offset in zip(numbers, placement.offsets):
            memory[i], offsets[i] = m, offset
        sizes.append(placement.size)
        taken = set(chosen)
        left = [unit for unit in left if unit not in taken]
    if left:
        first = items[left[0][0]].name
        raise Refused(f"{len(left)} items, {first!r} the first of them, found no place in {len(capacities)} memories")
    return Spread(tuple(memory), tuple(offsets), tuple(sizes), interrupted)
