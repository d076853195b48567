"""Measuring and comparing two models on real interpreters."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peakmem.frontends import Progress, Verification
from peakmem.model import RuntimeFailed, RuntimeMissing
from peakmem.system.process import run_child
from peakmem.system.sizes import in_bytes

from peakmem_tflite.arena import allocations, head, planned, planner_temp, untouched
from peakmem_tflite.enlarge import same_values
from peakmem_tflite.graph import CONTROL_FLOW, Graph
from peakmem_tflite.rewrite import with_plan
from peakmem_tflite.settings import RUNTIMES, Settings, installed
from peakmem_tflite.tail import HOST, tail

Tensor = tuple[int, int]
"""Subgraph and index."""

_DELEGATES = "under the default XNNPACK delegate of LiteRT and tflite-runtime the file's order is not what runs"

LIMIT = 300.0
"""Seconds that one piece of work in an interpreter may take, where nobody set a limit."""

WHOLE = 12 * LIMIT
"""Seconds for all of them, likewise."""

GRACE = 30.0
"""Seconds that the measuring process may take beside the work: to start, and to end what did not end."""


@dataclass(frozen=True)
class Subject:
    """A file to be run: what messages call it, and what it holds."""

    name: str
    graph: Graph


@dataclass
class Run:
    """Both models on one interpreter.

    Attributes
    ----------
    runtime, version : str
    found : list of dict
        What the child reports of each model; see `peakmem_tflite.child`.
    compared : str
        What was compared.
    failures : list of str
        What differs.
    varied : bool or None
        Whether a value other than an input had different bits at different steps; None where it could not have.
    notes : list of str
        What there was no time for.
    """

    runtime: str
    version: str
    found: list[dict[str, Any]]
    compared: str = ""
    failures: list[str] = field(default_factory=list)
    varied: bool | None = None
    notes: list[str] = field(default_factory=list)


def verify(
    before: Subject, after: Subject, settings: Settings, *, seconds: float | None = None, progress: Progress | None = None
) -> Verification:
    """Run two files on the interpreter of ``settings.runtime`` and compare; what is predicted is for its portable kernels.

    TFLite Micro: head, tail and total as it records them, the smallest arena by bisection, every tensor of an
    interpreter that keeps them all apart, and the outputs of one that shares the arena as on a device, bit for bit over
    all steps. LiteRT and tflite-runtime, where chosen or, beside TFLite Micro, where installed: the bits.

    All this takes about ``seconds`` at most: then fewer steps are run, which ``compared`` says. Where an invocation does not end,
    what is known of the heads stays, and no bits are compared. An interpreter that measures no heads has failed then.

    Raises
    ------
    RuntimeMissing
        With the pip line.
    RuntimeFailed
        When the interpreter cannot run a model.
    """
    runtime = settings.runtime
    say: Progress = progress or (lambda _: None)
    say(f"running both models on {runtime}")
    end = time.monotonic() + (WHOLE if seconds is None else seconds)
    run = _run(runtime, before, after, settings.steps, seconds)
    predicted = [head(subject.graph, "reference", None, subject.graph.plan) for subject in (before, after)]
    if runtime != "tflm":
        return Verification(
            runtime=runtime,
            version=run.version,
            quantity="arena_head",
            baseline_bytes=None,
            optimized_bytes=None,
            baseline_predicted=predicted[0],
            predicted_bytes=predicted[1],
            bitwise_identical=not run.failures,
            compared=run.compared,
            varied=run.varied,
            failures=tuple(run.failures),
            notes=(f"arena_head is not measured on {runtime}", _DELEGATES, *_span_note(run), *run.notes),
            details={"also": {runtime: _bits(run)}},
        )
    failures = list(run.failures)
    for name, row, expected in zip(("before", "after"), run.found, predicted):
        if row["head"] != expected:
            failures.append(f"the measured head {name} is {in_bytes(row['head'])}, predicted were {in_bytes(expected)}")
    notes = ["only the head carries over to a device; tail and smallest arena are those of this 64-bit host", *run.notes]
    arenas = [_arena(subject.graph, row) for subject, row in zip((before, after), run.found)]
    if any("late" in row.get("smallest", {}) for row in run.found):
        notes.append("there was no time to look for the smallest arena")
    if arenas[1]["binds"] == "planner":
        smallest = in_bytes(arenas[1]["smallest_arena"])
        notes.append(f"the smallest arena, {smallest}, is bound by the planner's own work space, not by the head")
    also: dict[str, Any] = {}
    compared = all("result" in row["outputs"] for row in run.found)
    identical = not run.failures if compared else None
    for other in ("litert", "tflite-runtime"):
        if installed(other) is None:
            continue
        left = None if seconds is None else end - time.monotonic()
        if not compared or (left is not None and left < 1):
            notes.append(f"not compared on {other}: {'no time was left' if compared else 'a run had not ended before'}")
            continue
        say(f"comparing bits on {other}")
        try:
            second = _run(other, before, after, settings.steps, left)
        except (RuntimeFailed, RuntimeMissing) as error:
            notes.append(f"not compared on {other}: {error}")
            continue
        also[other] = _bits(second)
        failures += [f"on {other}: {failure}" for failure in second.failures]
        identical = bool(identical) and not second.failures
        same = "NOT identical" if second.failures else "bitwise identical"
        notes.append(f"on {other} {second.version}, without delegates, {second.compared}: {same}")
        notes.extend(_span_note(second))
    if also:
        notes.append(_DELEGATES)
    return Verification(
        runtime=runtime,
        version=run.version,
        quantity="arena_head",
        baseline_bytes=run.found[0]["head"],
        optimized_bytes=run.found[1]["head"],
        baseline_predicted=predicted[0],
        predicted_bytes=predicted[1],
        bitwise_identical=identical,
        compared=run.compared,
        varied=run.varied,
        failures=tuple(failures),
        notes=tuple(notes),
        details={"arena_before": arenas[0], "arena_after": arenas[1], **({"also": also} if also else {})},
    )


def heads(graphs: Sequence[Graph]) -> list[int]:
    """Heads of several files as TFLite Micro records them, in bytes; nothing is compared."""
    run = _start("tflm", [Subject(f"model {i}", graph) for i, graph in enumerate(graphs)], 0, None)
    return [int(row["head"]) for row in run.found]


def _bits(run: Run) -> dict[str, Any]:
    spans = [row["span"].get("result") for row in run.found]
    return {
        "version": run.version,
        "bitwise_identical": not run.failures,
        "compared": run.compared,
        "tensor_span_before": spans[0],
        "tensor_span_after": spans[1],
    }


def _span_note(run: Run) -> list[str]:
    spans = [row["span"].get("result") for row in run.found]
    if None in spans:
        return []
    return [f"tensors span {in_bytes(spans[0])} -> {in_bytes(spans[1])} in the arena of {run.runtime}, which is not modelled"]


def _run(runtime: str, before: Subject, after: Subject, steps: int, seconds: float | None) -> Run:
    pairs = _pairs(before.graph, after.graph)
    if runtime != "tflm":
        pairs = [(p, q) for p, q in pairs if p[0] == 0]
    run = _start(runtime, (before, after), steps, seconds, [[p for p, _ in pairs], [q for _, q in pairs]])
    late = [(name, row[name]["error"]) for row in run.found for name in ("outputs", "tensors") if "late" in row.get(name, {})]
    if all("result" in row["outputs"] for row in run.found):
        if late:
            run.notes.append(f"tensors in between were not compared: {late[0][1]}")
            pairs = []
        _compare(before.graph, after.graph, pairs, run, steps)
    else:
        run.notes.append(f"no bits were compared: {late[0][1]}")
    return run


def _start(
    runtime: str,
    subjects: Sequence[Subject],
    steps: int,
    seconds: float | None,
    tensors: Sequence[Sequence[Tensor]] | None = None,
) -> Run:
    version = installed(runtime)
    if version is None:
        raise RuntimeMissing(f"{RUNTIMES[runtime][0]} is not installed; try: {RUNTIMES[runtime][1]}")
    try:
        with tempfile.TemporaryDirectory(prefix="peakmem-") as folder:
            rows = []
            for i, subject in enumerate(subjects):
                path, bare = Path(folder, f"{i}.tflite"), Path(folder, f"{i}-bare.tflite")
                path.write_bytes(subject.graph.data)
                bare.write_bytes(with_plan(subject.graph, None))
                rows.append({"path": str(path), "bare": str(bare), **_job(subject.graph, tensors[i] if tensors else ())})
            seconds = WHOLE if seconds is None else seconds
            answer = _child({"runtime": runtime, "models": rows, "steps": steps, "limit": LIMIT, "seconds": seconds})
    except OSError as error:
        reason = error.strerror or "an error of the system"
        raise RuntimeFailed(f"{runtime} cannot be started ({reason}); nothing was measured") from None
    run = Run(runtime, version, answer["models"])
    for subject, row in zip(subjects, run.found):
        _raise_failure(runtime, subject.name, row)
    return run


def _job(graph: Graph, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """What the child must know of a file; ``tensors`` are those it is to read."""
    calls = [
        {
            "op": op.op,
            "subgraph": k,
            "inputs": op.inputs,
            "outputs": op.outputs,
            "callees": op.callees,
            "body_outputs": graph.subgraphs[op.callees[-1]].outputs,
        }
        for k in _reached(graph)
        for op in graph.subgraphs[k].operators
        if op.op in CONTROL_FLOW
    ]
    total = sum(t.size + 16 for s in graph.subgraphs for t in s.tensors if not t.constant)
    return {
        "inputs": len(graph.subgraphs[0].inputs),
        "outputs": len(graph.subgraphs[0].outputs),
        "tensors": tensors,
        # Outputs of control flow and variables lie outside LiteRT's arena.
        "span": [] if any(c["op"] != "CALL_ONCE" for c in calls) else _in_arena(graph),
        "calls": calls,
        "planner_temp": planner_temp(graph, allocations(graph, "reference", None, graph.plan)),
        "after_planning": _after_planning(graph),
        "arena": ((64 << 20) + 4 * total + 4 * len(graph.data)) // 16 * 16,
    }


def _after_planning(graph: Graph) -> tuple[int, ...]:
    """Bytes that the interpreter keeps once it has planned, on this host: guesses, the likeliest first.

    What the structures tell, and two on either side of all that was seen.
    """
    kept = tail(graph, HOST, plan=graph.plan)
    return (kept.size - kept.planning, 256, 0)


def _reached(graph: Graph) -> list[int]:
    """Subgraphs that may run, callers before what they call."""
    queue = [0]
    for k in queue:  # it grows as it is read
        for op in graph.subgraphs[k].operators:
            if op.op in CONTROL_FLOW:
                queue.extend(callee for callee in op.callees if callee not in queue)
    return queue


def _pairs(before: Graph, after: Graph) -> list[tuple[Tensor, Tensor]]:
    """Tensors of two files that must hold the same bits.

    They are those with a value of their own (in the arena's head, or variables), each with itself, and then, where the
    second file computes values again, each copy with its original. None where tensors of the files do not correspond.
    """
    if len(before.subgraphs) != len(after.subgraphs):
        return []
    idle = {(k, t) for k, t, _ in untouched(before)}  # they hold what happened to lie there, if they are there
    a, b = before.subgraphs[0].tensors, after.subgraphs[0].tensors
    if len(b) < len(a) or any(len(x.tensors) != len(y.tensors) for x, y in zip(before.subgraphs[1:], after.subgraphs[1:])):
        return []
    for k, (x, y) in enumerate(zip(before.subgraphs, after.subgraphs)):
        if any(p != q for t, (p, q) in enumerate(zip(x.tensors, y.tensors)) if (k, t) not in idle):
            return []
    pairs = [
        ((k, t), (k, t))
        for k in sorted(_reached(before))
        for t, here in enumerate(planned(before.subgraphs[k]))
        if (here or before.subgraphs[k].tensors[t].variable) and (k, t) not in idle
    ]
    if len(b) > len(a):
        origin = same_values(after)
        if any(origin[t] >= len(a) for t in range(len(a), len(b))):
            return []
        here = planned(after.subgraphs[0])
        pairs += [((0, origin[t]), (0, t)) for t in range(len(a), len(b)) if here[t]]
    return pairs


def _in_arena(graph: Graph) -> list[int]:
    """Tensors of the main subgraph in the arena's head that something touches."""
    main = graph.subgraphs[0]
    touched = {t for op in main.operators for t in (*op.inputs, *op.outputs)} | set(main.inputs) | set(main.outputs)
    return [t for t, here in enumerate(planned(main)) if here and t in touched]


def _child(job: dict[str, Any]) -> dict[str, Any]:
    runtime = job["runtime"]
    command = [sys.executable, "-m", "peakmem_tflite.child"]
    done = run_child(command, what=runtime, given=json.dumps(job).encode(), limit=job["seconds"] + GRACE)
    if done.code:
        if runtime == "tflite-runtime" and b"numpy" in done.err.lower():
            raise RuntimeMissing(f"tflite-runtime needs numpy below 2; try: {RUNTIMES[runtime][1]}")
        raise RuntimeFailed(f"{runtime} cannot be started ({done.last_words}); nothing was measured")
    answer: dict[str, Any] = json.loads(done.out)
    return answer


def _raise_failure(runtime: str, name: str, row: dict[str, Any]) -> None:
    for part in ("outputs", "span", "smallest", "tensors"):
        outcome = row.get(part)
        if outcome is None or "error" not in outcome or (runtime == "tflm" and "late" in outcome and "head" in row):
            continue
        if runtime == "tflite-runtime" and "NumPy 1.x" in outcome.get("log", ""):
            raise RuntimeMissing(f"tflite-runtime needs numpy below 2; try: {RUNTIMES[runtime][1]}")
        log = [line.strip() for line in outcome.get("log", "").splitlines() if line.strip()]
        reason = next((line for line in log if "op for" in line or "unsupported" in line.lower()), log[0] if log else "")
        detail = " ".join(outcome["error"].split()) + (f"; it printed: {reason}" if reason else "")
        if len(detail) > 240:
            detail = detail[:240] + "..."
        raise RuntimeFailed(f"{name}: {runtime} cannot run it ({detail}); nothing was measured")


def _compare(before: Graph, after: Graph, pairs: Sequence[tuple[Tensor, Tensor]], run: Run, steps: int) -> None:
    a, b = before.subgraphs[0], after.subgraphs[0]
    signatures = [[(s.tensors[t].shape, s.tensors[t].type) for t in s.inputs] for s in (a, b)]
    if signatures[0] != signatures[1] or len(a.outputs) != len(b.outputs):
        run.failures.append("the models take different inputs or give different outputs")
        run.compared = "nothing"
        return
    done = min(len(row["outputs"]["result"]) for row in run.found)
    over = f"over {done} step{'s' if done != 1 else ''}"
    if done < steps:
        over += f" (of {steps}: there was no time for more)"
    names = [f"output {i}" for i in range(len(a.outputs))]
    _first_difference(run, "outputs", names, "in the shared arena")
    if done > 1 and a.inputs:
        inputs = {(0, t) for t in a.inputs}
        own = [i for i, t in enumerate(a.outputs) if t not in a.inputs]
        run.varied = _varied(run, "outputs", own) or _varied(run, "tensors", [i for i, (p, _) in enumerate(pairs) if p not in inputs])
    if not pairs:
        run.compared = f"all {len(names)} outputs {over}" if run.notes else f"all {len(names)} outputs (the models have different tensors) {over}"
        return
    labels = [
        f"tensor {t} ({before.subgraphs[k].tensors[t].name!r}) of subgraph {k}"
        + (f", as tensor {u} computes it again," if u != t else "")
        for (k, t), (_, u) in pairs
    ]
    _first_difference(run, "tensors", labels, "with all tensors kept")
    rows = [row["tensors"]["result"] for row in run.found]
    read = [all(any(row[1 + i] for row in model) for model in rows) for i in range(len(pairs))]
    own = [here for here, (p, q) in zip(read, pairs) if p == q]
    copies = [here for here, (p, q) in zip(read, pairs) if p != q]
    why = "never ran" if run.runtime == "tflm" else "are overwritten in place"
    what = f"all {len(own)} tensors" if all(own) else f"{sum(own)} of {len(own)} tensors (the others {why})"
    if copies:
        what += f", {sum(copies)} recomputed"
    run.compared = f"{what} and all outputs {over}"


def _varied(run: Run, part: str, chosen: Sequence[int]) -> bool:
    """Whether one of the values chosen had different bits at two steps, in either file."""
    columns = [[step[1 + i] for step in row[part]["result"]] for row in run.found for i in chosen]
    return any(len({bits for bits in column if bits}) > 1 for column in columns)


def _first_difference(run: Run, part: str, labels: list[str], where: str) -> None:
    results = [row[part]["result"] for row in run.found]
    for step, (x, y) in enumerate(zip(*results)):
        for label, p, q in zip(["the end of the invocation", *labels], x, y):
            if p != q and p is not None and q is not None:
                run.failures.append(f"{label} differs at step {step}, {where}")
                return


def _arena(graph: Graph, row: dict[str, Any]) -> dict[str, Any]:
    """Figures of one arena, JSON-ready, in bytes."""
    buffers = allocations(graph, "reference", None, graph.plan)
    smallest = row.get("smallest", {}).get("result")
    return {
        "host": "64-bit",
        "head": row["head"],
        "tail": row["tail"],
        "total": row["total"],
        "smallest_arena": smallest,
        "tail_predicted": tail(graph, HOST, plan=graph.plan).size,
        "planner_temp": planner_temp(graph, buffers),
        "binds": None if smallest is None else "planner" if smallest > row["total"] + 15 else "head",
    }
