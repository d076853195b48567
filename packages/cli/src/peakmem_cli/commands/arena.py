"""``peakmem arena``: one arena for several models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peakmem_cli.common import Force, FrontendName, FrontendOptions, Json, NoMeasure, Quiet


def command(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL", help="Two models or more, in the order in which they are set up.")],
    options: FrontendOptions,
    frontend: FrontendName = None,
    snippet_out: Annotated[
        Path | None, typer.Option("--snippet-out", metavar="FILE", help="Write the source text that shares the arena here.")
    ] = None,
    no_measure: NoMeasure = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """How large is one arena that several models share, and which source text shares it?"""
    from peakmem_cli.arena_models import arena_models
    from peakmem_cli.screen import Screen

    screen = Screen(as_json=json, quiet=quiet)
    return arena_models(models, options, frontend, screen, measure=not no_measure, snippet_out=snippet_out, force=force)
