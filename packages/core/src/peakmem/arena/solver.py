"""Least placements with OR-tools CP-SAT."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from peakmem.arena.items import Item, Placement, liveness_peak


def least_offsets(
    items: Sequence[Item], incumbent: Sequence[int], *, deadline: float | None = None, effort: float = 2.0
) -> Placement:
    """Lower a placement as far as a solver can, and prove how far that is.

    Parameters
    ----------
    items : sequence of Item
    incumbent : sequence of int
        A valid placement; the result is never larger.
    deadline : float, optional
        A `time.monotonic` value.
    effort : float
        CP-SAT's deterministic time, roughly seconds. The same input gives the same result unless the deadline cuts in.

    Returns
    -------
    Placement
        ``least`` where the solver proved that nothing smaller exists.

    Notes
    -----
    Each item is a rectangle of fixed width and variable height position; ``no_overlap_2d`` keeps them apart and a
    cumulative constraint states the liveness bound. First it is asked whether the liveness peak itself can be reached,
    which is the usual case and the easiest to answer, and only then for the least size. One worker: CP-SAT is
    deterministic only so.
    """
    size = max((o + i.size for o, i in zip(incumbent, items)), default=0)
    peak = liveness_peak(items)
    best = Placement(tuple(incumbent), size, peak)
    if size == peak:
        return best
    unit = math.gcd(*(i.size for i in items if i.size)) or 1
    times = _compress(items)
    reached = _solve(items, times, unit, peak, peak, best.offsets, deadline, effort)
    if isinstance(reached, Placement):
        return reached
    lower = peak if reached is None else peak + unit  # None: neither found nor refuted
    if size == lower or (deadline is not None and time.monotonic() >= deadline):
        return Placement(best.offsets, size, lower)
    least = _solve(items, times, unit, lower, size - unit, best.offsets, deadline, effort)
    if isinstance(least, Placement):
        return least
    return Placement(best.offsets, size, size if least is False else lower)


def _compress(items: Sequence[Item]) -> list[tuple[int, int]]:
    """Lifetimes as half-open intervals over the steps at which anything starts or ends, renumbered."""
    points = sorted({i.first for i in items} | {i.last + 1 for i in items})
    index = {p: k for k, p in enumerate(points)}
    return [(index[i.first], index[i.last + 1]) for i in items]


def _solve(
    items: Sequence[Item],
    times: Sequence[tuple[int, int]],
    unit: int,
    lower: int,
    upper: int,
    hint: Sequence[int],
    deadline: float | None,
    effort: float,
) -> Placement | bool | None:
    """A placement of at most ``upper`` bytes; False if there is none; None if that stayed open."""
    if upper < lower:
        return False
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    top = model.new_int_var(lower // unit, upper // unit, "arena")
    starts = []
    x_intervals, y_intervals, demands = [], [], []
    for k, (item, (begin, end)) in enumerate(zip(items, times)):
        height = item.size // unit
        start = model.new_int_var(0, max(0, upper // unit - height), f"offset{k}")
        starts.append(start)
        if not height:
            continue
        model.add(start + height <= top)
        x_intervals.append(model.new_fixed_size_interval_var(begin, end - begin, f"time{k}"))
        y_intervals.append(model.new_fixed_size_interval_var(start, height, f"bytes{k}"))
        demands.append(height)
        model.add_hint(start, min(hint[k] // unit, max(0, upper // unit - height)))
    model.add_no_overlap_2d(x_intervals, y_intervals)
    model.add_cumulative(x_intervals, demands, top)
    if lower < upper:
        model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    if deadline is not None:
        solver.parameters.max_time_in_seconds = max(0.05, deadline - time.monotonic())
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
