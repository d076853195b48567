"""Measuring and comparing two models on a real interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.errors import RuntimeFailed, RuntimeMissing
from peakmem.frontend import Progress, Verification
from peakmem_tflite.arena import allocations, planned, planner_temp
from peakmem_tflite.frontend import RUNTIMES, installed
from peakmem_tflite.graph import CONTROL_FLOW, Graph
from peakmem_tflite.rewrite import with_plan

if TYPE_CHECKING:
    from peakmem_tflite.model import TfliteModel

LIMIT = 300.0
"""Seconds that one piece of work in the interpreter may take."""


def verify(before: TfliteModel, after: TfliteModel, *, progress: Progress | None = None) -> Verification:
    """Run two models on the interpreter of ``before.settings.runtime``.

    TFLite Micro: head, tail and total as it records them, the smallest arena by bisection, every tensor of an
    interpreter that keeps them all apart, and the outputs of one that shares the arena as on a device, bit for bit over
    all steps.

    Raises
    ------
    RuntimeMissing
        With the pip line.
    RuntimeFailed
        When the interpreter cannot run a model.
    """
    runtime = before.settings.runtime
    version = installed(runtime)
    if version is None:
        raise RuntimeMissing(f"{RUNTIMES[runtime][0]} is not installed; try: {RUNTIMES[runtime][1]}")
    say: Progress = progress or (lambda _: None)
    say(f"running both models on {runtime}")
    same_tensors = [s.tensors for s in before.graph.subgraphs] == [s.tensors for s in after.graph.subgraphs]
    with tempfile.TemporaryDirectory(prefix="peakmem-") as folder:
        models = []
        for name, model in (("before", before), ("after", after)):
            path, bare = Path(folder, name), Path(folder, f"{name}-bare")
            path.write_bytes(model.data)
            bare.write_bytes(with_plan(model.graph, None))
            models.append({"path": str(path), "bare": str(bare), **_job(model)})
        answer = _child({"runtime": runtime, "models": models, "steps": before.settings.steps, "limit": LIMIT})
    found = answer["models"]
    for name, model, row in (("the given model", before, found[0]), ("the other model", after, found[1])):
        _raise_failure(runtime, f"{model.path or name}", row)
    failures, compared = _compare(before, after, found, same_tensors)
    identical = not failures
    if runtime != "tflm":
        return Verification(
            runtime=runtime,
            version=version,
            quantity="tensor_span",
            baseline_bytes=found[0]["span"].get("result"),
            optimized_bytes=found[1]["span"].get("result"),
            baseline_predicted=None,
            predicted_bytes=None,
            bitwise_identical=identical,
            compared=compared,
            failures=tuple(failures),
            notes=(
                f"{runtime} ran without its default delegates: under the XNNPACK delegate, which is its default, the order "
                "of the file is not what runs",
                "tensor_span is the distance between the lowest and highest address of a tensor, measured; peakmem has "
                "no model of this runtime's planner, so it predicts none of these bytes",
            ),
        )
    predicted = before.predicted_bytes, after.predicted_bytes
    for model, row, expected in zip(("before", "after"), found, predicted):
        if row["head"] != expected:
            failures.append(f"the measured head {model} is {row['head']} bytes, predicted were {expected}")
    arenas = [_arena(model, row) for model, row in zip((before, after), found)]
    notes = [
        "only the head carries over to a device with the same kernels; tail, planner temp and smallest arena are those "
        "of this 64-bit host",
    ]
    if arenas[1]["binds"] == "planner":
        notes.append(
            "the smallest arena is bound by what the memory planner needs while it plans, not by the head: it does not "
            "shrink with the head"
        )
    return Verification(
        runtime=runtime,
        version=version,
        quantity="arena_head",
        baseline_bytes=found[0]["head"],
        optimized_bytes=found[1]["head"],
        baseline_predicted=predicted[0],
        predicted_bytes=predicted[1],
        bitwise_identical=identical,
        compared=compared,
        failures=tuple(failures),
        notes=tuple(notes),
        details={"arena_before": arenas[0], "arena_after": arenas[1]},
    )


def _job(model: TfliteModel) -> dict[str, Any]:
    """What the child must know of a model."""
    graph = model.graph
    calls = []
    queue = [0]
    for k in queue:  # callers before what they call; the queue grows as it is read
        for op in graph.subgraphs[k].operators:
            if op.op not in CONTROL_FLOW:
                continue
            queue.extend(callee for callee in op.callees if callee not in queue)
            calls.append(
                {
                    "op": op.op,
                    "subgraph": k,
                    "inputs": op.inputs,
                    "outputs": op.outputs,
                    "callees": op.callees,
                    "body_outputs": graph.subgraphs[op.callees[-1]].outputs,
                }
            )
    tensors = _compared_tensors(graph, queue)
    total = sum(graph.subgraphs[k].tensors[t].size + 16 for k, t in tensors)
    return {
        "inputs": len(graph.subgraphs[0].inputs),
        "outputs": len(graph.subgraphs[0].outputs),
        "tensors": tensors,
        "calls": calls,
        "arena": ((64 << 20) + 4 * total + 4 * len(graph.data)) // 16 * 16,
    }


def _compared_tensors(graph: Graph, subgraphs: list[int]) -> list[tuple[int, int]]:
    """Subgraph and index of every tensor with a value of its own: those in the arena's head, and variables."""
    return [
        (k, t)
        for k in sorted(subgraphs)
        for t, here in enumerate(planned(graph.subgraphs[k]))
        if here or graph.subgraphs[k].tensors[t].variable
    ]


