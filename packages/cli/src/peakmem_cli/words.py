"""The sentences of the commands; those about proof and measurement are `peakmem.report.words`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peakmem.report.words import NOTHING_VARIED, at_step, shorten, size_or_unknown
from peakmem.report.words import answer as answer
from peakmem.report.words import change as change
from peakmem.report.words import comparison as comparison
from peakmem.report.words import details as details
from peakmem.report.words import percent as percent
from peakmem.report.words import proof as proof
from peakmem.system.sizes import human, in_bytes

if TYPE_CHECKING:
    from peakmem.frontends import Verification
    from peakmem.model import Program, Timeline
    from peakmem.ordering import Ordering
    from peakmem.result import Result

LISTED = 10
"""Rows of a list of moved statements or live buffers before it is cut short."""


def certified(ordering: Ordering) -> str:
    """The first line of ``certify``."""
    known = proof(
        ordering.peak, ordering.lower_bound, certified=ordering.certificate is not None, overlays=ordering.program.has_overlays
    )
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
        since = "entry" if first < 0 else f"step {first}"
        until = "end" if last >= steps else f"step {last}"
        rows.append((buffer.name, buffer.kind, in_bytes(buffer.size), since, until))
    if len(live) > LISTED:
        others = sum(program.buffers[b].size for b in live[LISTED:])
        rows.append((f"{len(live) - LISTED} smaller ones", "", in_bytes(others), "", ""))
    if steps and timeline.workspaces[timeline.order[step]]:
        work = timeline.workspaces[timeline.order[step]]
        rows.append(("(workspace of the statement)", "", in_bytes(work), f"step {step}", f"step {step}"))
    if steps and timeline.saved_at(step):
        a, o, saved = timeline.overlays_at(step)[0]
        what = f"(less: {shorten(program.buffers[o].name)} on {shorten(program.buffers[a].name)})"
        rows.append((what, "", f"-{in_bytes(saved)}", f"step {step}", f"step {step}"))
    return rows


def peak_title(timeline: Timeline) -> str:
    """Where the peak is."""
    if not timeline.order:
        return f"live_peak {human(timeline.peak)}, resident at entry; no statements"
    name = label(timeline.program, timeline.order[timeline.peak_step])
    return f"live_peak {human(timeline.peak)} at {at_step(timeline.peak_step, len(timeline.order))}, {name}; live there:"


PEAK_COLUMNS = ("buffer", "kind", ">bytes", "since", "until")


def moved(program: Program, order: tuple[int, ...], where: str = "") -> list[str]:
    """A short diff of an order against the given one."""
    from peakmem.model import moves

    found = moves(order)
    place = f" of body {where}" if where else ""
    if not found:
        return [f"order{place} unchanged"]
    lines = [f"moved {len(found)} of {len(order)} statements{place}:"]
    for move in found[:LISTED]:
        after = f"after {shorten(program.statements[order[move.step - 1]].name)}" if move.step else "first"
        lines.append(f"  {label(program, move.statement)}: step {move.statement} -> {move.step}, {after}")
    if len(found) > LISTED:
        lines.append(f"  and {len(found) - LISTED} more")
    return lines


def program_of(result: Result, where: str) -> Program:
    """The program that the order of body ``where`` permutes."""
    expansion = result.schedule.expansion
    program = expansion.program if expansion is not None else result.source.program
    return dict(program.bodies())[where] if where else program


def verified(check: Verification) -> str:
    """The first line of ``verify``."""
    same = {True: "outputs bitwise identical", False: "outputs DIFFER", None: "outputs not compared"}
    if check.baseline_bytes is None or check.optimized_bytes is None:
        figures = f"{check.quantity} not measured"
    else:
        before, after = check.baseline_bytes, check.optimized_bytes
        figures = f"{check.quantity} {human(before)} -> {human(after)} {change(before, after)}, measured"
    if not check.runtime:
        return f"{check.structure}; {figures}"
    outputs = same[check.bitwise_identical] if check.varied is not False else "outputs never varied"
    asked = f"{check.headline}; " if check.headline else ""
    return f"{outputs}; {asked}{figures} on {check.runtime} {check.version}".rstrip()


def verified_details(check: Verification) -> list[str]:
    """The lines under the answer of ``verify``; what differs is left to its verdict."""
    lines = [f"files: {check.structure}"] if check.structure and check.runtime else []
    if check.compared:
        lines.append(f"compared: {check.compared}")
    if check.varied is False:
        lines.append(NOTHING_VARIED)
    if check.measured:
        agree = "equals" if check.as_predicted else "DIFFERS FROM"
        lines.append(
            f"measured {agree} predicted ({size_or_unknown(check.baseline_predicted)} -> {size_or_unknown(check.predicted_bytes)})"
        )
    return lines
