"""``peakmem recompute``: run some operators twice to need less memory; the price of every size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from peakmem.words import recomputed, share

from peakmem_cli.common import (
    Force,
    FrontendName,
    FrontendOptions,
    Json,
    ModelFile,
    NoMeasure,
    Quiet,
    TimeLimit,
    check_outputs,
    limit,
    measuring,
    named,
    size,
)

if TYPE_CHECKING:
    from peakmem.recompute import Recomputation

TargetPeak = Annotated[
    int | None,
    typer.Option("--target-peak", metavar="SIZE", parser=size, help="Choose the cheapest plan with this live peak or less."),
]
MaxExtraMacs = Annotated[
    str | None,
    typer.Option("--max-extra-macs", metavar="N|P%", help="Spend no more than this; chooses the lowest peak within."),
]
Cap = Annotated[int, typer.Option("--cap", metavar="N", help="The most times any operator runs.")]
Threshold = Annotated[
    list[str] | None,
    typer.Option("--threshold", metavar="OP=SIZE", help="Results of OP are candidates only above SIZE; repeatable."),
]

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
    return execute(
        model, options, output, front_out, plot, target_peak, max_extra_macs, cap, threshold, frontend, time_limit,
        no_measure, force, json, quiet,
    )  # fmt: skip


def execute(
    model: Path,
    options: dict[str, object],
    output: Path | None,
    front_out: Path | None,
    plot: Path | None,
    target_peak: int | None,
    max_extra_macs: str | None,
    cap: int,
    threshold: list[str] | None,
    frontend: str | None,
    time_limit: float,
    no_measure: bool,
    force: bool,
    json: bool,
    quiet: bool,
    *,
    as_result: bool = False,
    report: Path | None = None,
) -> int:
    """The command; ``as_result`` prints ``peakmem.result/1`` instead of ``peakmem.front/1``."""
    import json as encoder

    import peakmem
    from peakmem.errors import Refused, UsageError
    from peakmem.files import write_atomically
    from peakmem.recompute import describe, front_document, front_svg, recompute, result_document

    from peakmem_cli.screen import Screen, shorten

    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(f"--plot: {plot} is not a .svg file; the front is drawn as SVG, which browsers show")
    if output is not None and target_peak is None and max_extra_macs is None:
        raise UsageError("-o: give --target-peak or --max-extra-macs, which choose the plan to write")
    screen = Screen(as_json=json, quiet=quiet)
    check_outputs(model, output, front_out, plot, report, force=force)
    thresholds = parse_thresholds(threshold or [])
    measure = measuring(no_measure, frontend, options)
    source = peakmem.load(model, frontend=frontend, **options)
    with screen.progress() as progress:
        found = recompute(
            source,
            target_peak=target_peak,
            max_extra_macs=max_extra_macs,
            cap=cap,
            thresholds=thresholds,
            time_limit=limit(time_limit),
            measure=measure,
            progress=progress,
        )
    screen.result_is_there()
    failures = found.verification.failures if found.verification is not None else ()
    written = None
    if output is not None and found.model is not None and not failures:
        found.model.save(output, force=force)
        written = str(output)
    document = front_document(found, output=written)
    if front_out is not None:
        write_atomically(front_out, (encoder.dumps(document, indent=1) + "\n").encode(), source=model, force=force)
    drawn = plot is not None and found.front is not None
    if plot is not None and found.front is not None:
        points = [(p.extra_macs, p.peak, p.exact) for p in found.front.points]
        tried = len(found.problems)
        title = f"{model.name}: {tried} base order{'s' if tried > 1 else ''}, cap {cap}"
        write_atomically(plot, front_svg(points, floor=found.floor.size, title=title), source=model, force=force)
    if report is not None:
        from peakmem_cli.commands.report import asked, write_page

        settings = named(options, time_limit, no_measure) | asked(target_peak, max_extra_macs, cap, threshold)
        write_page(found, report, [], settings=settings, source=model, force=force)
    screen.document(result_document(found, output=written) if as_result else document)
    screen.answer(recomputed(found))
    if screen.talks:
        screen.lines(details(found, refused=output is not None))
        screen.table("extra MACs against live peak:", COLUMNS, rows(found))
        if found.point is not None and found.point.plan.reruns:
            lines = describe(found.point.plan, show=shorten)
            screen.line(f"the chosen plan has {len(lines)} rerun{'s' if len(lines) > 1 else ''}:")
            screen.lines(lines[:LISTED], indent="  ")
            if len(lines) > LISTED:
                screen.line(f"  and {len(lines) - LISTED} more")
        screen.lines(found.notes, indent="note: ")
        if plot is not None and not drawn:
            screen.line(f"{plot}: not written, since there is no front")
        for path, there in ((output, written is not None), (front_out, True), (plot, drawn), (report, True)):
            if path is not None and there:
                screen.line(f"wrote {path}")
    if failures:
        return screen.verdict(Refused("; ".join(failures) + ("; nothing written" if output is not None else "")))
    if output is not None and written is None:
        if target_peak is not None and found.ordering.peak <= target_peak and not found.unrealized:
            from peakmem.sizes import human

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
    from peakmem.sizes import exact

    from peakmem_cli.words import percent

    if found.front is None:
        return []
    top = found.ordering.peak
    return [
        (
            exact(p.peak),
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
    from peakmem.cost import cost_report
    from peakmem.sizes import human

    from peakmem_cli.screen import shorten
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


def parse_thresholds(given: list[str]) -> dict[str, int]:
    """``OP=SIZE`` as a map."""
    from peakmem.errors import UsageError
    from peakmem.sizes import parse_size

    result = {}
    for text in given:
        op, equals, number = text.rpartition("=")
        if not equals or not op:
            raise UsageError(f"--threshold: {text!r} is not OP=SIZE, such as Conv=64KiB")
        try:
            result[op] = parse_size(number)
        except UsageError as error:
            raise UsageError(f"--threshold: {error}") from None
    return result
