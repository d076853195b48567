"""Several models on one arena, for ``peakmem arena a.tflite b.tflite ...``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peakmem_cli.common import FrontendOptions
from peakmem_cli.files import check_outputs, load
from peakmem_cli.screen import Screen


def arena_models(
    files: Sequence[Path],
    options: FrontendOptions,
    frontend: str | None,
    screen: Screen,
    *,
    measure: bool = True,
    snippet_out: Path | None = None,
    force: bool = False,
) -> int:
    """Answer how large one arena for all of the models is, and write the source text that shares it.

    Returns
    -------
    int
        The exit code: 1 where a measured head is not the predicted one.
    """
    from peakmem.model import Refused, UsageError
    from peakmem.system.files import write_atomically

    if len(files) < 2:
        raise UsageError("name two models or more that are to share an arena")
    for file in files:
        check_outputs(file, snippet_out, force=force)
    models = [load(file, frontend, options) for file in files]
    with screen.progress() as progress:
        found = models[0].share(models[1:], measure=measure, progress=progress)
    screen.result_is_there()
    if snippet_out is not None and not found.failures:
        write_atomically(snippet_out, found.source.encode(), source=files[0], force=force)
    screen.document({"schema": "peakmem.shared_arena/1", "frontend": models[0].frontend, **found.document})
    screen.answer(found.answer)
    screen.lines(found.lines)
    screen.lines(found.notes, indent="note: ")
    if snippet_out is not None and not found.failures:
        screen.line(f"wrote {snippet_out}")
    elif screen.talks:
        screen.source_text(found.source)
    return screen.verdict(Refused("; ".join(found.failures))) if found.failures else 0
