"""Settings of Inductor whose wrappers differ, each a candidate to permute.

Permuting a wrapper cannot undo what its generation decided (fusion, buffers taken over in place), so the wrappers of
several settings are permuted, each exactly, and the least is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from peakmem.errors import UsageError

CANDIDATES = ("default", "off", "lpmf", "bfs", "dfs", "noreuse")
"""``default``: as configured; ``off``: without Inductor's own reordering; ``lpmf``, ``bfs``, ``dfs``: with exactly that
one of its heuristics; ``noreuse``: ``off`` and without taking over dead buffers."""


def parse_candidates(value: object) -> tuple[str, ...]:
    """The ``candidates`` option: a number (the first so many of `CANDIDATES`), names, or ``"default,lpmf"``.

    ``default`` always comes first: its bits are the reference.
    """
    if isinstance(value, bool):
        raise UsageError(f"candidates: {value!r} is neither a number nor a list of names")
    if isinstance(value, int):
        if not 1 <= value <= len(CANDIDATES):
            raise UsageError(f"candidates: {value} is not between 1 and {len(CANDIDATES)}")
        return CANDIDATES[:value]
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise UsageError(f"candidates: {value!r} is neither a number nor a list of names")
    unknown = [n for n in names if n not in CANDIDATES]
    if unknown:
        raise UsageError(f"candidates: {unknown[0]!r} is none of {', '.join(CANDIDATES)}")
    return ("default", *(n for n in dict.fromkeys(names) if n != "default"))


def config_of(name: str) -> dict[str, Any] | None:
    """Patches of ``torch._inductor.config`` for a candidate; None where this torch lacks what it needs."""
    from torch._inductor import config

    if name == "default":
        return {}
    patches: dict[str, Any] = {}
    if hasattr(config, "reorder_for_peak_memory"):
        patches["reorder_for_peak_memory"] = False
    elif name == "off":
        return None
    if name == "noreuse":
        patches["allow_buffer_reuse"] = False
    elif name in ("lpmf", "bfs", "dfs"):
        if not hasattr(config, "_post_fusion_custom_pass") or not patches or config._post_fusion_custom_pass is not None:
            return None
        patches["_post_fusion_custom_pass"] = method_pass(name)
    return patches


def _planning(nodes: Sequence[Any]) -> tuple[Any, int, Any, Any]:
    from torch._inductor import memory
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    scheduler = V.graph.scheduler
    outputs = OrderedSet(V.graph.get_output_names())
    estimate, freeable = memory.prepare_planning_info(
        nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, OrderedSet(V.graph.graph_inputs.keys()), outputs
    )
    return freeable, int(estimate), scheduler.name_to_buf, outputs


def method_pass(name: str) -> Any:
    """A scheduler pass that applies one of Inductor's heuristics whatever it estimates; ``estimate`` holds its
    own prediction in bytes after it ran."""
    from torch._inductor import memory
    from torch._inductor.custom_graph_pass import CustomSchedulerPass

    class MethodPass(CustomSchedulerPass):  # type: ignore[misc]
        estimate: int | None = None

        def __call__(self, nodes: list[Any]) -> list[Any]:
            freeable, _, buffers, outputs = _planning(nodes)
            method = getattr(memory, f"topological_sort_{name}")
            order = method(nodes, freeable, buffers, outputs) if name == "lpmf" else method(nodes)
            self.estimate = int(memory.estimate_peak_memory(order, freeable, outputs)[0])
            return list(order)

        def uuid(self) -> Any:
            return f"peakmem-{name}/1"

    return MethodPass()


def given_order_pass(buffers: Sequence[str]) -> Any:
    """A scheduler pass that hands an order back to Inductor, which then generates code for it.

    Parameters
    ----------
    buffers : sequence of str
        Buffers in the order in which they are to be written; a node goes where the first of its buffers stands, as
        early as its dependences allow. ``missing`` counts nodes whose buffers are not named.
    """
    from torch._inductor import memory
    from torch._inductor.custom_graph_pass import CustomSchedulerPass

    position = {name: i for i, name in enumerate(buffers)}

    class GivenOrder(CustomSchedulerPass):  # type: ignore[misc]
        estimate: int | None = None
        missing: int | None = None

        def __call__(self, nodes: list[Any]) -> list[Any]:
            import heapq

            freeable, _, _, outputs = _planning(nodes)
            producer = {name: i for i, node in enumerate(nodes) for name in node.get_buffer_names()}
            before: list[set[int]] = []
            for i, node in enumerate(nodes):
                found = {producer[d.name] for d in node.unmet_dependencies if d.name in producer}
                before.append(found - {i})
            rank = []
            self.missing = 0
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
                return nodes
            self.estimate = int(memory.estimate_peak_memory(order, freeable, outputs)[0])
            return order

        def uuid(self) -> Any:
            return "peakmem-given/1 " + hashlib.sha256(" ".join(buffers).encode()).hexdigest()

    return GivenOrder()
