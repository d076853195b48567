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
    budget: Budget = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run both artifacts on the real runtime, measure both and compare their outputs bit for bit.

    Exit 1 if an output differs or a measurement is not what was predicted.
    """
    import dataclasses

    import peakmem
    from peakmem.errors import Refused
    from peakmem.sizes import human

    from peakmem_cli import words
    from peakmem_cli.screen import Screen

    screen = Screen(as_json=json, quiet=quiet)
    measuring(False, frontend, options)
    first = peakmem.load(original, frontend=frontend, **options)
    second = peakmem.load(optimized, frontend=first.frontend, **options)
    with screen.progress() as progress:
        result = peakmem.verify(first, second, progress=progress)
    screen.result_is_there()
    document = {
        "schema": "peakmem.verification/1",
        "original": str(original),
        "optimized": str(optimized),
        **dataclasses.asdict(result),
        "measured": result.measured,
        "exact": result.exact,
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
