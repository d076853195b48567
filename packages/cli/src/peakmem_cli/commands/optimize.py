"""``peakmem optimize``: artifact in, artifact with the least peak out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peakmem_cli.commands import split as bands_of
from peakmem_cli.commands.recompute import look, save, tell
from peakmem_cli.common import (
    Budget,
    Effort,
    Force,
    FrontendName,
    FrontendOptions,
    Json,
    ModelFile,
    NoMeasure,
    Quiet,
    RequireOptimal,
    TimeLimit,
    limit,
    measuring,
    named,
)
from peakmem_cli.files import check_outputs, load
from peakmem_cli.pages import Page, check_page, write_page
from peakmem_cli.reruns import Cap, MaxExtraMacs, Reruns, TargetPeak, Threshold

C_SOURCES = (".c", ".cc", ".cpp", ".cxx")
"""Ends of a name that say in which language the array is: the first one C, the others C++."""


def command(
    model: ModelFile,
    options: FrontendOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where the rewritten artifact goes.")
    ] = None,
    certificate_out: Annotated[
        Path | None, typer.Option("--certificate-out", metavar="FILE", help="Write the certificate here.")
    ] = None,
    frontend: FrontendName = None,
    budget: Budget = None,
    time_limit: TimeLimit = 60.0,
    effort: Effort = None,
    require_optimal: RequireOptimal = False,
    no_measure: NoMeasure = False,
    snippet: Annotated[
        bool,
        typer.Option("--snippet", help="Print source text for the device, where the frontend has one; with -q that alone."),
    ] = False,
    snippet_out: Annotated[
        Path | None, typer.Option("--snippet-out", metavar="FILE", help="Write that source text here.")
    ] = None,
    c_array: Annotated[
        Path | None,
        typer.Option("--c-array", metavar="FILE", help="Write the artifact as an aligned C array here too, where the frontend can: .cc or .c."),
    ] = None,
    report: Page = None,
    recompute: Annotated[
        bool,
        typer.Option("--recompute", help="Also run operators twice, as `peakmem recompute` does with the four options below."),
    ] = False,
    target_peak: TargetPeak = None,
    max_extra_macs: MaxExtraMacs = None,
    cap: Cap = 2,
    threshold: Threshold = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="P%", help="Also run operators in bands, for at most so many more MACs, as `peakmem split` does."),
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Permute the operators of MODEL so that it needs the least memory, and write the result.

    The first line is the answer: bytes before and after, and whether it is proved optimal.
    """
    import peakmem
    from peakmem.model import NotProved, Refused, UsageError, scheduled_timeline
    from peakmem.system.files import write_atomically
    from peakmem.system.sizes import human

    from peakmem_cli import words
    from peakmem_cli.screen import Screen

    check_page(report)
    if c_array is not None and c_array.suffix not in C_SOURCES:
        raise UsageError(f"--c-array: {c_array} is no C source; name a file that ends in {', '.join(C_SOURCES)}")
    wanted = Reruns(target_peak, max_extra_macs, cap, tuple(threshold or ()))
    if wanted.given and not recompute:
        raise UsageError("--target-peak, --max-extra-macs, --cap and --threshold need --recompute")
    screen = Screen(as_json=json, quiet=quiet)
    others = [certificate_out, snippet_out, c_array, budget, effort]
    alone = snippet or require_optimal or any(value is not None for value in others)
    if split is not None:
        if recompute or alone:
            raise UsageError(
                "--split: goes with none of --recompute, --certificate-out, --snippet, --snippet-out, --c-array, --require-optimal, "
                "--budget and --effort; `peakmem optimize` of the file that it writes takes them"
            )
        check_outputs(model, output, report, force=force)
        bands = bands_of.look(model, options, frontend, time_limit, no_measure, screen, max_extra_macs=split)
        saved = bands_of.save(bands, output, force=force)
        if report is not None:
            write_page(bands, report, [], settings=named(options, time_limit, no_measure) | {"--split": split}, source=model, force=force)
        screen.document(bands.to_json(output=saved))
        return bands_of.tell(bands, screen, output, {output: saved is not None, report: True})
    if recompute:
        if alone:
            raise UsageError(
                "--recompute: goes with none of --certificate-out, --snippet, --snippet-out, --c-array, --require-optimal, --budget and --effort; "
                "a plan is exact for its base order, never certified optimal"
            )
        if output is not None and target_peak is None and max_extra_macs is None:
            raise UsageError("-o: give --target-peak or --max-extra-macs, which choose the plan to write")
        from peakmem.transform.recompute import result_document

        check_outputs(model, output, report, force=force)
        found = look(wanted, model, options, frontend, time_limit, no_measure, screen)
        written = save(found, output, force=force)
        if report is not None:
            settings = named(options, time_limit, no_measure) | wanted.named()
            write_page(found, report, [], settings=settings, source=model, force=force)
        screen.document(result_document(found, output=written))
        return tell(found, wanted, screen, output, {output: written is not None, report: True})
    check_outputs(model, output, certificate_out, snippet_out, c_array, report, force=force)
    measure = measuring(no_measure, frontend, options)
    source = load(model, frontend, options)
    wants_text = snippet or snippet_out is not None
    if wants_text and type(source).snippet is peakmem.Model.snippet:
        raise UsageError(f"--snippet: frontend {source.frontend!r} has no snippet to print")
    if c_array is not None and type(source).c_array is peakmem.Model.c_array:
        raise UsageError(f"--c-array: frontend {source.frontend!r} writes no C array")
    with screen.progress(limit(time_limit)) as progress:
        result = peakmem.optimize(source, time_limit=limit(time_limit), effort=effort, measure=measure, progress=progress)
    screen.result_is_there()
    check = result.verification
    failures = check.failures if check is not None else ()
    if output is not None and not failures:
        result.model.save(output, force=force)
    if certificate_out is not None and result.certificate is not None:
        write_atomically(certificate_out, result.certificate.to_bytes(), source=model, force=force)
    # Text about an artifact that is refused would be used all the same.
    text = result.model.snippet() if wants_text and not failures else None
    if snippet_out is not None and text is not None:
        write_atomically(snippet_out, text.encode(), source=model, force=force)
    if c_array is not None and not failures:
        array = result.model.c_array(c_array.stem, language="c" if c_array.suffix == ".c" else "c++")
        write_atomically(c_array, array.encode(), source=model, force=force)

    if report is not None:
        write_page(result, report, [], settings=named(options, time_limit, no_measure), source=model, force=force)

    reached = result.model.predicted_bytes
    if check is not None and check.optimized_bytes is not None:
        reached = check.optimized_bytes
    saved = str(output) if output is not None and not failures else None
    document = result.to_json(output=saved)
    if budget is not None:
        document["budget"] = {"bytes": budget, "met": reached <= budget}
    if text is not None:
        document["snippet"] = text
    screen.document(document)
    only_text = quiet and snippet and text is not None
    if not only_text:
        screen.answer(words.answer(result))
    if screen.talks:
        screen.lines(words.details(result))
        for where, order in result.schedule.orders.items():
            if where == "" or order != tuple(range(len(order))):
                screen.lines(words.moved(words.program_of(result, where), order, where))
        # Of the given statements in their new order: a rewritten file may number them anew.
        after = scheduled_timeline(words.program_of(result, ""), result.schedule.orders)
        screen.table(words.peak_title(after), words.PEAK_COLUMNS, words.peak_rows(after))
        screen.lines(document["notes"], indent="note: ")
        if saved:
            screen.line(f"wrote {saved}")
        elif output is None:
            screen.line("nothing written; give -o OUT")
        outputs = ((certificate_out, result.certificate is not None), (snippet_out, text is not None), (c_array, not failures), (report, True))
        for path, there in outputs:
            if path is not None and there:
                screen.line(f"wrote {path}")
    if snippet and text is not None:
        screen.source_text(text)

    if failures:
        unwritten = any(path is not None for path in (output, snippet_out, c_array))
        return screen.verdict(Refused("; ".join(failures) + (f"; nothing {'else ' if report else ''}written" if unwritten else "")))
    if budget is not None and reached > budget:
        return screen.verdict(Refused(f"over budget: {source.quantity} {human(reached)} is more than {human(budget)}"))
    if require_optimal and not (result.realized_optimal and reached == result.realized_bound):
        return screen.verdict(NotProved(f"{model}: not certified optimal within the limits"))
    if certificate_out is not None and result.certificate is None:
        return screen.verdict(NotProved(f"{certificate_out}: not written, since no certificate was found"))
    return 0
