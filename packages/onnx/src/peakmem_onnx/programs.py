"""From a graph and its values to a Program whose peaks are what ONNX Runtime reaches with memory reuse off.

Storages become buffers. Which values share one is the planner's rule (see `peakmem_onnx.planner`), decided here for
*all* orders at once:

- an alias always shares;
- an in-place operator shares when every other reader of the storage must run before it (then it is the last reader in
  every order), and does not when one must run after it;
- otherwise it depends on the order. Such an operator is charged as if it did not share: for the orders in which it
  does, the Program's peak is an upper bound (`Built.undecided` names them; the planner's replay is exact).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peakmem.model import Buffer, InputError, Program, Statement

from peakmem_onnx.graph import Graph, Node, Values
from peakmem_onnx.orders import FIRST
from peakmem_onnx.planner import may_share
from peakmem_onnx.rules import alias_of, is_pure


@dataclass(frozen=True)
class Built:
    """A Program and how it was made.

    Attributes
    ----------
    program : Program
        Statement ``i`` is node ``order[i]``.
    order : tuple of int
        The given order, as node indices.
    root : dict of str to str
        Value -> the value that names its buffer.
    undecided : tuple of str
        Names of the nodes that run in place in some orders only.
    """

    program: Program
    order: tuple[int, ...]
    root: dict[str, str]
    undecided: tuple[str, ...]


def ancestors(before: list[tuple[int, ...]], order: tuple[int, ...]) -> list[int]:
    """Strict ancestors of each node as bit sets. O(nodes * edges / word)."""
    result = [0] * len(before)
    for v in order:
        bits = 0
        for u in before[v]:
            bits |= result[u] | (1 << u)
        result[v] = bits
    return result


def build(
    graph: Graph,
    values: Values,
    order: tuple[int, ...],
    *,
    workspace: Mapping[int, int],
    costs: Mapping[int, int],
    bodies: Mapping[int, tuple[Program, ...]] | None = None,
    uncharged: frozenset[str] = frozenset(),
    passed: frozenset[str] = frozenset(),
    state: int = 0,
    sharing: bool = True,
    first: bool = True,
    name: str = "",
) -> Built:
    """Make the Program.

    Parameters
    ----------
    graph, values
        See `peakmem_onnx.graph`.
    order : tuple of int
        A topological order of the nodes: the given order.
    workspace, costs : mapping of int to int
        Bytes and MACs by node index; 0 where missing.
    bodies : mapping of int to tuple of Program, optional
    uncharged : frozenset of str
        Outputs whose storage somebody else provides (a body's outputs that its node has already allocated).
    passed : frozenset of str
        Outputs that share the storage of the input they repeat (see `peakmem_onnx.bodies`).
    state : int
        Bytes that are in use from the first to the last statement besides.
    sharing : bool
        See `peakmem_onnx.planner.plan`.
    first : bool
        Whether Shape and Size run before the other readers of their input, as the priority-based order has it.
    """
    before = graph.predecessors
    above = ancestors(before, order)
    results = set(graph.outputs)
    given = {*graph.inputs, *graph.outer, *graph.initializers}
    readers: dict[str, list[int]] = {}  # value -> nodes, once for each time it is read
    for node in graph.nodes:
        for value in node.reads:
            readers.setdefault(value, []).append(node.index)
    root = {value: value for value in given}
    members: dict[str, list[str]] = {value: [value] for value in given}
    undecided: list[str] = []
    for v in order:
        node = graph.nodes[v]
        for position, value in enumerate(node.outputs):
            if not value:
                continue
            shared = None
            if value in passed:
                shared = root[node.inputs[0]]
            elif sharing and value not in results:
                shared = _shared(node, position, value, values, root, members, readers, above, given, results, undecided)
            if shared is None:
                root[value] = value
                members[value] = [value]
            else:
                root[value] = shared
                members[shared].append(value)
    return _program(
        graph, values, order, before, root, readers, workspace, costs, bodies or {}, uncharged, state, sharing, first, name,
        undecided,
    )  # fmt: skip


def _shared(
    node: Node,
    position: int,
    value: str,
    values: Values,
    root: Mapping[str, str],
    members: Mapping[str, list[str]],
    readers: Mapping[str, list[int]],
    above: list[int],
    given: set[str],
    results: set[str],
    undecided: list[str],
) -> str | None:
    for source, must in may_share(node, position):
        storage = root[source]
        if must:
            return storage
        if storage in given or storage in results or not values[source].fits(values[value]):
            continue
        others = [u for member in members[storage] for u in readers.get(member, ())]
        others.remove(node.index)
        if all(above[node.index] >> u & 1 for u in others):
            return storage
        if not any(u == node.index or above[u] >> node.index & 1 for u in others):
            undecided.append(node.name)
    return None


def _program(
    graph: Graph,
    values: Values,
    order: tuple[int, ...],
    before: list[tuple[int, ...]],
    root: Mapping[str, str],
    readers: Mapping[str, list[int]],
    workspace: Mapping[int, int],
    costs: Mapping[int, int],
    bodies: Mapping[int, tuple[Program, ...]],
    uncharged: frozenset[str],
    state: int,
    sharing: bool,
    first: bool,
    name: str,
    undecided: list[str],
) -> Built:
    read = {root[value] for value in readers}
    results = set(graph.outputs)
    buffers: list[Buffer] = []
    ids: dict[str, int] = {}
    if state:
        buffers.append(Buffer("(state of the loop)", state, "input", True))
    for v in order:
        for value in graph.nodes[v].outputs:
            if value and root[value] == value:
                ids[value] = len(buffers)
                held = value in results or (sharing and value not in read)
                buffers.append(
                    Buffer(
                        value,
                        0 if value in uncharged else values[value].bytes,
                        "output" if value in results else "intermediate",
                        held,
                    )
                )
    position = {v: i for i, v in enumerate(order)}
    after: dict[int, set[int]] = {}  # the runtime runs Shape and Size as soon as it can: before other readers
    for v in order:
        node = graph.nodes[v]
        if first and not node.domain and node.op in FIRST:
            for u in readers[node.inputs[0]]:
                if position[u] > position[v]:
                    after.setdefault(u, set()).add(position[v])
    statements = []
    for v in order:
        node = graph.nodes[v]
        # Storages that belong to the caller or hold weights are not allocated by the run.
        reads = sorted({ids[root[value]] for value in node.reads if root[value] in ids})
        # An alias is a view: it writes nothing, so that its storage keeps a single writer and may be recomputed.
        views = {target for _, target in alias_of(node.domain, node.op)}
        writes = sorted(
            {
                ids[root[value]]
                for index, value in enumerate(node.outputs)
                if value and root[value] in ids and not (index in views and root[value] != value)
            }
        )
        statements.append(
            Statement(
                name=node.name,
                op=f"{node.domain}:{node.op}" if node.domain else node.op,
                reads=tuple(reads),
                writes=tuple(writes),
                dependences=tuple(sorted({*(position[u] for u in before[v]), *after.get(v, ())})),
                workspace=workspace.get(v, 0),
                cost=costs.get(v, 0),
                pure=is_pure(node.domain, node.op),
                bodies=bodies.get(v, ()),
            )
        )
    try:
        program = Program(tuple(buffers), tuple(statements), name)
    except InputError as error:
        raise InputError(f"the graph does not make a program: {error}") from None
    return Built(program, order, dict(root), tuple(undecided))
