"""One level of an ONNX graph as ONNX Runtime's planner sees it: nodes, names, storage sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from peakmem.model import InputError

ALIGNMENT = 64
"""ONNX Runtime's CPU allocator charges multiples of this many bytes."""

BITS = {
    "float": 32, "uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "int32": 32, "int64": 64, "bool": 8,
    "float16": 16, "bfloat16": 16, "double": 64, "uint32": 32, "uint64": 64, "complex64": 64, "complex128": 128,
    "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "int4": 4, "uint4": 4,
    "int2": 2, "uint2": 2, "float4e2m1": 4,
    "string": 256,
}  # fmt: skip
"""Bits of one element; a string is a C++ object of 32 bytes whose text lies elsewhere."""


def charge(size: int) -> int:
    """Bytes that the allocator charges for a request of ``size`` bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Value:
    """What is known of one value.

    Attributes
    ----------
    type : str
        ONNX Runtime's name of its type, such as ``"tensor(float)"``.
    planned : tuple or None
        Shape as the planner knows it: numbers and names; None when it knows none. An unnamed dimension is ``""`` and
        equals nothing.
    shape : tuple of int
        Exact shape.
    """

    type: str
    planned: tuple[int | str, ...] | None
    shape: tuple[int, ...]

    @property
    def element(self) -> str:
        return self.type.removeprefix("tensor(").removesuffix(")")

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return -(-prod(self.shape) * BITS[self.element] // 8)

    @cached_property
    def bytes(self) -> int:
        """Bytes that the allocator charges for it."""
        return charge(self.size)

    @cached_property
    def form(self) -> tuple[int, tuple[int | str, ...]] | None:
        """What the planner compares: width of an element and shape; None when it never shares.

        Two storages are of one size for it when their forms are equal (it compares shapes, not bytes).
        """
        if self.planned is None or "" in self.planned or self.element == "string":
            return None
        return max(8, BITS[self.element]), self.planned

    def fits(self, other: Value) -> bool:
        """Whether the planner takes both for storages of one size."""
        return self.form is not None and self.form == other.form


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes
    ----------
    index : int
        Position in the file, Constant nodes not counted.
    inputs, outputs : tuple of str
        As in the file, with empty names where something optional is left out.
    captured : tuple of str
        Values of this level that the node's bodies read, sorted; ONNX Runtime's "implicit inputs".
    """

    index: int
    name: str
    domain: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[str, ...] = ()
    bodies: tuple[tuple[str, Graph], ...] = ()
    proto: Any = field(default=None, repr=False, compare=False)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """All values read, explicit ones first, with repetitions."""
        return (*(name for name in self.inputs if name), *self.captured)


@dataclass(frozen=True)
class Graph:
    """Nodes in file order with what surrounds them.

    Attributes
    ----------
    inputs, outputs : tuple of str
        Without the inputs that an initializer gives a default.
    initializers : frozenset of str
    outer : frozenset of str
        Values of enclosing levels that this one (or a body below it) reads.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: frozenset[str]
    outer: frozenset[str] = frozenset()

    @cached_property
    def producer(self) -> dict[str, int]:
        """Value -> index of the node that writes it."""
        return {name: node.index for node in self.nodes for name in node.outputs if name}

    @cached_property
    def predecessors(self) -> list[tuple[int, ...]]:
        """For each node the nodes whose outputs it reads, ascending."""
        producer = self.producer
        return [
            tuple(sorted({producer[name] for name in node.reads if name in producer})) for node in self.nodes
        ]


def domain_of(proto: Any) -> str:
    """Domain of a node with the default one spelled as the empty text."""
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def body_attributes(proto: Any) -> list[tuple[str, Any]]:
    """Graph-valued attributes of a node: (name, GraphProto), in the order of their names."""
    found = [(a.name, a.g) for a in proto.attribute if a.type == 5]  # AttributeProto.GRAPH
    for attribute in proto.attribute:
        if attribute.type == 10:  # AttributeProto.GRAPHS
            raise InputError(f"node {proto.name!r}: a list of graphs as attribute {attribute.name!r} is not supported")
    return sorted(found, key=lambda pair: pair[0])


def is_constant(proto: Any) -> bool:
    """Whether a node is a Constant, which ONNX Runtime turns into an initializer when it loads the file."""
    return proto.op_type == "Constant" and proto.domain in ("", "ai.onnx")


def read_graph(proto: Any) -> Graph:
    """Parse a ``GraphProto`` with all its bodies. Constant nodes count as initializers: they are never executed.

    Raises
    ------
    InputError
        When the nodes are not listed so that every value stands before its readers.
    """
    executed = [node for node in proto.node if not is_constant(node)]
    initializers = frozenset(
        (
            *(i.name for i in proto.initializer),
            *(i.values.name for i in proto.sparse_initializer),
            *(name for node in proto.node if is_constant(node) for name in node.output),
        )
    )
    inputs = tuple(v.name for v in proto.input if v.name not in initializers)
    known = {*inputs, *initializers, *(v.name for v in proto.input)}
    produced = {name for node in executed for name in node.output if name}
    outer: set[str] = set()
    nodes = []
    for index, node in enumerate(executed):
        bodies = tuple((name, read_graph(body)) for name, body in body_attributes(node))
        captured = sorted({name for _, body in bodies for name in body.outer})
        for name in (*node.input, *captured):
            if not name or name in known:
                continue
            if name in produced:
                raise InputError(
                    f"node {node.name!r} reads {name!r} before it is written; the nodes are not in topological order"
                )
            outer.add(name)
        known.update(name for name in node.output if name)
        nodes.append(
            Node(
                index=index,
                name=node.name,
                domain=domain_of(node),
                op=node.op_type,
                inputs=tuple(node.input),
                outputs=tuple(node.output),
                captured=tuple(captured),
                bodies=bodies,
                proto=node,
            )
        )
    outputs = tuple(v.name for v in proto.output)
    outer.update(name for name in outputs if name not in known)
    return Graph(tuple(nodes), inputs, outputs, initializers, frozenset(outer))


def all_names(graphs: Iterable[Graph]) -> set[str]:
    """Every value name used at any level."""
    names: set[str] = set()
    stack = list(graphs)
    while stack:
        graph = stack.pop()
        names.update(graph.inputs, graph.initializers, graph.outputs, graph.outer)
        for node in graph.nodes:
            names.update(node.inputs, node.outputs)
            stack.extend(body for _, body in node.bodies)
    names.discard("")
    return names


Values = Mapping[str, Value]
