"""``peakmem arena``: offsets for a table of items with known lifetimes, or one arena for several models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from peakmem.model import UsageError

from peakmem_cli.common import Force, FrontendName, FrontendOptions, Json, NoMeasure, Quiet, TimeLimit, size
from peakmem_cli.files import STDIN


def command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="PLAN.csv | MODEL MODEL...",
            help="A table with a row for each item: id,lower,upper,size (resident while lower <= step < upper), - for standard input. "
            "Or two models or more, in the order in which they are set up.",
        ),
    ],
    options: FrontendOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Table: write it with the column offset here.")
    ] = None,
    capacity: Annotated[
        list[int] | None,
        typer.Option(
            "--capacity",
            metavar="SIZE",
            parser=size,
            help="Table: be content with this; exit 1 if it does not suffice. Again for further memories: the hottest items "
            "(column heat) go into the first.",
        ),
    ] = None,
    alignment: Annotated[
        int, typer.Option("--alignment", metavar="BYTES", min=1, help="Table: offsets are multiples of this; sizes are rounded up.")
    ] = 1,
    time_limit: TimeLimit = 10.0,
    frontend: FrontendName = None,
    snippet_out: Annotated[
        Path | None, typer.Option("--snippet-out", metavar="FILE", help="Models: write the source text that shares the arena here.")
    ] = None,
    no_measure: NoMeasure = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Place items of known lifetimes as low in one arena as can be found; or share one arena between models.

    The table is that of MiniMalloc. Nothing is lower than the liveness peak, the most bytes resident at one step.
    """
    from peakmem_cli.screen import Screen

    screen = Screen(as_json=json, quiet=quiet)
    table = len(files) == 1 and (files[0].suffix.lower() == ".csv" or str(files[0]) == STDIN)
    # An output that is asked for and never written would be missed only later.
    idle = (
        {"--snippet-out": snippet_out, "--frontend": frontend, **{f"--{key.replace('_', '-')}": value for key, value in options.items()}}
        if table
        else {"--output": output, "--capacity": capacity, "--alignment": alignment if alignment != 1 else None}
    )
    for name, value in idle.items():
        if value is not None:
            raise UsageError(f"{name}: is for {'models' if table else 'a table'} (peakmem arena --help)")
    if table:
        from peakmem_cli.arena_table import arena_table

        return arena_table(
            files[0], screen, output=output, capacity=capacity, alignment=alignment, time_limit=time_limit, force=force
        )
    from peakmem_cli.arena_models import arena_models

    return arena_models(files, options, frontend, screen, measure=not no_measure, snippet_out=snippet_out, force=force)
