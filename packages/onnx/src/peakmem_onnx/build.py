"""Model facts + nodes -> Program and replayed peak, bodies included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peakmem.program import Program
from peakmem_onnx.facts import Facts
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


def below(key: str, node: Node, attribute: str) -> str:
    """Path of a body's level."""
    return f"{key}/{node.name}/{attribute}" if key else f"{node.name}/{attribute}"


def lent(node: Node, body: Graph, values: dict[str, Value]) -> frozenset[str]:
    """Outputs of a body whose storage its node has already allocated: those of an If with a fixed shape."""
    return frozenset(name for name in body.outputs if name in values) if node.op == "If" else frozenset()


def build_program(graph: Graph, facts: Facts, key: str = "", node: Node | None = None) -> Whole:
    """The Program of a level in file order."""
    values = facts.values[key]
    undecided: list[str] = []
    bodies: dict[int, tuple[Program, ...]] = {}
    for v in graph.nodes:
        inner = []
        for attribute, body in v.bodies:
            path = below(key, v, attribute)
            if not complete(body, facts, path):
                inner.append(Program((), (), path))  # not charged; a note says so
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
        uncharged=lent(node, graph, values) if node is not None else frozenset(),
        name=key or "graph",
    )
    return Whole(built, (*undecided, *built.undecided))


def complete(graph: Graph, facts: Facts, key: str) -> bool:
    """Whether every value of a level has an exact shape."""
    values = facts.values.get(key, {})
    return all(
        name in values and values[name].shape != (-1,) for node in graph.nodes for name in node.outputs if name
    )


Ordered = Callable[[Graph], Sequence[int]]


def replay(
    graph: Graph, facts: Facts, ordered: Ordered, *, reuse: bool = False, key: str = "", node: Node | None = None
) -> tuple[int, ...]:
    """Bytes at each step when every level runs in the order that ``ordered`` gives it; exact for that order."""
    values = facts.values[key]
    workspace = {}
    for v in graph.nodes:
        inner = 0
        for attribute, body in v.bodies:
            path = below(key, v, attribute)
            if complete(body, facts, path):
                inner = max(inner, max(replay(body, facts, ordered, reuse=reuse, key=path, node=v), default=0))
        workspace[v.index] = facts.workspace.get(v.name, 0) + inner
    return plan(
        graph,
        values,
        ordered(graph),
        workspace,
        reuse=reuse,
        uncharged=lent(node, graph, values) if node is not None else frozenset(),
        body_of_loop=node is not None and node.op == "Loop",
    ).bytes_at
