"""What ``peakmem inspect`` says of a memory snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peakmem.frontends import Inspection
from peakmem.model import InputError
from peakmem.system.sizes import human

from peakmem_inductor.cuda.conf import Settings
from peakmem_inductor.cuda.history import Findings, Run, study, under
from peakmem_inductor.cuda.snapshots import Device, Snapshot, read_snapshot

SHOWN = 20
"""Places of a table; what is smaller is summed up."""


def inspection(path: Path, settings: Sequence[str] = ()) -> Inspection:
    """Read, replay and tell.

    Raises
    ------
    InputError
        Where the file is no snapshot, or its history contradicts its segments.
    UsageError
        Where a setting is not known.
    """
    others = [(text, Settings.parse(text)) for text in settings]
    snapshot = read_snapshot(path)
    if not snapshot.devices:
        raise InputError(f"{path}: holds no memory of any device; record with torch.cuda.memory._record_memory_history first")
    found = [(device, study(device, snapshot.settings, str(path))) for device in snapshot.devices]
    runs = {device.number: [(text, under(device, snapshot.settings, other, str(path))) for text, other in others] for device, _ in found}
    most = max(found, key=lambda row: row[1].recorded.at_peak.reserved)[1]
    lines: list[str] = []
    tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = []
    for device, findings in found:
        lines += _lines(snapshot, device, findings, runs[device.number])
        shown = findings.live[:SHOWN]
        rows = [(share.place, f"{share.bytes:,}", f"{share.blocks:,}") for share in shown]
        if rest := findings.live[SHOWN:]:
            rows.append((f"{len(rest)} other places", f"{sum(s.bytes for s in rest):,}", f"{sum(s.blocks for s in rest):,}"))
        tables.append((f"live at the peak of device {findings.device}", ("place", ">bytes", ">blocks"), rows))
    peak = most.recorded.at_peak
    return Inspection(
        answer=(
            f"device {most.device}: reserved {human(peak.reserved)} at its peak, {human(peak.reserved - peak.active)} of them not in use "
            f"(fragmentation) and {human(peak.active - peak.requested)} lost to rounding; live_peak {human(most.live_peak)}"
        ),
        lines=tuple(lines),
        tables=tuple(tables),
        notes=_notes(snapshot, found, bool(others)),
        digest=snapshot.digest,
        document={
            "settings": snapshot.settings_text,
            "devices": [_document(findings, runs[device.number]) for device, findings in found],
        },
    )


def _lines(snapshot: Snapshot, device: Device, findings: Findings, runs: Sequence[tuple[str, Run]]) -> list[str]:
    lines = []
    if findings.recorded.departs is None:
        against = "the replay reserves what was recorded after every one of them" if findings.entries else "there is no history to replay"
    else:
        against = f"the replay reserves other bytes than recorded from entry {findings.recorded.departs} on"
    lines.append(f"device {findings.device}: {findings.requests:,} requests in {findings.entries:,} entries; {against}")
    if runs:
        base = under(device, snapshot.settings, snapshot.settings, str(snapshot.path)).at_peak.reserved
        lines.append(f"from an empty cache, {snapshot.settings_text or 'the settings recorded'} would reserve {human(base)}")
        lines += [f"from an empty cache, {text} would reserve {human(run.at_peak.reserved)}" for text, run in runs]
    return lines


def _notes(snapshot: Snapshot, found: Sequence[tuple[Device, Findings]], others: bool) -> tuple[str, ...]:
    notes = []
    for _, findings in found:
        if not findings.entries:
            notes.append(
                f"device {findings.device} has no history (torch.cuda.memory._record_memory_history was not on): the figures are those of the end"
            )
        elif findings.live_at_entry:
            after = "; under other settings they are requested first, by address" if others else ""
            notes.append(f"device {findings.device}: {human(findings.live_at_entry)} were live when the history began{after}")
        if findings.recorded.departs is not None:
            notes.append(
                f"device {findings.device}: a fraction of the device that was set, memory that ran out or a setting changed on the way are not in a "
                "snapshot, and would explain why the replay departs; its figures from there on are its own"
            )
    return tuple(notes)


def _document(findings: Findings, runs: Sequence[tuple[str, Run]]) -> dict[str, Any]:
    peak = findings.recorded.at_peak
    return {
        "device": findings.device,
        "requests": findings.requests,
        "entries": findings.entries,
        "live_at_entry": findings.live_at_entry,
        "live_peak": findings.live_peak,
        "live_peak_entry": findings.peak_entry,
        "live_at_peak": [{"place": share.place, "bytes": share.bytes, "blocks": share.blocks} for share in findings.live],
        "reserved_peak": peak.reserved,
        "fragmentation_bytes": peak.reserved - peak.active,
        "rounding_bytes": peak.active - peak.requested,
        "departs_at_entry": findings.recorded.departs,
        "by_address": findings.by_address,
        "other_settings": [{"setting": text, "reserved_peak": run.at_peak.reserved} for text, run in runs],
    }
