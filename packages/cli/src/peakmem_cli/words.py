"""The sentences of the answer. Every word about proof is chosen here.

``certified optimal``: a certificate that our checker accepted, and the realized quantity reaches its bound.
``best found``: no proof that it is the least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peakmem.result import bounded, realized_offset
from peakmem.sizes import exact, human

from peakmem_cli.screen import shorten

if TYPE_CHECKING:
    from peakmem.frontend import Verification
    from peakmem.liveness import Timeline
    from peakmem.ordering import Ordering
    from peakmem.program import Program
    from peakmem.result import Result

LISTED = 10
"""Rows of a list of moved statements or live buffers before it is cut short."""


def change(before: int, after: int) -> str:
    """``(-43.3 %)``, or ``(unchanged)``."""
    if before == after:
        return "(unchanged)"
    if before == 0:
        return f"({after:+,} B)"
    return f"({percent(after - before, before, sign='+')})"


def percent(part: int, whole: int, *, sign: str = "") -> str:
    """``43.3 %``; never 0.0 for what is not zero."""
    value = 100 * part / whole if whole else 0.0
    digits = 1
    while part and abs(value) < 0.5 * 10**-digits and digits < 12:
        digits += 1
    return f"{value:{sign}.{digits}f} %"


def proof(reached: int, bound: int, *, certified: bool) -> str:
    """``certified optimal``, or what is known instead."""
    if certified and reached == bound:
        return "certified optimal"
    kind = "certified lower bound" if certified else "lower bound"
    return f"best found, {kind} {human(bound)}, gap {percent(reached - bound, reached)}"


def answer(result: Result) -> str:
    """The first line of ``optimize``: realized quantity before and after, proof, measured or predicted."""
    check = result.verification
    if check is not None and check.baseline_bytes is not None and check.optimized_bytes is not None:
        before, after = check.baseline_bytes, check.optimized_bytes
        source = f"measured on {check.runtime} {check.version}".rstrip()
    else:
        before, after = result.source.predicted_bytes, result.model.predicted_bytes
        source = "predicted"
    if check is not None and check.bitwise_identical:
        source += ", outputs bitwise identical"
    known = _known(result, after)
    return f"{result.source.quantity} {human(before)} -> {human(after)} {change(before, after)}, {known}; {source}"


def _known(result: Result, reached: int) -> str:
    proved = result.certificate is not None
    if not bounded(result.source):
        return "best found, no bound known"
    if result.realized_bound > reached:  # the quantity leaves out bytes of the live peak and does not say which
        return f"order {proof(result.live_peak_after, result.lower_bound, certified=proved)}"
    return proof(reached, result.realized_bound, certified=proved)


def certified(ordering: Ordering) -> str:
    """The first line of ``certify``."""
    known = proof(ordering.peak, ordering.lower_bound, certified=ordering.certificate is not None)
    before, after = ordering.peak_before, ordering.peak
    return f"live_peak {human(before)} -> {human(after)} {change(before, after)}, {known}"


def label(program: Program, v: int) -> str:
    """A statement for people: its name, and its operator where that says more."""
    statement = program.statements[v]
    name, op = shorten(statement.name), shorten(statement.op)
    return name if statement.op in statement.name else f"{name} ({op})"


def peak_rows(timeline: Timeline) -> list[tuple[str, str, str, str, str]]:
    """What is live at the peak: name, kind, bytes, since when, until when; the workspace as a row of its own."""
    program, step = timeline.program, timeline.peak_step
    steps = len(timeline.order)
    rows: list[tuple[str, str, str, str, str]] = []
    live = timeline.live_at(step)
    for b in live[:LISTED]:
        buffer = program.buffers[b]
        first, last = timeline.first[b], timeline.last[b]
        since = "entry" if first < 0 else f"step {first + 1}"
        until = "end" if last >= steps else f"step {last + 1}"
        rows.append((buffer.name, buffer.kind, exact(buffer.size), since, until))
    if len(live) > LISTED:
        others = sum(program.buffers[b].size for b in live[LISTED:])
        rows.append((f"{len(live) - LISTED} smaller ones", "", exact(others), "", ""))
    if steps and timeline.workspaces[timeline.order[step]]:
        work = timeline.workspaces[timeline.order[step]]
        rows.append(("(workspace of the statement)", "", exact(work), f"step {step + 1}", f"step {step + 1}"))
    return rows


def peak_title(timeline: Timeline) -> str:
    """Where the peak is."""
    if not timeline.order:
        return f"live_peak {human(timeline.peak)}, resident at entry; no statements"
    name = label(timeline.program, timeline.order[timeline.peak_step])
    return f"live_peak {human(timeline.peak)} at step {timeline.peak_step + 1} of {len(timeline.order)}, {name}; live there:"


PEAK_COLUMNS = ("buffer", "kind", ">bytes", "since", "until")


def moved(program: Program, order: tuple[int, ...], where: str = "") -> list[str]:
    """A short diff of an order against the given one."""
    from peakmem.moves import moves

    found = moves(order)
    place = f" of body {where}" if where else ""
    if not found:
        return [f"order{place} unchanged"]
    lines = [f"moved {len(found)} of {len(order)} statements{place}:"]
    for move in found[:LISTED]:
        after = f"after {shorten(program.statements[order[move.step - 1]].name)}" if move.step else "first"
        lines.append(f"  {label(program, move.statement)}: step {move.statement + 1} -> {move.step + 1}, {after}")
    if len(found) > LISTED:
        lines.append(f"  and {len(found) - LISTED} more")
    return lines


def details(result: Result) -> list[str]:
    """The lines under the answer of ``optimize``."""
    check = result.verification
    lines = []
    left_out = realized_offset(result.source)
    if left_out:
        lines.append(f"{result.source.quantity} leaves out {human(left_out)} of the live_peak")
    live = (result.live_peak_before, result.live_peak_after)
    if live != (result.source.predicted_bytes + left_out, result.model.predicted_bytes + left_out):
        known = ", " + proof(result.live_peak_after, result.lower_bound, certified=result.certificate is not None)
        known = known if bounded(result.source) else ""  # the proof speaks of orders that the runtime may not run
        lines.append(f"live_peak {human(live[0])} -> {human(live[1])} {change(*live)}{known}")
    if check is None:
        lines.append(f"not measured: {result.unmeasured}")
    else:
        lines += comparison(check)
    lines.append(f"inputs: {result.source.input_rule}")
    if result.ordering.interrupted:
        lines.append("the search was interrupted; this is the best so far")
    return lines


def comparison(check: Verification) -> list[str]:
    """What was compared and how that ended, for commands that rewrite an artifact."""
    lines = []
    if check.measured and not check.exact:
        lines.append(
            f"measured and predicted differ: predicted {_size(check.baseline_predicted)} -> "
            f"{_size(check.predicted_bytes)}, measured {_size(check.baseline_bytes)} -> {_size(check.optimized_bytes)}"
        )
    if check.compared:
        same = {True: "bitwise identical", False: "NOT identical", None: "not compared"}[check.bitwise_identical]
        lines.append(f"{check.compared}: {same}")
    return lines


def program_of(result: Result, where: str) -> Program:
    """The program that the order of body ``where`` permutes."""
    expansion = result.schedule.expansion
    program = expansion.program if expansion is not None else result.source.program
    return dict(program.bodies())[where] if where else program


def _size(size: int | None) -> str:
    return "unknown" if size is None else human(size)


def verified(check: Verification) -> str:
    """The first line of ``verify``."""
    same = {True: "outputs bitwise identical", False: "outputs DIFFER", None: "outputs not compared"}
    if check.baseline_bytes is None or check.optimized_bytes is None:
        figures = f"{check.quantity} not measured"
    else:
        before, after = check.baseline_bytes, check.optimized_bytes
        figures = f"{check.quantity} {human(before)} -> {human(after)} {change(before, after)}, measured"
    return f"{same[check.bitwise_identical]}; {figures} on {check.runtime} {check.version}".rstrip()


def verified_details(check: Verification) -> list[str]:
    """The lines under the answer of ``verify``; what differs is left to its verdict."""
    lines = []
    if check.compared:
        lines.append(f"compared: {check.compared}")
    if check.measured:
        agree = "equals" if check.exact else "DIFFERS FROM"
        lines.append(
            f"measured {agree} predicted ({_size(check.baseline_predicted)} -> {_size(check.predicted_bytes)})"
        )
    return lines