def _child(job: dict[str, Any]) -> dict[str, Any]:
    runtime = job["runtime"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "peakmem_tflite.child"],
            input=json.dumps(job).encode(),
            capture_output=True,
            timeout=12 * LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeFailed(f"{runtime} did not end within {12 * LIMIT:.0f} s; nothing was measured") from None
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace")
        reason = next((line for line in reversed(text.splitlines()) if line.strip()), f"exit code {done.returncode}")
        if "numpy" in text.lower() and runtime == "tflite-runtime":
            raise RuntimeMissing(f"tflite-runtime needs numpy below 2; try: {RUNTIMES[runtime][1]}")
        raise RuntimeFailed(f"{runtime} cannot be started ({reason.strip()}); nothing was measured")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _raise_failure(runtime: str, name: str, row: dict[str, Any]) -> None:
    for part in ("allocations", "span", "tensors", "outputs"):
        outcome = row.get(part)
        if outcome is not None and "error" in outcome:
            log = [line.strip() for line in outcome.get("log", "").splitlines() if line.strip()]
            reason = next((line for line in log if "op for" in line or "unsupported" in line.lower()), log[0] if log else "")
            detail = f"{outcome['error']}" + (f"; it printed: {reason}" if reason else "")
            raise RuntimeFailed(f"{name}: {runtime} cannot run it ({detail}); nothing was measured")


def _compare(
    before: TfliteModel, after: TfliteModel, found: list[dict[str, Any]], same_tensors: bool
) -> tuple[list[str], str]:
    a, b = before.graph.subgraphs[0], after.graph.subgraphs[0]
    if [a.tensors[t].shape for t in a.inputs] != [b.tensors[t].shape for t in b.inputs] or [
        a.tensors[t].type for t in a.inputs
    ] != [b.tensors[t].type for t in b.inputs]:
        return ["the models take different inputs"], "nothing"
    steps = before.settings.steps
    failures: list[str] = []
    names = [f"output {i}" for i in range(len(a.outputs))]
    _first_difference(found, "outputs", names, "in the shared arena", failures)
    plural = "s" if steps != 1 else ""
    if not same_tensors:
        return failures, f"all {len(names)} outputs (the models have different tensors) over {steps} step{plural}"
    keys = _job(before)["tensors"]
    if before.settings.runtime != "tflm":
        keys = [(k, t) for k, t in keys if k == 0]
    labels = [f"tensor {t} ({before.graph.subgraphs[k].tensors[t].name!r}) of subgraph {k}" for k, t in keys]
    _first_difference(found, "tensors", labels, "with all tensors kept", failures)
    rows = found[0]["tensors"]["result"]
    seen = sum(any(row[1 + i] for row in rows) for i in range(len(labels)))
    what = f"all {seen} tensors" if seen == len(labels) else f"{seen} of {len(labels)} tensors (the others never ran)"
    return failures, f"{what} and all outputs over {steps} step{plural}"


def _first_difference(
    found: list[dict[str, Any]], part: str, labels: list[str], where: str, failures: list[str]
) -> None:
    for step, (x, y) in enumerate(zip(found[0][part]["result"], found[1][part]["result"])):
        for label, p, q in zip(["the end of the invocation", *labels], x, y):
            if p != q:
                failures.append(f"{label} differs at step {step}, {where}")
                return


def _arena(model: TfliteModel, row: dict[str, Any]) -> dict[str, Any]:
    """Figures of one arena, JSON-ready, in bytes."""
    graph = model.graph
    buffers = allocations(graph, model.settings.target)
    smallest = row["smallest"]["result"]
    operators = sum(len(s.operators) for s in graph.subgraphs)
    # Per tensor a TfLiteEvalTensor of two pointers and a type; per operator a node of seven pointers and an integer.
    tail = row["tail"] - 12 * graph.tensor_count - 28 * operators
    temp = planner_temp(graph, buffers, pointer=4)
    return {
        "host": "64-bit",
        "head": row["head"],
        "tail": row["tail"],
        "total": row["total"],
        "smallest_arena": smallest,
        "planner_temp": planner_temp(graph, buffers),
        "binds": "planner" if smallest > row["total"] + 15 else "head",
        "estimate_32_bit": {
            "estimate": True,
            "head": row["head"],
            "tail": tail,
            "planner_temp": temp,
            "smallest_arena": tail + max(row["head"], temp - 128),
        },
    }
