"""Model facts + nodes -> Program and replayed peak, bodies included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peakmem.program import Program
from peakmem_onnx.facts import Facts, Key, complete
from peakmem_onnx.graph import Graph, Node, Value
from peakmem_onnx.planner import plan
from peakmem_onnx.programs import Built, build


@dataclass(frozen=True)
class Whole:
    """The Program of a graph with its bodies, and the operators whose sharing depends on the order."""

    built: Built
    undecided: tuple[str, ...]

    @property
    def program(self) -> Program:
        return self.built.program


def lent(node: Node, body: Graph, values: dict[str, Value]) -> tuple[frozenset[str], frozenset[str]]:
    """Outputs of a body whose storage is its node's: those there from the start, and those that come when written.

    An If allocates the outputs whose shape the planner knows before its body runs; the others are allocated when the
    body writes them.
    """
    if node.op != "If":
        return frozenset(), frozenset()
    early = frozenset(
        name for name in body.outputs if name in values and all(isinstance(d, int) for d in values[name].planned or ("",))
    )
    return early, frozenset(name for name in body.outputs if name in values) - early


def build_program(graph: Graph, facts: Facts, key: Key = (), node: Node | None = None) -> Whole:
    """The Program of a level in file order.

    Outputs of an If count from its start, which is up to their size too much where they come late; `replay` is exact.
    """
    values = facts.values[key]
    undecided: list[str] = []
    bodies: dict[int, tuple[Program, ...]] = {}
    for v in graph.nodes:
        inner = []
        for attribute, body in v.bodies:
            path = (*key, v.name, attribute)
            if not complete(body, facts.values[path]):
                inner.append(Program((), (), "/".join(path)))  # not charged; a note says so
                continue
            whole = build_program(body, facts, path, v)
            undecided.extend(whole.undecided)
            inner.append(whole.program)
        if inner:
            bodies[v.index] = tuple(inner)
    built = build(
        graph,
        values,
        tuple(range(len(graph.nodes))),
        workspace={v.index: facts.workspace.get(v.name, 0) for v in graph.nodes},
        costs={v.index: facts.costs.get(v.name, 0) for v in graph.nodes},
        bodies=bodies,
        uncharged=frozenset().union(*lent(node, graph, values)) if node is not None else frozenset(),
        name="/".join(key) or "graph",
    )
    return Whole(built, (*undecided, *built.undecided))


Ordered = Callable[[Graph], Sequence[int]]


def replay(
    graph: Graph, facts: Facts, ordered: Ordered, *, reuse: bool = False, key: Key = (), node: Node | None = None
) -> tuple[int, ...]:
    """Bytes at each step when every level runs in the order that ``ordered`` gives it; exact for that order."""
    values = facts.values[key]
    workspace = {}
    for v in graph.nodes:
        inner = 0
        for attribute, body in v.bodies:
            path = (*key, v.name, attribute)
            if complete(body, facts.values[path]):
                steps = replay(body, facts, ordered, reuse=reuse, key=path, node=v)
                late = sum(facts.values[path][name].bytes for name in lent(v, body, facts.values[path])[1])
                inner = max(inner, max(steps, default=0) - late)
        workspace[v.index] = facts.workspace.get(v.name, 0) + inner
    return plan(
        graph,
        values,
        ordered(graph),
        workspace,
        reuse=reuse,
        uncharged=lent(node, graph, values)[0] if node is not None else frozenset(),
        body_of_loop=node is not None and node.op == "Loop",
    ).bytes_at
