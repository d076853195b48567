"""``peakmem schema``: what printed JSON looks like, as JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="What a document names as its schema, as peakmem.result/1; or result.")
    ] = None,
) -> int:
    """Print the JSON Schema of a document that peakmem prints; their names without one."""
    from importlib.resources import files

    from peakmem.model import UsageError, did_you_mean

    folder = files("peakmem_cli") / "schemas"
    known = {f"peakmem.{file.name.removesuffix('.json').replace('-', '/')}": file for file in folder.iterdir() if file.name.endswith(".json")}
    if name is None:
        print("\n".join(sorted(known)))
        return 0
    whole = name if name.startswith("peakmem.") else f"peakmem.{name}"
    file = known.get(whole) or known.get(f"{whole}/1")
    if file is None:
        raise UsageError(f"no document is called {name!r}{did_you_mean(name, known)} (peakmem schema lists them)")
    print(file.read_text("utf-8"), end="")
    return 0
