"""``peakmem merge``: the rows of several machines, or of several days, as one survey."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peakmem_cli.commands.survey import Against, Gate, Outputs, Reports, check_outputs, finish
from peakmem_cli.common import Budget, Force, Json, Quiet, RequireOptimal


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.jsonl...", help="Rows that peakmem survey wrote; - for standard input.")],
    output: Outputs = None,
    reports: Reports = None,
    against: Against = None,
    gate: Gate = False,
    budget: Budget = None,
    require_optimal: RequireOptimal = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Put rows of several surveys together: one table, one document, one gate. Nothing is run.

    Of rows about one model under the same options the last one stands.
    """
    from peakmem.model import InputError, UsageError

    from peakmem_cli.fleet.rows import merge, read_rows
    from peakmem_cli.screen import Screen

    if gate and against is None:
        raise UsageError("--gate: goes with --against FILE.jsonl")
    outputs = check_outputs(output, force=force)
    if same := [path for path in outputs if path.exists() and any(path.samefile(file) for file in files if file.exists())]:
        raise UsageError(f"-o: {same[0]}: is one of the files that are merged; name another output")
    earlier = read_rows(against) if against is not None else None
    rows = merge(map(read_rows, files))
    if not rows:
        raise InputError(f"{', '.join(map(str, files))}: no rows")
    screen = Screen(as_json=json, quiet=quiet)
    return finish(
        rows, len(rows), outputs, screen, reports=reports, earlier=earlier, gate=gate, budget=budget, require_optimal=require_optimal,
        document=json, growing=False,
    )  # fmt: skip
