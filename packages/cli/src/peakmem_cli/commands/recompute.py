"""``peakmem recompute``: run some operators twice to need less memory; the price of every size."""

from __future__ import annotations

import json as encoder
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from peakmem.model import Refused, UsageError
from peakmem.report.words import recomputed, share

from peakmem_cli.common import (
    Force,
    FrontendName,
    FrontendOptions,
    Json,
    ModelFile,
    NoMeasure,
    Quiet,
    TimeLimit,
    limit,
    measuring,
)
from peakmem_cli.files import check_outputs, load
from peakmem_cli.reruns import Cap, MaxExtraMacs, Reruns, TargetPeak, Threshold
from peakmem_cli.screen import Screen, shorten

if TYPE_CHECKING:
    from peakmem.transform.recompute import Recomputation

LISTED = 40
"""Points of the front, and reruns of a plan, that are shown."""


def command(
    model: ModelFile,
    options: FrontendOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where the rewritten artifact goes.")
    ] = None,
    front_out: Annotated[
        Path | None, typer.Option("--front", metavar="FILE", help="Write the front with all its plans, as JSON.")
    ] = None,
    target_peak: TargetPeak = None,
    max_extra_macs: MaxExtraMacs = None,
    cap: Cap = 2,
    threshold: Threshold = None,
    frontend: FrontendName = None,
    time_limit: TimeLimit = 60.0,
    no_measure: NoMeasure = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the front, as SVG.")
    ] = None,
) -> int:
    """Find out which operators of MODEL to run twice, what that costs, and how much memory it saves.

    `exact` is said of one base order and cap: no plan for that order costs less.
    """
    from peakmem.report.front import front_svg
    from peakmem.system.files import write_atomically

    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(f"--plot: {plot} is not a .svg file; the front is drawn as SVG, which browsers show")
    if output is not None and target_peak is None and max_extra_macs is None:
        raise UsageError("-o: give --target-peak or --max-extra-macs, which choose the plan to write")
    wanted = Reruns(target_peak, max_extra_macs, cap, tuple(threshold or ()))
    screen = Screen(as_json=json, quiet=quiet)
    check_outputs(model, output, front_out, plot, force=force)
    found = look(wanted, model, options, frontend, time_limit, no_measure, screen)
    written = save(found, output, force=force)
    document = found.to_json(output=written)
    if front_out is not None:
        write_atomically(front_out, (encoder.dumps(document, indent=1) + "\n").encode(), source=model, force=force)
    drawn = plot is not None and found.front is not None
    if plot is not None and found.front is not None:
        points = [(p.extra_macs, p.peak, p.exact) for p in found.front.points]
        tried = len(found.problems)
        title = f"{model.name}: {tried} base order{'s' if tried > 1 else ''}, cap {cap}"
        write_atomically(plot, front_svg(points, floor=found.floor.size, title=title), source=model, force=force)
    screen.document(document)
    return tell(found, wanted, screen, output, {output: written is not None, front_out: True, plot: drawn})


def look(
    wanted: Reruns,
    model: Path,
    options: dict[str, object],
    frontend: str | None,
    time_limit: float,
    no_measure: bool,
    screen: Screen,
) -> Recomputation:
    """Read the model and plan; a result is there when this returns."""

    _ = wanted.thresholds  # refused before any work is done
    measure = measuring(no_measure, frontend, options)
    source = load(model, frontend, options)
    with screen.progress(limit(time_limit)) as progress:
        found = wanted.look(source, time_limit=limit(time_limit), measure=measure, progress=progress)
    screen.result_is_there()
    return found


def save(found: Recomputation, output: Path | None, *, force: bool) -> str | None:
    """Write what was made, unless it was refused; where, or None."""
    if output is None or found.model is None or (found.verification is not None and found.verification.failures):
        return None
    found.model.save(output, force=force)
    return str(output)


def tell(
    found: Recomputation, wanted: Reruns, screen: Screen, output: Path | None, files: Mapping[Path | None, bool]
) -> int:
    """The answer for people and the verdict; ``files`` says of each file that was asked for whether it was written."""
    failures = found.verification.failures if found.verification is not None else ()
    target_peak = wanted.target_peak
    screen.answer(recomputed(found))
    if screen.talks:
        screen.lines(details(found, refused=output is not None))
        screen.table("extra MACs against live peak:", COLUMNS, rows(found))
        if found.point is not None and found.point.plan.reruns:
            from peakmem.transform.recompute import describe

            lines = describe(found.point.plan, show=shorten)
            screen.line(f"the chosen plan has {len(lines)} rerun{'s' if len(lines) > 1 else ''}:")
            screen.lines(lines[:LISTED], indent="  ")
            if len(lines) > LISTED:
                screen.line(f"  and {len(lines) - LISTED} more")
        screen.lines(found.notes, indent="note: ")
        for path, there in files.items():
            if path is not None and there:
                screen.line(f"wrote {path}")
            elif path is not None and path != output:
                screen.line(f"{path}: not written, since there is no front")
    if failures:
        return screen.verdict(Refused("; ".join(failures) + ("; nothing written" if output is not None else "")))
    if output is not None and not files.get(output):
        if target_peak is not None and found.ordering.peak <= target_peak and not found.unrealized:
            from peakmem.system.sizes import human

            reason = (
                f"the target is met without running anything twice ({human(found.ordering.peak)}); "
                "`peakmem optimize` writes that order"
            )
        else:
            reason = found.unrealized or unplanned(found)
        return screen.verdict(Refused(f"{output}: not written: {reason}"))
    if target_peak is not None and target_peak < found.ordering.peak and found.point is None:
        advice = "the search was interrupted" if found.interrupted else "give more --time-limit"
        return screen.verdict(Refused(f"no plan for the target was found in time, and it was not ruled out; {advice}"))
    return 0


