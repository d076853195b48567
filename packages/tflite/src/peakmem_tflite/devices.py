"""Heads on devices: what kernels other than the measured ones make of a file, and what logs say to that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from peakmem.frontends import Verification
from peakmem.system.sizes import in_bytes

from peakmem_tflite.arena import allocations, head, simulate
from peakmem_tflite.build import Mapped
from peakmem_tflite.devicelog import DeviceLog
from peakmem_tflite.graph import Graph
from peakmem_tflite.planning import Outcome, by_subgraph
from peakmem_tflite.settings import Settings
from peakmem_tflite.targets import ABOUT, TABLES, Listed, Target, name_of, requests

Near = Literal["best", "given", "own"]
Planner = Callable[[Target, Near], Outcome]


def table(before: Graph, after: Graph) -> list[dict[str, object]]:
    """Heads of two files under every known table, JSON-ready, in bytes."""
    return [{"target": t, "before": head(before, t, None, before.plan), "after": head(after, t, None, after.plan)} for t in TABLES]


def warning(before: Graph, after: Graph) -> tuple[str, ...]:
    """A sentence about the known kernels that need most more for the second file; none where no kernels do."""
    sizes = {t: (head(before, t, None, before.plan), head(after, t, None, after.plan)) for t in TABLES}
    target = max(sizes, key=lambda t: sizes[t][1] - sizes[t][0])
    was, now = sizes[target]
    if now <= was:
        return ()
    return (f"with {target} the new file is larger: {in_bytes(was)} -> {in_bytes(now)}; name the kernels of the board with --target",)


def kernel_notes(graph: Graph, kernels: Target, settings: Settings, predicted: int) -> list[str]:
    """Whose scratch is charged, and how that is known."""
    if kernels == "reference" and not settings.logs:
        return []
    what = ABOUT[kernels] if isinstance(kernels, str) else kernels.name
    if not isinstance(kernels, str):
        return [f"scratch is charged as {what} lists it"]
    for log in settings.logs:
        found = log.head_of(graph)
        if found == predicted:
            return [f"scratch is charged as for {kernels} ({what}); the log {log.name} confirms the head"]
        if found is not None:
            return [f"scratch is charged as for {kernels} ({what}), which the log {log.name} contradicts: its head is {in_bytes(found)}"]
    return [f"arena_head is estimated: scratch as for {kernels} ({what}), by its sources; no log of the device confirms it (--device-log)"]


def never_worse(
    graph: Graph, mapped: Mapped, planned: Planner, given: int, *, origin: Graph | None = None
) -> tuple[Outcome | None, tuple[str, ...]]:
    """An outcome that no known kernels make larger than the file as it is.

    Where the best one for the portable kernels is, its order without a plan is tried, and what is planned with more scratch:
    the largest that any known kernels ask for, then that of those which it was larger with.

    Parameters
    ----------
    planned : callable
        The best outcome for given kernels at an order, or near it: the best for the portable ones, the given one, or the
        best for those kernels.
    given : int
        Head of the file as it is with the portable kernels.
    origin : Graph, optional
        The file that this one was made from: its heads, then, are not to be exceeded.

    Returns
    -------
    Outcome or None
        None where there is none, and the file is to stay as it is.
    tuple of str
        What to say about it.
    """
    outcome = planned("reference", "best")
    base = origin or graph
    before = {t: head(base, t, None, base.plan) for t in TABLES}
    if outcome.head >= given:
        return outcome, ()
    worse = _worse(graph, mapped, outcome, before)
    if not worse:
        return outcome, ()
    best: Outcome | None = None
    others: tuple[Target, ...] = ("reference", _largest(graph), *worse)
    trials = (planned(kernels, near) for kernels in others for near in get_args(Near))
    for trial in (replace(outcome, offsets=None), *trials):
        here = _heads(graph, mapped, trial, ("reference",))["reference"]
        if here < (best.head if best else given) and not _worse(graph, mapped, trial, before):
            best = replace(trial, head=here, exact=False)
    target, size = max(worse.items(), key=lambda row: row[1] - before[row[0]])
    said = f"the smallest arena for the portable kernels, {in_bytes(outcome.head)}, would be larger on a device: {in_bytes(before[target])} -> {in_bytes(size)} with {target}"
    if best is not None:
        return best, (f"{said}; this one is larger with none of the known kernels; name those of the board with --target",)
    return None, (f"{said}; the file is left as it is; name the kernels of the board with --target ('reference' for the portable ones)",)


def _largest(graph: Graph) -> Listed:
    """For each operator the most scratch that any known kernels ask for, as one block."""
    sizes = {
        (k, i): (max(sum(requests(t, k, s, op)) for t in TABLES),)
        for k, s in enumerate(graph.subgraphs)
        for i, op in enumerate(s.operators)
    }
    return Listed("the largest of all known kernels", graph, {at: size for at, size in sizes.items() if size[0]})


def _heads(graph: Graph, mapped: Mapped, outcome: Outcome, targets: Sequence[str]) -> dict[str, int]:
    orders = by_subgraph(mapped, outcome.orders)
    return {t: simulate(allocations(graph, t, orders), outcome.offsets)[0] for t in targets}


def _worse(graph: Graph, mapped: Mapped, outcome: Outcome, before: dict[str, int]) -> dict[str, int]:
    return {t: size for t, size in _heads(graph, mapped, outcome, list(TABLES)).items() if size > before[t]}


def on_device(found: Verification, graphs: tuple[Graph, Graph], kernels: Target, logs: Sequence[DeviceLog]) -> Verification:
    """What was measured here, judged for a device with these kernels.

    The host has the portable kernels. With others nothing was measured of their head, which stays predicted; what logs say
    of either file is compared with that.
    """
    predicted = [head(graph, kernels, None, graph.plan) for graph in graphs]
    if kernels != "reference":
        figures = [found.baseline_bytes, found.optimized_bytes]
        if None not in figures:
            here = " -> ".join(in_bytes(size) for size in figures if size is not None)
            said = f"on this host, with the portable kernels, the head is {here}; that of {name_of(kernels)} is predicted"
            found = replace(found, notes=(*found.notes, said), details={**found.details, "portable_heads": figures})
        found = replace(found, baseline_bytes=None, optimized_bytes=None, baseline_predicted=predicted[0], predicted_bytes=predicted[1])
    notes, failures, rows = [], [], []
    for log in logs:
        names = ("the given file", "the rewritten file")
        planned = [log.head_of(graph) for graph in graphs]
        if not log.plans:  # it does not say of which file
            planned = [size if size == own else None for size, own in zip(planned, predicted)]
            if planned == [None, None]:
                failures.append(f"{log.name}: the device asked for {in_bytes(log.heads[-1])}, predicted were {' and '.join(map(in_bytes, predicted))}")
        for which, size, own in zip(names, planned, predicted):
            if size is None:
                continue
            rows.append({"log": log.name, "file": which, "head": size, "predicted": own})
            if size == own:
                notes.append(f"the head of {which} on the device is {in_bytes(size)}, as predicted ({log.name})")
            else:
                failures.append(f"{log.name}: the head of {which} on the device is {in_bytes(size)}, predicted were {in_bytes(own)}")
        if log.plans and planned == [None, None]:
            failures.append(f"{log.name}: no memory plan in it is of one of these files")
    details = {**found.details, **({"device_logs": rows} if rows else {})}
    return replace(found, notes=(*found.notes, *notes), failures=(*found.failures, *failures), details=details)
