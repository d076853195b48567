"""Least placements with OR-tools CP-SAT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from peakmem.arena.items import Item, Placement, least_extent, sharing, unit_of
from peakmem.system import clock


def least_offsets(
    items: Sequence[Item],
    incumbent: Sequence[int],
    *,
    may_share: Sequence[tuple[int, int]] = (),
    contiguous: Sequence[Sequence[int]] = (),
    lower_bound: int = 0,
    deadline: float | None = None,
    effort: float = 2.0,
) -> Placement:
    """Lower a placement as far as a solver can, and prove how far that is.

    Parameters
    ----------
    items : sequence of Item
    incumbent : sequence of int
        A valid placement; the result is never larger.
    may_share : sequence of pair of int
        Pairs that may have the same first byte; see `peakmem.arena.items.sharing`.
    contiguous : sequence of sequence of int
        Groups of items, each in the order in which its items lie one after another without a gap.
    lower_bound : int
        Bytes below which no placement is known to exist, if that is more than what lifetimes tell.
    deadline : float, optional
        A moment of `peakmem.system.clock`.
    effort : float
        CP-SAT's deterministic time, roughly seconds. The same input gives the same result unless the deadline cuts in.

    Returns
    -------
    Placement
        ``least`` where the solver proved that nothing smaller exists.

    Notes
    -----
    Each item is a rectangle of fixed width and variable height position; ``no_overlap_2d`` keeps them apart and a
    cumulative constraint states the liveness bound. Where a pair shares its first byte the two offsets are equal, and
    the smaller item lacks the step at which they meet: the larger one covers its bytes there. First it is asked whether
    the liveness peak itself can be reached, which is the usual case and the easiest to answer, and only then for the
    least size. One worker: CP-SAT is deterministic only so.
    """
    size = max((o + i.size for o, i in zip(incumbent, items)), default=0)
    peak = max(lower_bound, least_extent(items, may_share, contiguous))
    best = Placement(tuple(incumbent), size, peak)
    if size == peak:
        return best
    unit = unit_of(items)
    ask = partial(_solve, items, sharing(items, may_share), contiguous, unit, best.offsets, deadline, effort)
    reached = ask(peak, peak)
    if isinstance(reached, Placement):
        return reached
    lower = peak if reached is None else peak + unit  # None: neither found nor refuted
    if size == lower or clock.late(deadline):
        return Placement(best.offsets, size, lower)
    least = ask(lower, size - unit)
    if isinstance(least, Placement):
        return least
    return Placement(best.offsets, size, size if least is False else lower)


def _solve(
    items: Sequence[Item],
    pairs: Sequence[tuple[int, int]],
    contiguous: Sequence[Sequence[int]],
    unit: int,
    hint: Sequence[int],
    deadline: float | None,
    effort: float,
    lower: int,
    upper: int,
) -> Placement | bool | None:
    """A placement of at most ``upper`` bytes; False if there is none; None if that stayed open."""
    if upper < lower:
        return False
    with clock.loading():
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    top = model.new_int_var(lower // unit, upper // unit, "arena")
    starts = [model.new_int_var(0, max(0, (upper - item.size) // unit), f"offset{k}") for k, item in enumerate(items)]
    meets: dict[int, list[Any]] = {}
    covered: dict[tuple[int, int], list[Any]] = {}  # item and one step of its life -> whenever another covers it there
    for a, o in pairs:
        shared = model.new_bool_var(f"shared{a}_{o}")
        model.add(starts[a] == starts[o]).only_enforce_if(shared)
        smaller = a if items[a].size <= items[o].size else o
        covered.setdefault((smaller, items[o].first), []).append(shared)
        meets.setdefault(a, []).append(shared)
        meets.setdefault(~o, []).append(shared)
    for literals in meets.values():
        if len(literals) > 1:
            model.add_at_most_one(literals)  # two that share with the same third would share bytes themselves
    for group in contiguous:
        for i, j in pairwise(group):
            model.add(starts[j] == starts[i] + items[i].size // unit)
    points = sorted({i.first for i in items} | {i.last + 1 for i in items} | {t + 1 for _, t in covered})
    index = {p: k for k, p in enumerate(points)}
    x_intervals, y_intervals, demands = [], [], []

    def rectangle(k: int, first: int, last: int, absent: Sequence[Any]) -> None:
        height, begin, end = items[k].size // unit, index[first], index[last + 1]
        name = f"{k}at{first}"
        if absent:
            present = model.new_bool_var(f"present{name}")
            model.add_exactly_one([present, *absent])
            x_intervals.append(model.new_optional_interval_var(begin, end - begin, end, present, f"time{name}"))
            y_intervals.append(
                model.new_optional_interval_var(starts[k], height, starts[k] + height, present, f"bytes{name}")
            )
        else:
            x_intervals.append(model.new_fixed_size_interval_var(begin, end - begin, f"time{name}"))
            y_intervals.append(model.new_fixed_size_interval_var(starts[k], height, f"bytes{name}"))
        demands.append(height)

    for k, item in enumerate(items):
        if not item.size:
            continue
        model.add(starts[k] + item.size // unit <= top)
        model.add_hint(starts[k], min(hint[k], upper - item.size) // unit)
        first, last = item.first, item.last
        if (k, last) in covered and last > first:
            rectangle(k, last, last, covered[k, last])
            last -= 1
        if (k, first) in covered:
            rectangle(k, first, first, covered[k, first])
            first += 1
        if first <= last:
            rectangle(k, first, last, ())
    model.add_no_overlap_2d(x_intervals, y_intervals)
    model.add_cumulative(x_intervals, demands, top)
    if lower < upper:
        model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    if deadline is not None:
        solver.parameters.max_time_in_seconds = max(0.05, clock.wall(deadline - clock.now()))
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return False
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        offsets = tuple(int(solver.value(s)) * unit for s in starts)
        size = max((o + i.size for o, i in zip(offsets, items)), default=0)
        bound = size
        if status == cp_model.FEASIBLE:
            bound = min(size, max(lower, math.ceil(solver.best_objective_bound) * unit)) if lower < upper else lower
        return Placement(offsets, size, bound)
    return None
