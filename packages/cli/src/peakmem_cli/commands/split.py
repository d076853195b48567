"""``peakmem split``: run the wide part of a model in bands, so that it needs less than any order of it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from peakmem.model import Refused, UsageError

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
    named,
    size,
)
from peakmem_cli.files import check_outputs, load
from peakmem_cli.pages import Page, check_page, write_page
from peakmem_cli.screen import Screen, shorten

if TYPE_CHECKING:
    from peakmem.transform.split import Objective, Region, Splitting

LISTED = 40
"""Points of the front that are shown."""


def command(
    model: ModelFile,
    options: FrontendOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where the split artifact goes.")
    ] = None,
    max_extra_macs: Annotated[
        str | None,
        typer.Option("--max-extra-macs", metavar="N|P%", help="Spend no more than this on rows computed twice (default: 10%)."),
    ] = None,
    target_peak: Annotated[
        int | None,
        typer.Option("--target-peak", metavar="SIZE", parser=size, help="Choose the split of fewest MACs that needs no more."),
    ] = None,
    objective: Annotated[
        str,
        typer.Option("--objective", metavar="arena|peak", help="What is to be small: the live peak and what further operators take, estimated; or the peak alone."),
    ] = "arena",
    region: Annotated[
        list[str] | None,
        typer.Option("--region", metavar="A..B", help="Split operators A to B and search nothing; A..B:channels cuts channels, A..B:kept keeps halos; repeatable."),
    ] = None,
    bands: Annotated[
        list[int] | None, typer.Option("--bands", metavar="N", help="In how many bands: once, or once for each --region.")
    ] = None,
    frontend: FrontendName = None,
    time_limit: TimeLimit = 60.0,
    no_measure: NoMeasure = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the front, as SVG.")] = None,
    report: Page = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run wide parts of MODEL in bands of rows or channels, with the runtime's own operators and every bit equal.

    The first line is the answer: bytes before and after, the price in MACs, and what no order of the unsplit model reaches.
    """
    from peakmem.transform.split import DEFAULT_MACS

    check_page(report)
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(f"--plot: {plot} is not a .svg file; the front is drawn as SVG, which browsers show")
    if objective not in ("peak", "arena"):
        raise UsageError(f"--objective: {objective!r} is not one of peak, arena")
    wanted = regions(region or [], bands or [])
    if wanted and (max_extra_macs is not None or target_peak is not None or plot is not None):
        raise UsageError("--region: goes with none of --max-extra-macs, --target-peak and --plot, since nothing is searched then")
    check_outputs(model, output, plot, report, force=force)
    screen = Screen(as_json=json, quiet=quiet)
    most = DEFAULT_MACS if max_extra_macs is None else max_extra_macs
    found = look(
        model, options, frontend, time_limit, no_measure, screen, wanted=wanted, max_extra_macs=most, target_peak=target_peak,
        objective="peak" if objective == "peak" else "arena",
    )  # fmt: skip
    written = save(found, output, force=force)
    drawn = plot is not None and draw(found, plot, model, force=force)
    if report is not None:
        asked = {"--region": ", ".join(region or ()), "--bands": ", ".join(map(str, bands or ()))} if wanted else {"--max-extra-macs": most}
        given = named(options, time_limit, no_measure) | asked
        write_page(found, report, [], settings=given, source=model, force=force)
    screen.document(found.to_json(output=written))
    return tell(found, screen, output, {output: written is not None, plot: drawn, report: True})


def regions(texts: list[str], bands: list[int]) -> list[Region]:
    """Regions named by hand."""
    from peakmem.transform.split import by_hand

    if bands and not texts:
        raise UsageError("--bands: name the operators with --region")
    if texts and len(bands) not in (1, len(texts)):
        raise UsageError(f"--bands: give it once, or once for each of the {len(texts)} regions")
    found = []
    for k, text in enumerate(texts):
        span, colon, way = text.partition(":")
        if colon and way not in ("rows", "channels", "kept"):
            raise UsageError(f"--region: {text!r} is cut along {way!r}; there are rows and channels, and kept for rows whose halos are kept")
        found.append(by_hand(span, bands[k if len(bands) > 1 else 0], "channels" if way == "channels" else "rows", kept=way == "kept"))
    return found


