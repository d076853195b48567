"""Arguments and options that several commands share, as annotations for typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer
from peakmem.model import UsageError
from peakmem.system.sizes import parse_size


def size(text: str) -> int:
    """`parse_size` for typer: the sentence becomes a usage error of that option."""
    try:
        return parse_size(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None


def seconds(text: str) -> float:
    """A time limit: a number of seconds, not negative and not NaN."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise typer.BadParameter(f"{text!r} is not a number of seconds")
    return value


FrontendOptions: TypeAlias = dict[str, Any]
"""Values of the options of one frontend, filled in by `peakmem_cli.build`."""

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="The artifact, - for standard input; its kind is recognised from its content.")]
FrontendName = Annotated[
    str | None,
    typer.Option("--frontend", metavar="NAME", help="Read MODEL with this frontend; adds its options to the help."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the answer.")]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", metavar="SECONDS", parser=seconds, help="Stop searching after this; 'inf' never.")
]
Effort = Annotated[
    int | None,
    typer.Option(
        "--effort",
        metavar="N",
        min=0,
        help="Stop ordering after N units of work; with '--time-limit inf' the answer is the same on any machine.",
    ),
]
NoMeasure = Annotated[bool, typer.Option("--no-measure", help="Do not run the artifacts on the real runtime.")]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        metavar="SIZE",
        parser=size,
        help="Exit 1 if the answer is more than this (262144, 256KB of 1000 bytes, 24 MiB of 1024 x 1024).",
    ),
]
RequireOptimal = Annotated[bool, typer.Option("--require-optimal", help="Exit 3 unless the answer is certified optimal.")]


def measuring(no_measure: bool, frontend: str | None, options: FrontendOptions) -> bool | Literal["required"]:
    """How `peakmem.optimize` shall measure: whoever names a runtime wants it to run, and no other figure.

    Raises
    ------
    RuntimeMissing
        When the runtime named is not installed: before any work, which would be in vain.
    """
    from peakmem.frontends import asks_for_runtime, get_frontend

    if no_measure:
        return False
    named = bool(frontend and options) and asks_for_runtime(get_frontend(frontend or ""), options)
    return "required" if named else True


def named(options: FrontendOptions, time_limit: float, no_measure: bool) -> dict[str, object]:
    """Options under the names that they are typed with, for the provenance of a page."""
    given: dict[str, object] = {f"--{key.replace('_', '-')}": value for key, value in sorted(options.items())}
    return given | {"--time-limit": f"{time_limit:g} s"} | ({"--no-measure": "yes"} if no_measure else {})


def limit(value: float) -> float | None:
    """None for an infinite time limit, as the library has it."""
    return None if value == float("inf") else value

