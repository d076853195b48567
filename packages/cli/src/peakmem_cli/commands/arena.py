"""``peakmem arena``: offsets for a table of items with known lifetimes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from peakmem_cli.common import Force, Json, Quiet, TimeLimit, check_outputs, limit, size


def command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN.csv", help="A row for each item: id,lower,upper,size (resident while lower <= step < upper).")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the table with the column offset here.")
    ] = None,
    capacity: Annotated[
        list[int] | None,
        typer.Option(
            "--capacity",
            metavar="SIZE",
            parser=size,
            help="Be content with this; exit 1 if it does not suffice. Again for further memories: the hottest items "
            "(column heat) go into the first.",
        ),
    ] = None,
    alignment: Annotated[
        int, typer.Option("--alignment", metavar="BYTES", min=1, help="Offsets are multiples of this; sizes are rounded up.")
    ] = 1,
    time_limit: TimeLimit = 10.0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Place items of known lifetimes as low in one arena as can be found.

    The table is that of MiniMalloc. Nothing is lower than the liveness peak, the most bytes resident at one step.
    """
    from dataclasses import replace

    from peakmem.arena import Placement, liveness_peak, read_table, spread, write_table
    from peakmem.arena import plan as place
    from peakmem.arena.plan import RUNGS
    from peakmem.model import Refused
    from peakmem.system.files import write_atomically
    from peakmem.system.sizes import human

    from peakmem_cli.screen import Screen

    screen = Screen(as_json=json, quiet=quiet)
    check_outputs(plan, output, force=force)
    table = read_table(plan.read_bytes(), str(plan))
    items = [replace(item, size=-(-item.size // alignment) * alignment) for item in table.items]
    peak = liveness_peak(items)
    seconds = limit(time_limit)
    deadline = None if seconds is None else time.monotonic() + seconds
    effort = RUNGS[-1]
    document: dict[str, object] = {"schema": "peakmem.arena/1", "input": str(plan), "items": len(items), "live_peak": peak}
    added: dict[str, tuple[int, ...]]
    refused: Refused | None = None
    interrupted = False
    if capacity and len(capacity) > 1:
        heat = table.heat()
        found = spread(items, capacity, heat=heat, alignment=alignment, deadline=deadline, effort=effort)
        added = {"memory": found.memory, "offset": found.offsets}
        document |= {"capacities": capacity, "arenas": found.sizes}
        each = "; ".join(f"memory {m}: {human(used)} of {human(whole)}" for m, (used, whole) in enumerate(zip(found.sizes, capacity)))
        answer = f"{each} (live_peak {human(peak)})"
    else:
        enough = capacity[0] if capacity else 0
        best: list[Placement] = []
        try:
            placed = place(
                items, alignment=alignment, enough=enough, deadline=deadline, effort=effort, found=best.append
            )
        except KeyboardInterrupt:
            if not best:
                raise
            placed, interrupted = best[-1], True
        added = {"offset": placed.offsets}
        document |= {"arena": placed.size, "lower_bound": placed.lower_bound, "exact": placed.least}
        if placed.least:
            said = "exact: no placement is smaller"
        else:
            said = f"best found; no placement is smaller than {human(placed.lower_bound)}"
        answer = f"arena {human(placed.size)}, {said}"
        if capacity:
            document["capacity"] = {"bytes": enough, "met": placed.size <= enough}
        if capacity and placed.size > enough:
            never = ", and no placement fits" if placed.lower_bound > enough else ""
            refused = Refused(f"over capacity: arena {human(placed.size)} is more than {human(enough)}{never}")
    screen.result_is_there()
    if output is not None:
        write_atomically(output, write_table(table, added), source=plan, force=force)
    screen.document({**document, "offsets": {item.name: offset for item, offset in zip(items, added["offset"])}})
    screen.answer(answer)
    screen.line(f"{len(items)} items, live_peak {human(peak)}")
    if interrupted:
        screen.line("the search ended early, by Ctrl-C; this is the best so far")
    if output is not None:
        screen.line(f"wrote {output}")
    return screen.verdict(refused) if refused is not None else 0
