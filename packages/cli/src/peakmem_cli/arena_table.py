"""Offsets for a table of items with known lifetimes, for ``peakmem arena plan.csv``."""

from __future__ import annotations

from pathlib import Path

from peakmem_cli.common import limit
from peakmem_cli.files import check_outputs, on_disk
from peakmem_cli.screen import Screen


def arena_table(
    plan: Path,
    screen: Screen,
    *,
    output: Path | None = None,
    capacity: list[int] | None = None,
    alignment: int = 1,
    time_limit: float = 10.0,
    effort: float | None = None,
    force: bool = False,
) -> int:
    """Place the items of a table in MiniMalloc's form and answer how large the arena is.

    Returns
    -------
    int
        The exit code: 1 where one capacity is given and does not suffice.
    """
    from dataclasses import replace

    from peakmem.arena import Placement, liveness_peak, read_table, spread, write_table
    from peakmem.arena import plan as place
    from peakmem.arena.plan import NODES
    from peakmem.model import Refused
    from peakmem.system import clock
    from peakmem.system.files import write_atomically
    from peakmem.system.sizes import human

    check_outputs(plan, output, force=force)
    table = read_table(on_disk(plan).read_bytes(), str(plan))
    items = [replace(item, size=-(-item.size // alignment) * alignment) for item in table.items]
    peak = liveness_peak(items)
    seconds = limit(time_limit)
    deadline = clock.after(seconds)
    if effort is None:
        effort = max(NODES)
    document: dict[str, object] = {"schema": "peakmem.arena/1", "input": str(plan), "items": len(items), "live_peak": peak}
    added: dict[str, tuple[int, ...]]
    refused: Refused | None = None
    interrupted = False
    if capacity and len(capacity) > 1:
        heat = table.heat()
        found = spread(items, capacity, heat=heat, alignment=alignment, deadline=deadline, effort=effort)
        interrupted = found.interrupted
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
