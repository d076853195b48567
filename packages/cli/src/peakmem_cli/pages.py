"""Pages and figures that several commands write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from peakmem.model import Refused
    from peakmem.report import Found

Page = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Also write one page to read: figures, tables, the proof.")
]


def check_page(path: Path | None) -> None:
    """Refuse to write a page into a file of another kind, which no browser would show."""
    from peakmem.model import UsageError

    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path} is not a .html file; the page is HTML, which browsers show and print")


def write_page(
    found: Found,
    output: Path | None,
    figures: list[tuple[str, Path]],
    *,
    settings: Mapping[str, object],
    source: Path,
    force: bool,
    also: Sequence[Found] = (),
) -> dict[Path, Refused]:
    """Write the page, about ``also`` too, and the figures; returns the figures that do not exist, with the reason."""
    from peakmem.model import Refused
    from peakmem.report import figure, render
    from peakmem.system.files import write_atomically

    missing = {}
    if output is not None:
        write_atomically(output, render([found, *also], settings=settings).encode(), source=source, force=force)
    for kind, path in figures:
        try:
            drawn = figure(found, kind)
        except Refused as error:
            missing[path] = error
        else:
            write_atomically(path, drawn, source=source, force=force)
    return missing
