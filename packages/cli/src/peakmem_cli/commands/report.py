"""``peakmem report``: one page to read, and its figures as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peakmem_cli.commands.recompute import Cap, MaxExtraMacs, TargetPeak, Threshold, parse_thresholds
from peakmem_cli.common import (
    Force,
    FrontendName,
    FrontendOptions,
    ModelFile,
    NoMeasure,
    Quiet,
    TimeLimit,
    check_outputs,
    limit,
    measuring,
    named,
)

if TYPE_CHECKING:
    from peakmem.errors import Refused
    from peakmem.recompute import Recomputation
    from peakmem.report.pair import Pair
    from peakmem.result import Result

Page = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Also write one page to read: figures, tables, the proof.")
]


def command(
    model: ModelFile,
    options: FrontendOptions,
    optimized: Annotated[
        Path | None,
        typer.Argument(metavar="OPTIMIZED", help="What optimize wrote: compare these two instead of optimizing MODEL."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Where the page goes.")
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="[KIND=]FILE.svg",
            help="Write one figure as SVG: memory (if no KIND is given), lifetimes, arena or front; repeatable.",
        ),
    ] = None,
    frontend: FrontendName = None,
    time_limit: TimeLimit = 60.0,
    no_measure: NoMeasure = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="Show what running operators twice saves and costs.")] = False,
    target_peak: TargetPeak = None,
    max_extra_macs: MaxExtraMacs = None,
    cap: Cap = 2,
    threshold: Threshold = None,
    force: Force = False,
    quiet: Quiet = False,
) -> int:
    """Write a page about MODEL before and after: memory over steps, what is live at the peak, lifetimes, the proof.

    The page is one HTML file that loads nothing from elsewhere. MODEL is optimized in memory; nothing else is written.
    """
    import peakmem
    from peakmem.errors import Refused, UsageError
    from peakmem.words import answer, recomputed

    from peakmem_cli.screen import Screen

    if output is None and not figure:
        raise UsageError("nothing to write; give -o FILE.html or --figure FILE.svg")
    if not recompute and (target_peak is not None or max_extra_macs is not None or cap != 2 or threshold):
        raise UsageError("--target-peak, --max-extra-macs, --cap and --threshold need --recompute")
    if recompute and optimized is not None:
        raise UsageError("--recompute: goes with one file; two are compared as they are")
    figures = [_figure(text) for text in figure or []]
    screen = Screen(quiet=quiet)
    for source_file in (model, optimized) if optimized is not None else (model,):
        check_outputs(source_file, output, *(path for _, path in figures), force=force)
    check_page(output)
    settings = named(options, time_limit, no_measure)
    measure = measuring(no_measure, frontend, options)
    source = peakmem.load(model, frontend=frontend, **options)
    found: Result | Recomputation | Pair
    if optimized is not None:
        from peakmem.report import compare

        other = peakmem.load(optimized, frontend=source.frontend, **options)
        with screen.progress() as progress:
            found = compare(source, other, time_limit=limit(time_limit), measure=measure, progress=progress)
        line, check = found.answer, found.result.verification
    elif recompute:
        from peakmem.recompute import recompute as look

        settings |= asked(target_peak, max_extra_macs, cap, threshold)
        with screen.progress() as progress:
            found = look(
                source, target_peak=target_peak, max_extra_macs=max_extra_macs, cap=cap,
                thresholds=parse_thresholds(threshold or []), time_limit=limit(time_limit), measure=measure, progress=progress,
            )  # fmt: skip
        line, check = recomputed(found), found.verification
    else:
        with screen.progress() as progress:
            found = peakmem.optimize(source, time_limit=limit(time_limit), measure=measure, progress=progress)
        line, check = answer(found), found.verification
    screen.result_is_there()
    missing = write_page(found, output, figures, settings=settings, source=model, force=force)
    screen.answer(line)
    for path in (output, *(path for _, path in figures)):
        if path is not None and path not in missing:
            screen.line(f"wrote {path}")
    failures = [*(check.failures if check is not None else ()), *(f"{path}: not written: {e}" for path, e in missing.items())]
    return screen.verdict(Refused("; ".join(failures))) if failures else 0


def write_page(
    found: Result | Recomputation | Pair,
    output: Path | None,
    figures: list[tuple[str, Path]],
    *,
    settings: Mapping[str, object],
    source: Path,
    force: bool,
) -> dict[Path, Refused]:
    """Write the page and the figures; returns the figures that do not exist, with the reason."""
    from peakmem.errors import Refused
    from peakmem.files import write_atomically
    from peakmem.report import figure, render

    missing = {}
    if output is not None:
        write_atomically(output, render(found, settings=settings).encode(), source=source, force=force)
    for kind, path in figures:
        try:
            drawn = figure(found, kind)
        except Refused as error:
            missing[path] = error
        else:
            write_atomically(path, drawn, source=source, force=force)
    return missing


def asked(
    target_peak: int | None, max_extra_macs: str | None, cap: int, threshold: list[str] | None
) -> dict[str, object]:
    """The options of a recomputation as the page names them."""
    given: dict[str, object] = {"--recompute": "yes", "--cap": cap}
    if target_peak is not None:
        given["--target-peak"] = f"{target_peak:,} B"
    if max_extra_macs is not None:
        given["--max-extra-macs"] = max_extra_macs
    if threshold:
        given["--threshold"] = threshold
    return given


def check_page(path: Path | None) -> None:
    """Refuse to write a page into a file of another kind, which no browser would show."""
    from peakmem.errors import UsageError

    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path} is not a .html file; the page is HTML, which browsers show and print")


def _figure(text: str) -> tuple[str, Path]:
    from peakmem.errors import UsageError
    from peakmem.report import FIGURES

    kind, equals, file = text.partition("=")
    if not equals or kind not in FIGURES:
        kind, file = "memory", text
    path = Path(file)
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--figure: {path} is not a .svg file; figures are SVG, which browsers show and other tools convert")
    return kind, path
