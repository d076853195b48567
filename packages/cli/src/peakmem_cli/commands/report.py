"""``peakmem report``: one page to read, and its figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peakmem_cli.common import (
    Force,
    FrontendName,
    FrontendOptions,
    ModelFile,
    NoMeasure,
    Quiet,
    TimeLimit,
    limit,
    measuring,
    named,
)
from peakmem_cli.files import check_outputs, load, on_disk
from peakmem_cli.pages import check_page, write_page
from peakmem_cli.reruns import Cap, MaxExtraMacs, Reruns, TargetPeak, Threshold

if TYPE_CHECKING:
    from peakmem.report.pair import Pair
    from peakmem.result import Result
    from peakmem.transform.recompute import Recomputation

def command(
    model: ModelFile,
    options: FrontendOptions,
    optimized: Annotated[
        Path | None,
        typer.Argument(metavar="OPTIMIZED", help="What optimize wrote: compare these two instead of optimizing MODEL."),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option("--also", metavar="MODEL", help="A further model in the same page, optimized in memory; repeatable."),
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
    from peakmem.frontends import recognise
    from peakmem.model import Refused, UsageError
    from peakmem.report.words import answer, recomputed

    from peakmem_cli.screen import Screen

    if output is None and not figure:
        raise UsageError("nothing to write; give -o FILE.html or --figure FILE.svg")
    wanted = Reruns(target_peak, max_extra_macs, cap, tuple(threshold or ()))
    if not recompute and wanted.given:
        raise UsageError("--target-peak, --max-extra-macs, --cap and --threshold need --recompute")
    if recompute and optimized is not None:
        raise UsageError("--recompute: goes with one file; two are compared as they are")
    figures = [_figure(text) for text in figure or []]
    screen = Screen(quiet=quiet)
    if also and (output is None or figure):
        raise UsageError("--also: is for the page; give -o FILE.html and no --figure")
    for source_file in (model, *([optimized] if optimized is not None else []), *(also or ())):
        check_outputs(source_file, output, *(path for _, path in figures), force=force)
    check_page(output)
    settings = named(options, time_limit, no_measure)
    measure = measuring(no_measure, frontend, options)
    source = load(model, frontend, options)
    # Options are those of one frontend; a model that another one reads has none.
    others = [load(path, None, options if (options and recognise(on_disk(path)).name == source.frontend) else {}) for path in also or ()]
    found: Result | Recomputation | Pair
    if optimized is not None:
        from peakmem.report import compare

        other = load(optimized, source.frontend, options)
        with screen.progress(limit(time_limit)) as progress:
            found = compare(source, other, time_limit=limit(time_limit), measure=measure, progress=progress)
        line, check = found.answer, found.result.verification
    elif recompute:
        settings |= wanted.named()
        with screen.progress(limit(time_limit)) as progress:
            found = wanted.look(source, time_limit=limit(time_limit), measure=measure, progress=progress)
        line, check = recomputed(found), found.verification
    else:
        with screen.progress(limit(time_limit)) as progress:
            found = peakmem.optimize(source, time_limit=limit(time_limit), measure=measure, progress=progress)
        line, check = answer(found), found.verification
    further = []
    for other_model in others:
        with screen.progress(limit(time_limit)) as progress:
            further.append(peakmem.optimize(other_model, time_limit=limit(time_limit), measure=measure, progress=progress))
    screen.result_is_there()
    missing = write_page(found, output, figures, settings=settings, source=model, force=force, also=further)
    screen.answer(line)
    for file, other_result in zip(also or (), further):
        screen.answer(f"{file.name}: {answer(other_result)}")
    for path in (output, *(path for _, path in figures)):
        if path is not None and path not in missing:
            screen.line(f"wrote {path}")
    checks = [check, *(r.verification for r in further)]
    failures = [*(f for c in checks if c is not None for f in c.failures), *(f"{path}: not written: {e}" for path, e in missing.items())]
    return screen.verdict(Refused("; ".join(failures))) if failures else 0


def _figure(text: str) -> tuple[str, Path]:
    from peakmem.model import UsageError, did_you_mean
    from peakmem.report import FIGURES

    kind, equals, file = text.partition("=")
    if not equals or "/" in kind:
        kind, file = "memory", text
    elif kind not in FIGURES:
        close = did_you_mean(kind, FIGURES) or f"; a file of that name is written ./{text}"
        raise UsageError(f"--figure: no figure is called {kind!r} (there are {', '.join(FIGURES)}){close}")
    path = Path(file)
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--figure: {path} is not a .svg file; figures are SVG, which browsers show and other tools convert")
    return kind, path
