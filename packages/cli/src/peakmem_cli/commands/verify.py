"""``peakmem verify``: run two artifacts on the real runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peakmem_cli.common import Budget, FrontendName, FrontendOptions, Json, Quiet, measuring


def command(
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", help="The artifact as it was.")],
    optimized: Annotated[Path, typer.Argument(metavar="OPTIMIZED", help="What optimize wrote.")],
    options: FrontendOptions,
    frontend: FrontendName = None,
    outputs_only: Annotated[
        bool, typer.Option("--outputs-only", help="Run and compare them even where the files are different programs.")
    ] = False,
    budget: Budget = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Is OPTIMIZED the ORIGINAL rewritten, and does it compute the same bits?

    The files are compared first: the same statements, constants and attributes in another order, some perhaps twice.
    Then both run on the real runtime, which is measured, and their values are compared bit for bit. Exit 1 if they are
    different programs, a value differs, or a measurement is not what was predicted.
    """
    import dataclasses

    import peakmem
    from peakmem.model import Refused
    from peakmem.system.sizes import human

    from peakmem_cli import words
    from peakmem_cli.files import load
    from peakmem_cli.screen import Screen

    screen = Screen(as_json=json, quiet=quiet)
    measuring(False, frontend, options)
    first = load(original, frontend, options)
    second = load(optimized, frontend or first.frontend, options)
    with screen.progress() as progress:
        result = peakmem.verify(first, second, outputs_only=outputs_only, progress=progress)
    screen.result_is_there()
    # What was said of the first when it was read, too: it may say for which sizes the figures are.
    result = dataclasses.replace(result, notes=tuple(dict.fromkeys((*first.notes, *result.notes))))
    document = {
        "schema": "peakmem.verification/1",
        "original": str(original),
        "optimized": str(optimized),
        **dataclasses.asdict(result),
        "measured": result.measured,
        "exact": result.as_predicted,
    }
    if budget is not None and result.optimized_bytes is not None:
        document["budget"] = {"bytes": budget, "met": result.optimized_bytes <= budget}
    screen.document(document)
    screen.answer(words.verified(result))
    screen.lines(words.verified_details(result))
    screen.lines(result.notes, indent="note: ")
    if result.failures:
        return screen.verdict(Refused("; ".join(result.failures)))
    if budget is not None:
        if result.optimized_bytes is None:
            return screen.verdict(Refused(f"the budget cannot be judged: {result.quantity} was not measured"))
        if result.optimized_bytes > budget:
            return screen.verdict(Refused(f"over budget: {result.quantity} {human(result.optimized_bytes)} is more than {human(budget)}"))
    return 0
