"""From an artifact to one that is split: search, order, plan, write, measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from peakmem.frontends import Model, Progress, Wanted, certify, run_both
from peakmem.frontends.splitting import Axis, Region, Split, Splittable, Unequal
from peakmem.model import Program, Refused, UsageError
from peakmem.ordering import Ordering
from peakmem.system import clock
from peakmem.system.progress import silent
from peakmem.system.sizes import human, in_bytes
from peakmem.transform.recompute.reruns import parse_extra_macs
from peakmem.transform.split.bases import base_orders
from peakmem.transform.split.document import Splitting
from peakmem.transform.split.floor import SplitFloor, floor
from peakmem.transform.split.layout import lay_out
from peakmem.transform.split.search import Point, Search, Searched

Objective = Literal["peak", "arena"]

DEFAULT_MACS = "10%"
"""What a split may cost where nothing else is said."""

EFFORT = 3_000_000
"""Units of work (`peakmem.ordering.meter`) for the order and the bound of a split program that is realized."""

REALIZED = 2
"""Points of the front that are realized at most, where arenas miss the live peak; the smallest is kept."""


def split(
    model: Model,
    *,
    max_extra_macs: str | None = None,
    target_peak: int | None = None,
    objective: Objective = "arena",
    regions: Sequence[Region] | None = None,
    axes: Sequence[Axis] = ("rows", "channels"),
    realize: bool = True,
    measure: Wanted = True,
    time_limit: float | None = 60.0,
    progress: Progress | None = None,
) -> Splitting:
    """Run wide parts of an artifact in bands, so that it needs less memory than any order of it does.

    Parameters
    ----------
    model : Model
    max_extra_macs : str, optional
        ``"2%"`` of the program's MACs, or a number: what rows computed twice may cost; 10 % if not given.
    target_peak : int, optional
        Bytes: the split of fewest MACs that needs no more is chosen. Without it the one that needs least.
    objective : {"arena", "peak"}
        What is to be small: the live peak and what the runtime keeps for each further operator, as estimated; or the live
        peak alone.
    regions : sequence of Region, optional
        Split exactly these, by places in the order of the artifact, instead of searching.
    axes : sequence of {"rows", "channels"}
        Along which regions may be cut.
    realize : bool
        Write the chosen split. Else only the front is searched.
    measure : bool or "required"
        Run both artifacts; as in `peakmem.optimize`.
    time_limit : float, optional
        Seconds for searching, ordering and planning together; None for no limit. A search that comes to its own end
        before is the same on any machine.
    progress : callable, optional

    Raises
    ------
    Refused
        When the frontend cannot split its artifacts, or a region that was named cannot run in bands.
    UsageError
        On a share that is none.
    RuntimeMissing, RuntimeFailed
        With ``measure="required"`` only.
    """
    begin = clock.now()
    say = progress or silent
    deadline = None if time_limit is None else begin + time_limit
    source = model.splittable()
    program = model.program
    macs = sum(s.cost for s in program.statements)
    most = parse_extra_macs(DEFAULT_MACS if max_extra_macs is None else max_extra_macs, macs)
    ordering = certify(model, time_limit=None if time_limit is None else time_limit / 4, progress=progress)
    result = Splitting(source=model, ordering=ordering, macs=macs, most=most if regions is None else None, target=target_peak, overhead=source.overhead)
    if objective == "arena" and regions is None and target_peak is None:
        result.weight = source.overhead
    result.seconds["order"] = spent = clock.now() - begin
    if ordering.interrupted and (time_limit is None or spent < time_limit / 4):  # Ctrl-C, not the time limit
        result.interrupted, result.reason = True, "interrupted before regions were searched"
        return result
    if regions is None and target_peak is not None and realize and _ordered(result, target_peak, deadline):
        assert result.model is not None
        result.measurement = run_both(model, result.model, wanted=measure, progress=progress)
        return result
    least = floor(source, axes)
    points: list[Point] = []
    if regions is not None:
        points = [Point(0, 0, 0, tuple(sorted(regions)), tuple(range(len(program))))]
    elif least.size >= ordering.peak:
        result.reason = least.sentence(program)
    else:
        search = Search(
            source, base_orders(source, ordering.orders[""]), ordering.peak, most, goal=target_peak or 0,
            weight=result.weight, axes=tuple(axes),
            deadline=None if deadline is None else deadline - 0.25 * (time_limit or 0.0), progress=progress,
        )  # fmt: skip
        points = _searched(result, search)
        if not points:
            assert result.search is not None
            result.reason = _reason(source, ordering, least, result.search, most, target_peak)
    if not points or not realize:
        return result
    since = clock.now()
    if result.interrupted:  # whoever ended the search wants what it found, not another one of that length
        deadline = since
    say("ordering the split program")
    try:
        point: Point | None = points[0 if target_peak is not None else -1]
        loss = 0.0  # bytes for each further statement that an arena was larger than the live peak
        tried: list[Point] = []
        barred: set[tuple[int, Axis]] = set()
        while point is not None:
            tried.append(point)
            try:
                peak, reached = _realize(result, lay_out(source, point.order, point.regions), deadline, progress)
                loss = max(loss, (reached - peak) / max(1, point.added))
            except Refused as error:  # the adapter's judge did not accept it; another point may do
                if regions is not None:
                    raise
                result.reason = result.reason or str(error)
                found = set(error.statements) - barred if isinstance(error, Unequal) else set()
                if found:
                    # What is known to differ is run whole, and what else may run in bands is looked at anew.
                    barred |= found
                    for v, axis in found:
                        source.bar(v, axis, str(error))
                    points = _searched(result, replace(search, seen={}, trials=0))
                    tried, point = [], points[0 if target_peak is not None else -1] if points else None
                    continue
            late = clock.late(deadline)
            point = None if late or len(tried) == REALIZED else _next(result, tried, loss)
    except KeyboardInterrupt:
        result.interrupted = True
        result.reason = result.reason or "interrupted before the split was written"
    result.seconds["realize"] = clock.now() - since
    if result.model is not None:
        result.measurement = run_both(model, result.model, wanted=measure, progress=progress)
        if measure:
            result.seconds["measure"] = result.measurement.seconds
    return result


def _searched(result: Splitting, search: Search) -> list[Point]:
    """What a search finds that needs less than any order, and no more than was asked for."""
    since = clock.now()
    result.search = search.run()
    result.interrupted = result.search.stopped
    result.seconds["search"] = result.seconds.get("search", 0.0) + clock.now() - since
    return [p for p in result.search.points if p.value(result.weight) < result.ordering.peak and p.peak <= (result.target or p.peak)]


def _ordered(result: Splitting, target: int, deadline: float | None) -> bool:
    """Take an order of the unsplit program, which costs nothing, where one meets the target."""
    model, ordering = result.source, result.ordering
    if ordering.peak > target:
        return False
    schedule = model.schedule(ordering, deadline=deadline)
    final = model.apply(schedule)
    if final.predicted_bytes + model.realized_offset > target:
        return False
    result.split = lay_out(model.splittable(), ordering.orders[""], ())
    result.written, result.model, result.reordering, result.schedule = model, final, ordering, schedule
    return True


def _next(result: Splitting, tried: Sequence[Point], loss: float) -> Point | None:
    """Which point is realized after those, where the arena of the best of them misses its live peak; None for none.

    Of all that were ordered, the cheapest that meets the target, or the one that would need least if each of its further
    statements lost as much as those of what was tried.
    """
    if result.search is None:
        return None
    below = result.ordering.peak
    if result.model is not None and result.reordering is not None:
        reached = result.model.predicted_bytes + result.source.realized_offset
        if reached <= max(result.reordering.peak, result.target or 0):
            return None
        below = min(below, reached + result.weight * result.added)
    left = [p for p in result.search.ordered if p.value(result.weight) < below and p.peak <= (result.target or p.peak) and p not in tried]
    if result.target is not None:
        return min(left, key=lambda p: (p.extra_macs, p.peak, p.added), default=None)
    left = [p for p in left if p.value(result.weight) + loss * p.added < below] or left
    return min(left, key=lambda p: (p.value(result.weight) + loss * p.added, p.extra_macs, p.regions, p.order), default=None)


def _realize(result: Splitting, one: Split, deadline: float | None, progress: Progress | None) -> tuple[int, int]:
    """Write one split, order and plan it; it becomes the result if it is the smallest so far. Its live peak, and what it reaches."""
    model = result.source
    made = model.apply_split(one)
    left = None if deadline is None else max(1.0, deadline - clock.now())
    ordering = certify(made, time_limit=left, effort=EFFORT, progress=progress)
    schedule = made.schedule(ordering, deadline=None if deadline is None else max(deadline, clock.now() + 1.0))
    final = made.apply(schedule)
    reached = final.predicted_bytes
    taken = result.weight * (len(one.steps) - len(model.program))
    if reached >= model.predicted_bytes:
        why = f"the split needs {model.quantity} {human(reached)}, no less than the model as it is ({human(model.predicted_bytes)})"
        if schedule.notes and ordering.peak < model.predicted_bytes + model.realized_offset:  # it could, and the adapter says why not
            why = "the split that was found is not taken: " + "; ".join(schedule.notes)
        result.reason = result.reason or why
    elif reached + taken >= model.predicted_bytes:
        result.reason = result.reason or (
            f"the split that was found brings {model.quantity} to {in_bytes(reached)}, and its further statements take about "
            f"{in_bytes(taken)}, no less than was saved (--objective peak does not count them)"
        )
    elif result.model is None or reached + taken < result.model.predicted_bytes + result.weight * result.added:
        result.split, result.written, result.model, result.reordering, result.schedule = one, made, final, ordering, schedule
        result.reason = ""
    return ordering.peak, reached + model.realized_offset


def _reason(
    source: Splittable, ordering: Ordering, least: SplitFloor, found: Searched, most: int, target: int | None
) -> str:
    """Why no split was found, as far as that is known."""
    program = source.program
    peak = ordering.peak
    why = "" if found.complete else "; interrupted" if found.stopped else "; the search ended early, give more --time-limit"
    if target is not None and any(p.peak < peak for p in found.points):
        return f"no regions of it that run in bands were found to need {target:,} B or less for {most:,} more MACs{why}"
    if any(p.peak < peak for p in found.ordered):
        return f"no regions of it that run in bands were found to save more than their further statements take{why} (--objective peak does not count them)"
    order = ordering.orders[""]
    _, live, _, _ = program.live_bytes(order, program.workspaces)
    hot = [order[k] for k, size in enumerate(live) if size == peak]
    for v in hot:
        rules = [source.rule(v, axis) for axis in ("rows", "channels")]
        if all(isinstance(rule, str) for rule in rules):
            return f"its peak is where {rules[0]} (running operators twice may still help: peakmem recompute)"
    why = (f" ({least.sentence(program)})" if least.size > program.entry_bytes else "") + why
    return f"no regions of it that run in bands were found to need less for {most:,} more MACs{why}"


def describe(split: Split, program: Program, *, show: Callable[[str], str] = str) -> list[str]:
    """The regions of a split, a line each; ``show`` makes what is printed of a statement's name."""
    lines = []
    for r in split.regions:
        names = [show(program.statements[v].name) for v in split.order[r.first : r.last + 1]]
        what = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} statements)"
        lines.append(f"{what}: {r.bands} bands of {r.axis}" + (", halos kept" if r.kept else ""))
    return lines


def by_hand(text: str, bands: int, axis: Axis = "rows", *, kept: bool = False) -> Region:
    """``"2..3"`` as a region, whose halos may be ``kept``.

    Raises
    ------
    UsageError
        When it is not two numbers, or fewer than two bands are wanted.
    """
    first, dots, last = text.partition("..")
    if not first.isdecimal() or (dots and not last.isdecimal()) or bands < 2:
        raise UsageError(f"{text!r} in {bands} bands is no region: name the first and last operator, such as 2..3, and two bands or more")
    return Region(int(first), int(last) if dots else int(first), bands, axis, kept)


