"""``peakmem certify``: the best order, the bound and its proof; the artifact is not rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peakmem_cli.common import (
    Budget,
    Effort,
    Force,
    FrontendName,
    FrontendOptions,
    Json,
    ModelFile,
    Quiet,
    RequireOptimal,
    TimeLimit,
    limit,
)
from peakmem_cli.files import check_outputs, load


def command(
    model: ModelFile,
    options: FrontendOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="CERT", help="Write the certificate here.")
    ] = None,
    program_out: Annotated[
        Path | None,
        typer.Option("--program-out", metavar="FILE", help="Write the program, to check without the frontend."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say in words why no order needs less.")] = False,
    frontend: FrontendName = None,
    budget: Budget = None,
    time_limit: TimeLimit = 60.0,
    effort: Effort = None,
    require_optimal: RequireOptimal = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Prove how little memory any order of MODEL can need; the proof is checked before it is shown.

    Speaks of the modelled live peak. Give CERT to `peakmem check`, which trusts nobody.
    """
    import peakmem
    from peakmem.frontends.programfile import program_bytes
    from peakmem.model import NotProved, Refused
    from peakmem.system.files import write_atomically
    from peakmem.system.sizes import human

    from peakmem_cli import words
    from peakmem_cli.screen import Screen, shorten

    screen = Screen(as_json=json, quiet=quiet)
    check_outputs(model, output, program_out, force=force)
    source = load(model, frontend, options)
    with screen.progress(limit(time_limit)) as progress:
        ordering = peakmem.certify(source, time_limit=limit(time_limit), effort=effort, progress=progress)
    screen.result_is_there()
    program, certificate = source.program, ordering.certificate
    if program_out is not None:
        write_atomically(program_out, program_bytes(program.to_json()), source=model, force=force)
    if output is not None and certificate is not None:
        write_atomically(output, certificate.to_bytes(), source=model, force=force)
    optimal = certificate is not None and ordering.peak == ordering.lower_bound
    reasons: list[str] = []
    if explain and certificate is not None and not quiet:
        from peakmem.proof import explain as explained

        reasons = explained(program, certificate.to_json(), show=str if json else shorten)

    screen.document(
        {
            "schema": "peakmem.certified/1",
            "frontend": source.frontend,
            "input": str(model),
            "program": program.digest,
            "statements": len(program),
            "live_peak_before": ordering.peak_before,
            "live_peak_after": ordering.peak,
            "lower_bound": ordering.lower_bound,
            "optimal": optimal,
            "gap": (ordering.peak - ordering.lower_bound) / ordering.peak if ordering.peak else 0.0,
            "certificate": certificate.to_json() if certificate is not None else None,
            "explanation": reasons,
            "seconds": round(ordering.seconds, 4),
            "notes": [*source.notes, *ordering.notes],
            **({"budget": {"bytes": budget, "met": ordering.peak <= budget}} if budget is not None else {}),
        }
    )
    screen.answer(words.certified(ordering))
    screen.lines(reasons)
    if explain and certificate is None:
        screen.line("there is no certificate to explain")
    screen.line(f"inputs: {source.input_rule}")
    if ordering.interrupted:
        screen.line("the search ended early, by its time limit or Ctrl-C; this is the best so far")
    screen.lines([*source.notes, *ordering.notes], indent="note: ")
    for path, there in ((output, certificate is not None), (program_out, True)):
        if path is not None and there:
            screen.line(f"wrote {path}")

    if budget is not None and ordering.peak > budget:
        never = ", and no order fits" if certificate is not None and ordering.lower_bound > budget else ""
        return screen.verdict(Refused(f"over budget: live_peak {human(ordering.peak)} is more than {human(budget)}{never}"))
    if require_optimal and not optimal:
        return screen.verdict(NotProved(f"{model}: not certified optimal within the limits"))
    if output is not None and certificate is None:
        return screen.verdict(NotProved(f"{output}: not written, since no certificate was found"))
    return 0

