"""``peakmem inspect``: what a model needs as it is, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from peakmem_cli.common import FrontendName, FrontendOptions, Json, ModelFile, NoMeasure, Quiet, TimeLimit, limit

if TYPE_CHECKING:
    from peakmem.frontends import Inspection

    from peakmem_cli.screen import Screen


def command(
    model: ModelFile,
    options: FrontendOptions,
    frontend: FrontendName = None,
    time_limit: TimeLimit = 5.0,
    no_measure: NoMeasure = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show the memory that MODEL needs as it is: its peak, what is live there, and a lower bound for any order."""
    import peakmem
    from peakmem.frontends import complete_options, get_frontend, recognise
    from peakmem.model import cost_report, timeline
    from peakmem.system.sizes import human

    from peakmem_cli import words
    from peakmem_cli.files import load, on_disk
    from peakmem_cli.screen import Screen

    screen = Screen(as_json=json, quiet=quiet)
    file = on_disk(model)
    chosen = get_frontend(frontend) if frontend else recognise(file)
    record = chosen.inspect(file, complete_options(chosen, options))
    if record is not None:
        return show(record, chosen.name, model, screen)
    source = load(model, chosen.name, options)
    program = source.program
    line = timeline(program)
    with screen.progress(limit(time_limit)) as progress:
        ordering = peakmem.certify(source, time_limit=limit(time_limit), progress=progress)
        headline, figures, seen = ("", {}, ()) if no_measure else source.observe(progress=progress)
    costs = cost_report(program)
    about = {"certified": ordering.certificate is not None, "overlays": program.has_overlays}
    known = words.proof(line.peak, ordering.lower_bound, **about)
    if ordering.peak < line.peak:
        instead = "" if source.quantity == "live_peak" else f" instead of {human(line.peak)}"
        known = f"an order with a live_peak of {human(ordering.peak)}{instead} exists, " + words.proof(
            ordering.peak, ordering.lower_bound, **about
        )
    if not source.bounded:
        known = "nothing is known about the least; the live_peak is " + known
    screen.document(
        {
            "schema": "peakmem.inspection/1",
            "frontend": source.frontend,
            "input": str(model),
            "digest": source.digest,
            "program": program.digest,
            "statements": len(program),
            "buffers": len(program.buffers),
            "live_peak": line.peak,
            "peak_step": line.peak_step,
            "peak_statement": program.statements[line.order[line.peak_step]].name if line.order else None,
            "live_at_peak": [
                {"buffer": program.buffers[b].name, "bytes": program.buffers[b].size, "kind": program.buffers[b].kind}
                for b in line.live_at(line.peak_step)
            ],
            "best_known_peak": ordering.peak,
            "lower_bound": ordering.lower_bound,
            "certified": ordering.certificate is not None,
            "quantity": source.quantity,
            "predicted_bytes": source.predicted_bytes,
            "input_rule": source.input_rule,
            "entry_bytes": program.entry_bytes,
            "constant_bytes": sum(b.size for b in program.buffers if b.kind == "constant"),
            "macs": costs.macs,
            "advice": list(source.advice),
            "notes": [*source.notes, *seen],
            **({source.frontend: figures} if figures else {}),
        }
    )
    screen.answer(f"{headline + '; ' if headline else ''}{source.quantity} {human(source.predicted_bytes)}, predicted for the order given; {known}")
    if screen.talks:
        screen.lines(source.advice)
        constants = sum(b.size for b in program.buffers if b.kind == "constant")
        counts = ", ".join(
            f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((len(program), "statement"), (len(program.buffers), "buffer"))
        )
        beside = f"; constants {human(constants)} are not counted" if constants else ""
        screen.line(f"{source.frontend}: {counts}{beside}")
        screen.line(f"inputs: {source.input_rule}")
        screen.table(words.peak_title(line), words.PEAK_COLUMNS, words.peak_rows(line))
        if costs.macs:
            screen.line(f"{costs.macs:,} MACs")
        screen.lines([*source.notes, *seen], indent="note: ")
    return 0


def show(record: Inspection, frontend: str, path: Path, screen: Screen) -> int:
    """A record of what ran, which has no order to find."""
    screen.document(
        {
            "schema": "peakmem.recording/1",
            "frontend": frontend,
            "input": str(path),
            "digest": record.digest,
            "notes": list(record.notes),
            frontend: record.document,
        }
    )
    screen.answer(record.answer)
    if screen.talks:
        screen.lines(record.lines)
        for table in record.tables:
            screen.table(*table)
        screen.lines(record.notes, indent="note: ")
    return 0
