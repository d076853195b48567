"""Running models for real: peaks, bits, orders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.errors import RuntimeFailed, UsageError
from peakmem.frontend import Progress, Verification
from peakmem_onnx.deploy import order_difference
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.runtime import ask, counting_library, require_runtime, scratch

if TYPE_CHECKING:
    from peakmem_onnx.model import OnnxModel


def verify(model: OnnxModel, other: OnnxModel, *, progress: Progress | None = None) -> Verification:
    """Run ``model`` and ``other`` under the recipe, and the untouched source in a session of the same level.

    Compared are the peaks with their predictions, the executed orders with the files', and all outputs bit for bit:
    with the direct session where the source is known, and with each other.
    """
    version = require_runtime()
    if [set(f) for f in model.origin.feeds] != [set(f) for f in other.origin.feeds]:
        raise UsageError(f"{other.path}: has other inputs than {model.path}; they are not two forms of one model")
    say: Progress = progress or (lambda _: None)
    library = counting_library()
    failures: list[str] = []
    notes: list[str] = []
    runs: dict[str, dict[str, Any]] = {}
    with scratch() as folder:
        feeds = write_feeds(model.origin.feeds, folder)

        def run(name: str, data: bytes, **settings: Any) -> dict[str, Any]:
            say(f"running {name}")
            file = folder / "run.onnx"
            file.write_bytes(data)
            step = {"do": "measure", "model": str(file), "feeds_files": feeds, "threads": model.origin.threads,
                    "external": model.origin.external, "level": "none", **settings}
            return ask(folder, [step], preload=library)[0]

        for name, one in (("the given order", model), ("the new order", other)):
            runs[name] = run(name, one.serialized(), outputs=str(folder / f"{name}.npz"), profile=str(folder / "profile"))
            difference = order_difference(one.graph, runs[name]["order"])
            if difference:
                failures.append(f"{name}: {difference}")
        if model.origin.source:
            name = "the direct session"
            runs[name] = run(name, model.origin.source, level=model.origin.level, priority=False,
                             outputs=str(folder / f"{name}.npz"))
            runs["defaults"] = run("ONNX Runtime's defaults", model.origin.source, level=model.origin.level,
                                   priority=False, reuse=True, pattern=True, arena=True, runs=2)
        else:
            notes.append("the model was optimized already, so there was no direct session to compare with")
        first = "the direct session" if model.origin.source else "the given order"
        names, same, differences = _compare(folder, runs, first)
        failures.extend(differences)
    baseline = _peak(runs["the given order"], notes)
    optimized = _peak(runs["the new order"], [])
    details: dict[str, Any] = {}
    if library is not None and model.origin.source:
        details["direct_session_bytes"] = max(runs["the direct session"]["peaks"])
        held = runs["defaults"]["held"]
        details["onnxruntime_defaults_bytes"] = sum(held[:2])
    details["executed_order"] = "exact" if not any("ran" in f or "execution" in f for f in failures) else "differs"
    if baseline is not None and baseline != model.predicted_bytes:
        failures.append(f"the given order was predicted to take {model.predicted_bytes} bytes and took {baseline}")
    if optimized is not None and optimized != other.predicted_bytes:
        failures.append(f"the new order was predicted to take {other.predicted_bytes} bytes and took {optimized}")
    return Verification(
        runtime="onnxruntime",
        version=version,
        quantity=model.quantity,
        baseline_bytes=baseline,
        optimized_bytes=optimized,
        baseline_predicted=model.predicted_bytes,
        predicted_bytes=other.predicted_bytes,
        bitwise_identical=same,
        compared=f"all {names} outputs over {len(model.origin.feeds)} input sets, with {first}",
        failures=tuple(failures),
        notes=tuple(notes),
        details=details,
    )


def _peak(run: dict[str, Any], notes: list[str]) -> int | None:
    if run["counted"]:
        return int(max(run["peaks"]))
    notes.append("allocations were not counted: the counting library needs Linux and a C compiler (cc)")
    return None


def _compare(folder: Path, runs: dict[str, dict[str, Any]], first: str) -> tuple[int, bool, list[str]]:
    import numpy as np

    load: Callable[[str], Any] = lambda name: np.load(folder / f"{name}.npz", allow_pickle=False)  # noqa: E731
    differences = []
    with load(first) as reference:
        keys = runs[first]["keys"]
        for name, run in runs.items():
            if name == first or "keys" not in run:
                continue
            if run["keys"] != keys:
                raise RuntimeFailed(f"{name} has other outputs than {first}")
            with load(name) as result:
                for i, key in enumerate(keys):
                    a, b = reference[str(i)], result[str(i)]
                    if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                        differences.append(f"output {key.split('/', 1)[1]!r} of {name} differs from {first}")
                        break
    return len({key.split("/", 1)[1] for key in keys}), not differences, differences