def look(
    model: Path, options: dict[str, object], frontend: str | None, time_limit: float, no_measure: bool, screen: Screen, *,
    wanted: list[Region] | None = None, max_extra_macs: str | None = None, target_peak: int | None = None,
    objective: Objective = "arena",
) -> Splitting:  # fmt: skip
    """Read the model and split it; a result is there when this returns."""
    import peakmem

    measure = measuring(no_measure, frontend, options)
    source = load(model, frontend, options)
    with screen.progress(limit(time_limit)) as progress:
        found = peakmem.split(
            source, max_extra_macs=max_extra_macs, target_peak=target_peak, objective=objective, regions=wanted or None,
            measure=measure, time_limit=limit(time_limit), progress=progress,
        )  # fmt: skip
    screen.result_is_there()
    return found


def save(found: Splitting, output: Path | None, *, force: bool) -> str | None:
    """Write what was made, unless it was refused; where, or None."""
    if output is None or found.model is None or (found.verification is not None and found.verification.failures):
        return None
    found.model.save(output, force=force)
    return str(output)


def draw(found: Splitting, plot: Path, model: Path, *, force: bool) -> bool:
    """Draw the front; whether there is one."""
    from peakmem.report.front import front_svg
    from peakmem.system.files import write_atomically

    points = found.search.points if found.search is not None else []
    if points:
        rows = [(0, found.ordering.peak, False), *((p.extra_macs, p.peak, False) for p in points)]
        drawn = front_svg(rows, floor=min(p.peak for p in points), title=f"{model.name}: bands for memory")
        write_atomically(plot, drawn, source=model, force=force)
    return bool(points)


def tell(found: Splitting, screen: Screen, output: Path | None, files: dict[Path | None, bool]) -> int:
    """The answer for people and the verdict; ``files`` says of each file that was asked for whether it was written."""
    from peakmem.report import words
    from peakmem.system.sizes import human
    from peakmem.transform.split import describe

    screen.answer(words.split(found))
    check = found.verification
    failures = check.failures if check is not None else ()
    if screen.talks:
        if check is not None:
            screen.lines(words.comparison(check))
        elif found.model is not None:
            screen.line(f"not measured: {found.measurement.unmeasured}")
        if found.split is not None:
            screen.lines(describe(found.split, found.source.program, show=shorten))
        screen.table("more MACs against live_peak of the split program (best found):", COLUMNS, rows(found))
        if found.search is not None and not found.search.complete:
            screen.line("the search ended early, by its time limit or Ctrl-C; this is the best so far")
        screen.lines(found.notes, indent="note: ")
        for path, there in files.items():
            if path is not None and there:
                screen.line(f"wrote {path}")
            elif path is not None and path != output:
                screen.line(f"{path}: not written, since there is no front")
    if failures:
        return screen.verdict(Refused("; ".join(failures) + ("; nothing written" if output is not None else "")))
    if output is not None and not files.get(output):
        return screen.verdict(Refused(f"{output}: not written: {found.reason or 'no split within the limits given was found'}"))
    if found.target is not None and found.model is None and found.ordering.peak > found.target:
        return screen.verdict(Refused(f"no split that needs no more than {found.target:,} B was found within the limits given"))
    if found.target is not None and found.model is not None:
        # The target is of the live peak; the arena of the split that was chosen may miss it.
        reached, allowed = found.model.predicted_bytes, found.target - found.source.realized_offset
        if reached > allowed:
            return screen.verdict(Refused(f"over target: {found.source.quantity} {human(reached)} is more than {human(allowed)}"))
    return 0


COLUMNS = (">live_peak", ">less", ">more MACs", ">share", ">statements", "regions")


def rows(found: Splitting) -> list[tuple[str, ...]]:
    """The front, a row a point."""
    from peakmem.report.words import percent, share
    from peakmem.system.sizes import in_bytes

    if found.search is None:
        return []
    top, statements = found.ordering.peak, len(found.source.program)
    return [
        (
            in_bytes(p.peak),
            percent(top - p.peak, top),
            f"{p.extra_macs:,}",
            share(p.extra_macs, found.macs),
            str(statements + p.added),
            ", ".join(f"{r.first}..{r.last} in {r.bands}" + way(r) for r in p.regions),
        )
        for p in found.search.points[-LISTED:]
        if p.peak < top
    ]


def way(region: Region) -> str:
    """Along which axis a region is cut, and what of its halo, where that is not the usual."""
    return " (channels)" if region.axis == "channels" else " (kept)" if region.kept else ""
