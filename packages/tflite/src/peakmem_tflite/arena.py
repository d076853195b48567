"""A byte-exact model of TFLite Micro's memory planning.

`allocations` follows ``AllocationInfoBuilder`` (which tensors and scratch buffers live from when to when) and `simulate`
follows ``GreedyMemoryPlanner`` (where they are put, around the fixed offsets of an offline plan). The end of the
highest buffer is the *head* of the arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peakmem.arena.items import overlaps

from peakmem_tflite.graph import CONTROL_FLOW, Graph, Subgraph, Tensor
from peakmem_tflite.scratch import rounded
from peakmem_tflite.targets import Target, requests

Orders = Mapping[int, Sequence[int]]
"""Subgraph -> permutation of its operators."""


@dataclass(slots=True)
class Allocation:
    """One buffer of the arena.

    Attributes
    ----------
    tensor : int
        Index among the tensors of all subgraphs counted through; -1 for scratch.
    subgraph, operator : int
        Where it belongs; ``operator`` (an index in the file's order) is -1 for tensors.
    size : int
        Bytes, rounded.
    first, last : int
        Scopes, both included. Scope 0 is the entry, scope i the i-th operator; the operators of subgraphs follow the
        one that runs them. Both -1 for what no operator and no signature names, ``first`` alone for a variable.
    """

    tensor: int
    subgraph: int
    operator: int
    size: int
    first: int = -1
    last: int = -1


def planned(subgraph: Subgraph, offsets: Sequence[int] | None = None) -> list[bool]:
    """Which tensors live in the arena's head: no data in the file, no variable, not empty, no resource handle.

    VAR_HANDLE points its output at memory of its own while it prepares. A variable that a plan gives one of its ``offsets``
    lives in the head too, from the start.
    """
    result = [not t.constant and not t.variable and t.size > 0 for t in subgraph.tensors]
    if offsets is not None:
        result = [here or (t.variable and at != -1) for here, t, at in zip(result, subgraph.tensors, offsets)]
    for op in subgraph.operators:
        if op.op == "VAR_HANDLE":
            for t in op.outputs:
                result[t] = False
    return result


def allocations(
    graph: Graph, target: Target, orders: Orders | None = None, plan: Sequence[int] | None = None
) -> list[Allocation]:
    """All buffers of the arena in the order in which the planner learns of them: tensors, then scratch.

    The offsets of a ``plan`` matter here for variables alone.
    """
    orders = orders or {}
    tensors: list[list[Allocation | None]] = []
    scratch: list[Allocation] = []
    scratch_of: dict[tuple[int, int], list[Allocation]] = {}
    for k, subgraph in enumerate(graph.subgraphs):
        base = graph.bases[k]
        tensors.append(
            [
                Allocation(base + t, k, -1, rounded(subgraph.tensors[t].size)) if here else None
                for t, here in enumerate(planned(subgraph, plan[base:] if plan is not None else None))
            ]
        )
        for i in orders.get(k, range(len(subgraph.operators))):
            found = [Allocation(-1, k, i, size) for size in requests(target, k, subgraph, subgraph.operators[i])]
            if found:
                scratch_of[k, i] = found
                scratch.extend(found)

    def mark(k: int, scope: int) -> int:
        subgraph, here = graph.subgraphs[k], tensors[k]

        def born(t: int) -> None:
            a = here[t]
            if a is not None:
                a.first = a.last = scope

        def used(t: int) -> None:
            a = here[t] if t >= 0 else None
            if a is not None:
                a.last = scope

        for t in (*subgraph.inputs, *subgraph.outputs):
            born(t)
        for i in orders.get(k, range(len(subgraph.operators))):
            op = subgraph.operators[i]
            scope += 1
            for t in op.outputs:
                born(t)
            begin = scope
            if op.op in CONTROL_FLOW:
                for callee in op.callees:
                    scope = mark(callee, scope + 1)
            for t in (*op.inputs, *op.outputs):
                used(t)
            for a in scratch_of.get((k, i), ()):
                a.first, a.last = begin, scope
        for t in subgraph.outputs:
            used(t)
        return scope

    mark(0, 0)
    return [a for rows in tensors for a in rows if a is not None] + scratch


def untouched(graph: Graph) -> list[tuple[int, int, Tensor]]:
    """Tensors in the head that no operator and no signature names: subgraph, index, tensor. They all are there at once."""
    names = [
        {t for op in s.operators for t in (*op.inputs, *op.outputs)} | set(s.inputs) | set(s.outputs) for s in graph.subgraphs
    ]
    return [
        (k, t, s.tensors[t]) for k, s in enumerate(graph.subgraphs) for t, here in enumerate(planned(s)) if here and t not in names[k]
    ]


def planned_variables(graph: Graph) -> bool:
    """Whether the plan in the file gives variable tensors a place in the head."""
    tensors = [t for s in graph.subgraphs for t in s.tensors]
    return graph.plan is not None and any(t.variable and at != -1 for t, at in zip(tensors, graph.plan))


def simulate(buffers: Sequence[Allocation], plan: Sequence[int] | None = None) -> tuple[int, list[int]]:
    """Head of the arena and the offset of each buffer, as the greedy planner chooses them.

    Parameters
    ----------
    buffers : sequence of Allocation
    plan : sequence of int, optional
        Offset for each tensor counted through; -1 leaves it to the planner, as does None for all.

    Notes
    -----
    Buffers with planned offsets come first, as listed. The others are sorted by size, largest first, and among equals
    the last listed first (the planner fills its array from the end and sorts it stably), and each goes into the first
    gap that holds it. Sorts what is resident together with each buffer.
    """
    offsets = [0] * len(buffers)
    placed = [False] * len(buffers)
    near = overlaps([(b.first, b.last) for b in buffers])
    online = []
    for i, b in enumerate(buffers):
        fixed = plan[b.tensor] if plan is not None and b.tensor >= 0 else -1
        if fixed == -1:
            online.append(i)
        else:
            offsets[i], placed[i] = fixed, True
    online.reverse()
    online.sort(key=lambda i: -buffers[i].size)
    for i in online:
        size, at = buffers[i].size, 0
        for offset, end in sorted([(offsets[j], offsets[j] + buffers[j].size) for j in near[i] if placed[j]]):
            if offset - at >= size:
                break
            if end > at:
                at = end
        offsets[i], placed[i] = at, True
    return max((o + b.size for o, b in zip(offsets, buffers)), default=0), offsets


def head(graph: Graph, target: Target, orders: Orders | None = None, plan: Sequence[int] | None = None) -> int:
    """Bytes of the arena's head."""
    return simulate(allocations(graph, target, orders, plan), plan)[0]


def planner_temp(graph: Graph, buffers: Sequence[Allocation], *, pointer: int = 8) -> int:
    """Bytes the planner itself needs while it plans, in the room that later is the head.

    With 64-bit pointers: requests of 16 bytes (12 spare ones), the first tensors of the subgraphs 8 each, 32 for each
    tensor and each scratch buffer, 40 for each buffer planned.
    """
    scratch = sum(1 for b in buffers if b.tensor < 0)
    request, word, info = (16, 8, 32) if pointer == 8 else (12, 4, 24)
    return (
        request * (scratch + 12)
        + word * len(graph.subgraphs)
        + info * (graph.tensor_count + scratch)
        + 40 * len(buffers)
    )