def unplanned(found: Recomputation) -> str:
    """Why there is no plan to write, and no more than is known."""
    if found.interrupted:
        return "interrupted before a plan was found"
    if found.at_floor or (found.front is not None and found.front.complete):
        return "no plan within the limits given lowers the peak"
    return "no plan within the limits given was found in time; give more --time-limit"


COLUMNS = (">live_peak", ">less", ">extra MACs", ">share", ">reruns", "known")


def rows(found: Recomputation) -> list[tuple[str, ...]]:
    """The front, a row a point."""
    from peakmem.system.sizes import in_bytes

    from peakmem_cli.words import percent

    if found.front is None:
        return []
    top = found.ordering.peak
    return [
        (
            in_bytes(p.peak),
            percent(top - p.peak, top),
            f"{p.extra_macs:,}",
            share(p.extra_macs, found.macs),
            str(len(p.plan.reruns)),
            "exact" if p.exact else f"best found, at least {p.lower_bound:,}",
        )
        for p in found.front.points[:LISTED]
    ]


def details(found: Recomputation, *, refused: bool = False) -> list[str]:
    """The lines under the answer; ``refused``: a verdict will say why nothing was realized."""
    from peakmem.model import cost_report
    from peakmem.system.sizes import human

    from peakmem_cli.words import comparison

    program = found.source.program
    lines = [] if found.verification is None else comparison(found.verification)
    lines.append(f"floor {human(found.floor.size)}: {found.floor.sentence(program, show=shorten)}")
    if found.at_floor:
        return lines
    order = found.ordering
    proof = "certified optimal" if order.certificate is not None and order.peak == order.lower_bound else "best found"
    lines.append(f"nothing run twice: live_peak {human(order.peak_before)} -> {human(order.peak)}, {proof}")
    if found.reordering is not None and found.point is not None:
        again = found.reordering
        optimal = again.certificate is not None and again.peak == again.lower_bound
        what = "no order of the enlarged program needs less (certified)" if optimal else "best order found"
        lines.append(f"enlarged program: live_peak {human(found.point.peak)} -> {human(again.peak)}, {what}")
    uncounted = cost_report(program).uncounted
    if uncounted:
        listed = ", ".join(f"{shorten(op)} x{n}" for op, n in list(uncounted.items())[:12])
        lines.append(f"MACs count {found.macs:,}; counted as 0: {listed}{', ...' if len(uncounted) > 12 else ''}")
    never = found.problems[0].excluded
    if never:
        names = ", ".join(f"{shorten(op)} x{n}" for op, n in never.items())
        lines.append(f"never run twice (random, stateful, control flow, overwriting an input, or of unknown price): {names}")
    tried = len(found.problems)
    lines.append(f"{tried} base order{'s' if tried > 1 else ''} tried" + ("" if found.free else "; another one may be cheaper"))
    lines.extend(free(found))
    if found.front is None and found.interrupted:
        lines.append("interrupted before the front was followed")
    if found.front is not None and not found.front.complete:
        why = "interrupted; this is the best so far" if found.interrupted else "some targets were not settled"
        lines.append(f"the front is not complete: {why}")
    if found.unrealized and not refused:
        lines.append(f"not realized: {found.unrealized}")
    elif found.model is not None and found.verification is None:
        lines.append(f"not measured: {found.unmeasured}")
    return lines


def free(found: Recomputation) -> list[str]:
    """What the base orders tried lose against all base orders, where a reference solver could tell."""
    if not found.free:
        return []
    dearer = [(p, macs) for p, macs in found.free if macs < p.extra_macs]
    wanted = [p for p in (found.front.points if found.front else [found.point]) if p is not None and p.plan.reruns]
    points = "every point" if len(found.free) == len(wanted) else f"{len(found.free)} of {len(wanted)} points"
    if not dearer:
        return [f"over every base order (exact for small programs): none is cheaper at {points}"]
    return [
        f"over every base order (exact for small programs; {points} settled): {p.peak:,} bytes for {macs:,} extra MACs, "
        f"{p.extra_macs - macs:,} fewer"
        for p, macs in dearer
    ]
