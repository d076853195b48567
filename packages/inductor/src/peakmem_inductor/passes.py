"""Scheduler passes for Inductor; importing this module imports torch."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from typing import Any

from torch._inductor import memory
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet


def planning(nodes: Sequence[Any]) -> tuple[Any, Any, Any]:
    """What Inductor's own reordering looks at: freeable inputs, buffers, names of outputs."""
    scheduler = V.graph.scheduler
    outputs = OrderedSet(V.graph.get_output_names())
    _, freeable = memory.prepare_planning_info(
        nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, OrderedSet(V.graph.graph_inputs.keys()), outputs
    )
    return freeable, scheduler.name_to_buf, outputs


def estimate(order: Sequence[Any], freeable: Any, outputs: Any) -> int:
    """Inductor's prediction for an order, in bytes above entry: freeable inputs, which it counts, are taken off."""
    entry = sum(int(b.mpi_buffer.size_free) for b in freeable.values())
    return int(memory.estimate_peak_memory(order, freeable, outputs)[0]) - entry


class MethodPass(CustomSchedulerPass):  # type: ignore[misc]
    """Apply one of Inductor's heuristics (``lpmf``, ``bfs``, ``dfs``; ``off`` leaves the order) whatever it estimates.

    ``estimates`` holds Inductor's own prediction for each graph compiled, in bytes above entry.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.estimates: list[int] = []

    def __call__(self, nodes: list[Any]) -> list[Any]:
        freeable, buffers, outputs = planning(nodes)
        order = nodes
        if self.name != "off":
            method = getattr(memory, f"topological_sort_{self.name}")
            order = method(nodes, freeable, buffers, outputs) if self.name == "lpmf" else method(nodes)
        self.estimates.append(estimate(order, freeable, outputs))
        return list(order)

    def uuid(self) -> Any:
        return f"peakmem-{self.name}/1"

    def __reduce__(self) -> Any:
        return (MethodPass, (self.name,))


class GivenOrder(CustomSchedulerPass):  # type: ignore[misc]
    """Hand an order back to Inductor, which then generates code for it.

    Parameters
    ----------
    buffers : sequence of str
        Buffers in the order in which they are to be written; a node goes where the first of its buffers stands, as
        early as its dependences allow. ``missing`` counts nodes none of whose buffers is named.
    """

    def __init__(self, buffers: Sequence[str]) -> None:
        self.buffers = tuple(buffers)
        self.estimates: list[int] = []
        self.missing = 0

    def __call__(self, nodes: list[Any]) -> list[Any]:
        position = {name: i for i, name in enumerate(self.buffers)}
        freeable, _, outputs = planning(nodes)
        producer = {name: i for i, node in enumerate(nodes) for name in node.get_buffer_names()}
        before = [
            {producer[d.name] for d in node.unmet_dependencies if d.name in producer} - {i}
            for i, node in enumerate(nodes)
        ]
        rank = []
        for node in nodes:
            known = [position[n] for n in node.get_buffer_names() if n in position]
            self.missing += not known
            rank.append(min(known, default=-1))
        after: list[list[int]] = [[] for _ in nodes]
        for i, found in enumerate(before):
            for j in found:
                after[j].append(i)
        waiting = [len(b) for b in before]
        ready = [(rank[i], i) for i in range(len(nodes)) if not waiting[i]]
        heapq.heapify(ready)
        order = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(nodes[i])
            for j in after[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    heapq.heappush(ready, (rank[j], j))
        if len(order) != len(nodes):
            raise RuntimeError("the scheduler's nodes have a cycle")
        self.estimates.append(estimate(order, freeable, outputs))
        return order

    def uuid(self) -> Any:
        return "peakmem-given/1 " + hashlib.sha256(" ".join(self.buffers).encode()).hexdigest()

    def __reduce__(self) -> Any:
        return (GivenOrder, (self.buffers,))
