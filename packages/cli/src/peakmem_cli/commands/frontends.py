"""``peakmem frontends``: what is installed. Imports no runtime."""

from __future__ import annotations

from typing import Any

from peakmem_cli.common import Json, Quiet


def command(json: Json = False, quiet: Quiet = False) -> int:
    """List the installed frontends, their runtimes and their options."""
    from peakmem.frontends import discover, get_frontend
    from peakmem.model import UsageError

    from peakmem_cli.screen import Screen

    screen = Screen(as_json=json, quiet=quiet)
    rows: list[dict[str, Any]] = []
    for name, point in discover().items():
        row: dict[str, Any] = {
            "name": name,
            "distribution": point.dist.name if point.dist is not None else None,
            "version": point.dist.version if point.dist is not None else None,
        }
        try:
            frontend = get_frontend(name)
        except UsageError as error:  # a broken plugin is listed as such
            rows.append({**row, "error": str(error)})
            continue
        rows.append(
            {
                **row,
                "description": frontend.description,
                "runtimes": [
                    {"name": r.name, "version": r.version, "pip": r.pip} for r in frontend.runtimes()
                ],
                "options": [
                    {"name": o.name, "kind": o.kind, "help": o.help, "multiple": o.multiple} for o in frontend.options
                ],
            }
        )
    screen.document({"schema": "peakmem.frontends/1", "frontends": rows})
    screen.answer(f"{len(rows)} frontends: {', '.join(row['name'] for row in rows) or 'none'}")
    for row in rows:
        screen.line()
        screen.line(f"{row['name']} ({row['distribution']} {row['version']})")
        if "error" in row:
            screen.line(f"  {row['error']}")
            continue
        screen.line(f"  {row['description']}")
        for runtime in row["runtimes"]:
            state = runtime["version"] or f"not installed ({runtime['pip']})"
            screen.line(f"  runtime {runtime['name']}: {state}")
        if row["options"]:
            screen.line("  options: " + ", ".join(f"--{option['name']}" for option in row["options"]))
    return 0
