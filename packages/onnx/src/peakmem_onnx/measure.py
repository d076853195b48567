"""Running models for real: peaks, bits, orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peakmem.frontends import Progress, Verification
from peakmem.model import RuntimeFailed, UsageError
from peakmem.system.sizes import in_bytes

from peakmem_onnx import process, totals
from peakmem_onnx.artifact import Artifact
from peakmem_onnx.deploy import order_difference
from peakmem_onnx.feeds import by_shape, write_feeds
from peakmem_onnx.rules import RANDOM
from peakmem_onnx.runtime import ask, counting_library, require_runtime, scratch, uncounted
from peakmem_onnx.structure import comparable
from peakmem_onnx.values import Values, compare_values
from peakmem_onnx.ways import ARENA, NODES, PORTABLE, RECIPE, REPLAY, way_of

GIVEN, NEW, DIRECT, DEFAULTS = "the given order", "the new order", "the direct session", "ONNX Runtime's defaults"
GIVEN_REUSE, NEW_REUSE = "the given file in a default session", "the new file in a default session"
STATISTICS = " with the arena's statistics"
_LAYOUT = "ONNX Runtime's layout optimizer arranges nodes by memory addresses, so its order differs from run to run"


def verify(model: Artifact, other: Artifact, *, progress: Progress | None = None) -> Verification:
    """Run ``model`` and ``other`` in the model's way, and the untouched source in a session of the same level.

    In the portable way the untouched source in a default session *is* the given order. Node by node nothing but the
    two orders runs, since results of other executors may differ in their bits.

    Compared are the peaks with their predictions, the executed orders with the files', all outputs bit for bit, with the
    direct session where the source is known and with each other, and all other values of the two files that can be given out.
    Where the two are of different levels, ``model`` is taken at that of ``other``; see `peakmem_onnx.structure.comparable`.
    """
    version = require_runtime()
    model, other, relevelled = comparable(model, other)
    if _signature(model) != _signature(other):
        raise UsageError(f"{other.path}: has other inputs than {model.path}; they are not two forms of one model")
    deploy, language = (str(other.origin.recipe.get(key, "")) for key in ("deploy", "language"))
    if model.way in (RECIPE, ARENA) and way_of(deploy, language=language).numbered and not other.origin.source:
        more = " --snippet-language c" if language == "c" else ""
        raise UsageError(f"{other.path}: was made for default sessions; say --deploy {deploy}{more}")
    way, direct = model.way, model.runs_source
    library = counting_library()
    runs: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    notes = [relevelled] if relevelled else []
    with scratch() as folder:
        steps = _steps(model, other, folder, statistics=library is None)
        if progress is not None:
            progress("running " + ", ".join(steps))
        together = [name for name, step in steps.items() if not step.keys() & {"chunk", "replay"}]
        runs.update(zip(together, ask(folder, [steps[name] for name in together], preload=library), strict=True))
        for name in steps.keys() - set(together):  # a process has one planned arena, and one allocator
            runs[name] = ask(folder, [steps[name]], preload=library)[0]
        runs = {name: runs[name] for name in steps}
        for name, one in ((GIVEN, model), (NEW, other)):
            difference = "" if name == GIVEN and direct else order_difference(one.graph, runs[name]["order"], one.intended)
            if difference:
                advice = "; --executor nodes runs any order" if way is RECIPE else ""
                failures.append(f"{name}: {difference}{advice}")
        exact = not failures
        first = DIRECT if DIRECT in runs else GIVEN
        if way is NODES:
            notes.append(
                "every node ran in a session of its own: the bytes are those of this executor, where no storage is shared "
                "and arena, patterns and reuse have no part, and outputs were compared between two such runs only"
            )
        elif first == GIVEN and not direct:
            notes.append("the model was optimized already, so there was no direct session to compare with")
        count, differences = _compare(folder, runs, first)
        chance = sorted({node.op for node in model.graph.nodes if not node.domain and node.op in RANDOM})
    found: Values | None = None
    if chance:
        notes.append(f"outputs depend on random numbers ({', '.join(chance)}) and were not compared")
    else:
        failures.extend(differences)
        found = _values(model, other, failures, notes, progress)
    peaks = {
        name: run.get("taken", max(again for _, again in run["peaks"])) for name, run in runs.items() if run["counted"]
    }
    once = max((first_run - again for first_run, again in runs[GIVEN]["peaks"]), default=0) if peaks and not (way.planned or way is REPLAY) else 0
    if once > 0:
        notes.append(f"the first run of a process takes {once} bytes more, scratch that ONNX Runtime's threads then keep")
    details: dict[str, Any] = {"executed_order": "exact" if exact else "differs"}
    if not peaks and (way.planned or way in (NODES, REPLAY)):
        notes.append(f"allocations were not counted ({uncounted()})")
    elif not peaks:
        told = {name: runs[name + STATISTICS]["arena_peak"] for name in (GIVEN, NEW)}
        notes.append(f"allocations were not counted ({uncounted()})" + _arena(told))
        details["arena_statistics"] = told
    for name, predicted in ((GIVEN, model.predicted_bytes), (NEW, other.predicted_bytes)):
        if name in peaks and peaks[name] != predicted and name == GIVEN and direct:
            notes.append(
                f"today's session was predicted to take {predicted} bytes and took {peaks[name]}: "
                + ("it holds the unread outputs that were blanked" if model.origin.blanked else _LAYOUT)
            )
        elif name in peaks and peaks[name] < predicted:
            bodies = any(node.bodies for node in model.graph.nodes)
            why = ": which branch of an If runs, and how often a Loop does, depends on the inputs" if bodies else ""
            notes.append(f"{name} took {peaks[name]} bytes; the {predicted} predicted are an upper bound, not exact{why}")
        elif name in peaks and peaks[name] != predicted and model.facts.unknown:
            notes.append(f"{name} took {peaks[name]} bytes; the {predicted} predicted are not exact, for bodies are not charged")
        elif name in peaks and peaks[name] != predicted:
            sentence = f"{name} was predicted to take {predicted} bytes and took {peaks[name]}"
            if model.origin.inexact:
                notes.append(f"{sentence}; the prediction is not exact")
            else:
                failures.append(f"{sentence}; --accept-inexact takes the file all the same")
    if peaks.get(DIRECT, peaks.get(GIVEN)) != peaks.get(GIVEN) and not model.origin.blanked:
        notes.append(
            f"another direct session took {peaks[DIRECT]} bytes: {_LAYOUT}"
        )
    for key, name in (("direct_session_bytes", DIRECT), ("given_default_session_bytes", GIVEN_REUSE),
                      ("new_default_session_bytes", NEW_REUSE)):
        if name in peaks:
            details[key] = peaks[name]
    if DEFAULTS in peaks:
        details["onnxruntime_defaults_bytes"] = sum(runs[DEFAULTS]["held"][:2])
        notes.append(
            f"the figures above need the session settings that --snippet prints; with ONNX Runtime's "
            f"defaults, a session of the file given holds {in_bytes(details['onnxruntime_defaults_bytes'])}"
        )
    if GIVEN_REUSE in peaks and NEW_REUSE in peaks and peaks[NEW_REUSE] > peaks[GIVEN_REUSE]:
        notes.append(
            f"without them the new file is the worse one: {in_bytes(peaks[GIVEN_REUSE])} -> {in_bytes(peaks[NEW_REUSE])} in a "
            "default session without arena; --deploy portable writes files for such sessions"
        )
    if model.facts.others and way is not NODES:
        details["shapes"] = shapes = _shapes(other, runs[NEW])
        notes.extend(_shape_sentences(shapes))
        if any(row["measured_bytes"] not in (None, row["predicted_bytes"]) for row in shapes) and not (model.origin.inexact or model.facts.unknown):
            failures.append("a shape took other bytes than predicted; --accept-inexact takes the file all the same")
    if way is REPLAY:
        others = [counts["misses"] for counts in runs[NEW]["replayed"]]
        if any(others):
            notes.append(
                f"{sum(others)} requests had no place in the plan and came from the C library (runs with sets "
                f"{', '.join(str(k) for k, many in enumerate(others) if many)} of inputs)"
            )
    if model.origin.all_levels:
        found_levels, told_levels = totals.totals(model, progress=progress)
        details["levels"] = totals.document(found_levels)
        notes.extend([*told_levels, *totals.sentences(found_levels)])
    rows = _processes(model, other, notes, progress)
    details["process"] = process.document(rows)
    against = "the direct session" if first == DIRECT or direct else first
    return Verification(
        runtime="onnxruntime",
        version=version,
        quantity=model.way.quantity,
        baseline_bytes=peaks.get(GIVEN),
        optimized_bytes=peaks.get(NEW),
        baseline_predicted=model.predicted_bytes,
        predicted_bytes=other.predicted_bytes,
        bitwise_identical=None if chance else not (differences or (found is not None and found.difference)),
        compared="" if chance else _compared(count, found, len(model.origin.feeds), against),
        varied=None if found is None else found.varied,
        headline=process.headline(rows, new=True),
        failures=tuple(failures),
        notes=tuple(notes),
        details=details,
    )


def _shapes(model: Artifact, run: dict[str, Any]) -> list[dict[str, Any]]:
    """What runs of each shape take: predicted, and measured where they can be told apart (an arena is for all of them)."""
    rows = []
    sets = model.origin.feeds
    for group, predicted in zip(by_shape(sets), model.predicted_by_shape, strict=True):
        shape = {name: list(array.shape) for name, array in sets[group[0]].items()}
        measured = None
        if run["counted"] and model.way is REPLAY:
            measured = run["replayed"][group[0]]["touched"] + run["peaks"][group[0]][1]
        elif run["counted"] and not model.way.planned:
            measured = max(run["peaks"][k][1] for k in group)
        rows.append({"inputs": shape, "predicted_bytes": predicted, "measured_bytes": measured})
    return rows


def _shape_sentences(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        told = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in row["inputs"].items())
        measured = row["measured_bytes"]
        found = "" if measured is None else ", as predicted" if measured == row["predicted_bytes"] else f" predicted, {in_bytes(measured)} measured"
        lines.append(f"runs with {told}: {in_bytes(row['predicted_bytes'])}{found}")
    return lines


def _count(number: int, what: str) -> str:
    return f"the one {what}" if number == 1 else f"all {number} {what}s"


def _values(
    model: Artifact, other: Artifact, failures: list[str], notes: list[str], progress: Progress | None
) -> Values | None:
    if progress is not None:
        progress("comparing all values of the two files")
    try:
        found = compare_values(model, other, (GIVEN, NEW))
    except RuntimeFailed as error:
        notes.append(f"only outputs were compared; with its other values as outputs ONNX Runtime does not run the model: {error}")
        return None
    notes.extend(found.notes)
    if found.difference:
        failures.append(found.difference)
    return found


def _processes(model: Artifact, other: Artifact, notes: list[str], progress: Progress | None) -> list[process.Taken]:
    try:
        rows = process.measure_process(model, other, progress=progress)
    except RuntimeFailed as error:
        notes.append(f"the memory of the process was not measured: {error}")
        return []
    notes.extend(process.sentences(rows))
    if sentence := process.advice(rows):
        way_out = "" if model.way.planned or any(row.name == process.PLANNED for row in rows) else "; --deploy arena plans its arena"
        notes.append(sentence + way_out)
    elif other.regions:
        notes.append(
            f"the process is smaller in a planned arena that begins with {other.regions[-1]:,} bytes than with the settings alone: --snippet makes it, "
            f"and so does peakmem_onnx.session(..., arena={other.regions[-1]})"
        )
    return rows


def _compared(outputs: int, found: Values | None, sets: int, against: str) -> str:
    if found is None or not found.whole:
        ran = sets if found is None else found.sets
        return f"{_count(outputs, 'output')} over {_plural(ran, 'input set')}, against {against}"
    values = f"all {found.compared}" if found.compared == found.whole else f"{found.compared} of {found.whole}"
    also = "" if against == GIVEN else f"; outputs against {against} as well"
    what = f"{values} values and {_plural(found.outputs, 'output')} over {_plural(found.sets, 'input set')}"
    return f"{what}, against {GIVEN}{also}"


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _signature(model: Artifact) -> list[list[tuple[str, Any, str]]]:
    return [[(name, array.shape, str(array.dtype)) for name, array in feeds.items()] for feeds in model.origin.feeds[:1]]


def _arena(told: dict[str, int | None]) -> str:
    if None in told.values():
        return "; this release of ONNX Runtime tells no arena statistics either"
    return (
        "; ONNX Runtime's own arena statistics, weights and padding included, say "
        f"{told[GIVEN]} bytes for the given order and {told[NEW]} for the new one"
    )


def _steps(model: Artifact, other: Artifact, folder: Path, *, statistics: bool) -> dict[str, dict[str, Any]]:
    """What the child is to run, by name."""
    feeds = write_feeds(model.origin.feeds, folder)
    files = {GIVEN: model.serialized(), NEW: other.serialized()}
    if model.origin.source:
        files[DIRECT] = model.origin.source
    paths = {}
    for index, (name, data) in enumerate(files.items()):
        paths[name] = folder / f"run{index}.onnx"
        paths[name].write_bytes(data)
    common = {"do": "measure", "feeds_files": feeds, "threads": model.origin.threads, "external": model.origin.external,
              "level": "none"}
    types = {"types": {**model.element_types, **other.element_types}} if model.way is NODES else {}
    steps: dict[str, dict[str, Any]] = {}
    for name, one in ((GIVEN, model), (NEW, other)):
        steps[name] = {**common, **one.session, **types, "model": str(paths[name]), "outputs": str(folder / f"{name}.npz"),
                       "profile": str(folder / "profile")}
    if model.runs_source:
        steps[GIVEN] |= {"model": str(paths[DIRECT]), "level": model.origin.level}
    if model.way is RECIPE:
        for name, source in ((GIVEN_REUSE, GIVEN), (NEW_REUSE, NEW)):
            steps[name] = {**common, **PORTABLE.session, "model": str(paths[source])}
    if statistics and not (model.way.planned or model.way in (NODES, REPLAY)):
        for name in (GIVEN, NEW):
            steps[name + STATISTICS] = {**steps[name], "arena": True, "profile": str(folder / "arena")}
            del steps[name + STATISTICS]["outputs"]
    if DIRECT in paths and model.way is not NODES:
        direct = {**common, "model": str(paths[DIRECT]), "level": model.origin.level}
        if model.way is not PORTABLE:
            steps[DIRECT] = {**direct, "outputs": str(folder / f"{DIRECT}.npz")}
        steps[DEFAULTS] = {**direct, "reuse": True, "pattern": True, "arena": True}
    return steps


def _compare(folder: Path, runs: dict[str, dict[str, Any]], first: str) -> tuple[int, list[str]]:
    """Number of outputs compared, and sentences about those that differ."""
    import numpy as np

    differences = []
    keys = runs[first]["keys"]
    with np.load(folder / f"{first}.npz", allow_pickle=False) as reference:
        for name, run in runs.items():
            if name == first or "keys" not in run:
                continue
            if run["keys"] != keys:
                raise RuntimeFailed(f"{name} has other outputs than {first}")
            with np.load(folder / f"{name}.npz", allow_pickle=False) as result:
                for i, key in enumerate(keys):
                    a, b = reference[str(i)], result[str(i)]
                    if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                        differences.append(f"output {key.split('/', 1)[1]!r} of {name} differs from {first}")
                        break
    return len({key.split("/", 1)[1] for key in keys}), differences
