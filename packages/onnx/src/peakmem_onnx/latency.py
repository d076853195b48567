"""How long a run takes in bands: wall time beside that of the file as it was. Bands are small, so threads have less to share."""

from __future__ import annotations

import os
from dataclasses import replace

from peakmem.frontends import Progress, Verification
from peakmem.model import RuntimeFailed

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.runtime import ask, scratch

RUNS, SECONDS = 20, 3.0
"""Runs of each file, and seconds of all after which there are no more."""

MOST_THREADS = 4


def ratios(first: Artifact, second: Artifact) -> list[tuple[int, float, float, int]]:
    """Threads, wall seconds of the fastest run of each, and how many there were: as many threads as asked for, and as the machine has."""
    with scratch() as folder:
        feeds = write_feeds(first.origin.feeds[:1], folder)
        models = [folder / "first.onnx", folder / "second.onnx"]
        for path, one in zip(models, (first, second)):
            path.write_bytes(one.serialized())
        counts = sorted({first.origin.threads or 1, min(MOST_THREADS, os.cpu_count() or 1)})
        steps = [
            {"do": "time", "level": "none", "models": [str(path) for path in models], "feeds_files": feeds, "external": first.origin.external,
             "limit": first.origin.limit, **second.session, "threads": n, "runs": RUNS, "most": SECONDS}
            for n in counts
        ]  # fmt: skip
        return [(n, *answer["seconds"], answer["runs"]) for n, answer in zip(counts, ask(folder, steps), strict=True)]


def told(first: Artifact, second: Artifact, found: Verification, *, progress: Progress | None = None) -> Verification:
    """What was found, with a note on the time that bands take."""
    if progress is not None:
        progress("timing runs")
    try:
        rows = ratios(first, second)
    except RuntimeFailed as error:
        return replace(found, notes=(*found.notes, f"the time of a run was not measured: {error}"))
    parts = [f"{b / a:.2f}x with {n} thread{'s' if n > 1 else ''} ({1000 * a:.1f} ms -> {1000 * b:.1f} ms)" for n, a, b, _ in rows]
    note = f"latency of a run, split against given: {', '.join(parts)}; fastest of {rows[0][3]} alternating runs on this machine"
    latency = [{"threads": n, "given_seconds": a, "split_seconds": b, "runs": runs} for n, a, b, runs in rows]
    return replace(found, notes=(*found.notes, note), details={**found.details, "latency": latency})
