"""ONNX Runtime's allocation plan of one order, and the bytes that it makes of it.

This is a replay of the sequential planner: which outputs get storage of their own, which take over an input's, which
(with memory reuse on) take over any dead storage of the same shape, and after which node each storage is released.
The replay looks at one order and is exact for it; `peakmem_onnx.programs` turns the same rules into a Program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peakmem_onnx.graph import Graph, Node, Values
from peakmem_onnx.rules import alias_of, in_place_of


@dataclass(frozen=True)
class Plan:
    """Storages of one order.

    Attributes
    ----------
    root : dict of str to str
        Value -> the value whose storage it uses (itself if it has its own).
    allocated : tuple of str
        Values with storage of their own that the runtime allocates, in allocation order.
    released : dict of str to int
        Root -> step after which its storage is freed; missing for what is held to the end of the run.
    bytes_at : tuple of int
        Bytes in use during each step: storages, outputs of the step, its workspace.
    """

    root: dict[str, str]
    allocated: tuple[str, ...]
    released: dict[str, int]
    bytes_at: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.bytes_at, default=0)


def may_share(node: Node, output: int) -> tuple[tuple[str, bool], ...]:
    """Inputs whose storage an output may take: (value, whether it must), in the planner's order of preference."""
    pairs = []
    for must, table in ((True, alias_of(node.domain, node.op)), (False, in_place_of(node.domain, node.op))):
        for source, target in table:
            if target == output and source < len(node.inputs) and node.inputs[source]:
                pairs.append((node.inputs[source], must))
    return tuple(pairs)


def plan(
    graph: Graph,
    values: Values,
    order: Sequence[int],
    workspace: Mapping[int, int] | Sequence[int],
    *,
    reuse: bool = False,
    sharing: bool = True,
    uncharged: frozenset[str] = frozenset(),
    passed: frozenset[str] = frozenset(),
) -> Plan:
    """Replay the planner.

    Parameters
    ----------
    graph : Graph
    values : mapping of str to Value
        Every value that a node of ``graph`` writes, and its inputs.
    order : sequence of int
        The executed order.
    workspace : mapping or sequence
        Bytes of workspace by node index.
    reuse : bool
        ``enable_mem_reuse``, on by default in ONNX Runtime, off in peakmem's recipe.
    sharing : bool
        False for node-by-node execution: every output has storage of its own, and one that nobody reads goes at once.
    uncharged : frozenset of str
        Outputs whose storage somebody else provides.
    passed : frozenset of str
        Outputs that share the storage of the input they repeat (see `peakmem_onnx.bodies`).

    Notes
    -----
    O(nodes + edges).
    """
    uses: dict[str, int] = {}
    for name in (*graph.inputs, *graph.outer, *graph.initializers, *graph.outputs):
        uses[name] = uses.get(name, 0) + 1
    for node in graph.nodes:
        for name in (*node.reads, *(n for n in node.outputs if n)):
            uses[name] = uses.get(name, 0) + 1
    given = {*graph.inputs, *graph.outer, *graph.initializers}
    results = set(graph.outputs)
    root: dict[str, str] = {name: name for name in given}
    allocated: list[str] = []
    dead: dict[Any, list[str]] = {}  # form -> storages, the most recently freed last
    last: dict[str, int] = {}
    taken_at: list[list[str]] = []
    for step, v in enumerate(order):
        node = graph.nodes[v]
        taken: list[str] = []
        for position, name in enumerate(node.outputs):
            if not name:
                continue
            shared: str | None = None
            if name in passed:
                shared = root[node.inputs[0]]
            elif name not in results:
                for source, must in may_share(node, position) if sharing else ():
                    if must or (uses[root[source]] == 1 and values[source].fits(values[name])):
                        shared = root[source]
                        break
                # An output that nobody reads has one use, the writing, and takes over nothing.
                if shared is None and reuse and uses[name] > 1 and values[name].planned != ():
                    same = dead.get(values[name].form)
                    if same:
                        shared = same.pop()
            if shared is None:
                root[name] = name
                allocated.append(name)
                taken.append(name)
            else:
                root[name] = shared
                uses[shared] += uses[name]
        taken_at.append(taken)
        for name in (*node.reads, *(() if sharing else taken)):
            last[root[name]] = step
        for name in (*node.reads, *(n for n in node.outputs if n)):
            storage = root[name]
            uses[storage] -= 1
            if uses[storage] == 0 and reuse and values[storage].form is not None:
                dead.setdefault(values[storage].form, []).append(storage)
    owned = set(allocated)
    released = {name: step for name, step in last.items() if name in owned and name not in results}
    frees: list[list[str]] = [[] for _ in order]
    for name, step in released.items():
        frees[step].append(name)
    now = 0
    bytes_at = []
    for step, v in enumerate(order):
        now += sum(values[name].bytes for name in taken_at[step] if name not in uncharged)
        bytes_at.append(now + workspace[v])
        now -= sum(values[name].bytes for name in frees[step] if name not in uncharged)
    return Plan(root, tuple(allocated), released, tuple(bytes_at))
