"""What kernels take on trust, checked before anything is made of a file.

TFLite Micro looks at few shapes while it prepares. Where they do not fit together its kernels read and write past their
tensors, so that what lies beside a tensor decides the result, and moving tensors changes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from peakmem.model import InputError

from peakmem_tflite.graph import Graph, Operator
from peakmem_tflite.shapes import Constants, unfit

_COMPILED = {"ethos-u": ("an Arm Ethos-U", "Vela"), "ethos-u85": ("an Arm Ethos-U", "Vela")}
"""Custom operators that hold a program for another processor: which one, and who compiles them."""


def check_sound(graph: Graph, constants: Constants, where: str) -> None:
    """Raise `InputError` for the first operator whose tensors do not fit together, or that no order may be changed around."""
    for sentence in (*_variables(graph), *_shapes(graph, constants), *_passed(graph)):
        raise InputError(f"{where}: {sentence}; kernels would read or write past their tensors, convert the model anew")


def check_not_compiled(op: Operator, where: str, place: str) -> None:
    """Raise `InputError` for an operator whose command stream addresses the arena itself."""
    if op.custom and op.op in _COMPILED:
        processor, compiler = _COMPILED[op.op]
        raise InputError(
            f"{where}: {place} ({op.op}) is a program for {processor}, made by {compiler}: it addresses the arena by offsets of its "
            f"own, which a new order or plan would make wrong; give peakmem the model from before {compiler}"
        )


def _shapes(graph: Graph, constants: Constants) -> Iterator[str]:
    for k, subgraph in enumerate(graph.subgraphs):
        for i, op in enumerate(subgraph.operators):
            said = unfit(subgraph, op, constants)
            if said:
                yield f"subgraph {k}, operator {i} ({op.op}) {said}"


def _passed(graph: Graph) -> Iterator[str]:
    """IF and WHILE copy their tensors to those of a subgraph, as many bytes as the one or the other has."""
    for k, subgraph in enumerate(graph.subgraphs):
        for i, op in enumerate(subgraph.operators):
            if op.op not in ("IF", "WHILE"):
                continue
            given = op.inputs[1:] if op.op == "IF" else op.inputs
            for number, callee in enumerate(op.callees):
                inner = graph.subgraphs[callee]
                pairs = [(given, inner.inputs)] + ([(op.outputs, inner.outputs)] if op.op == "IF" or number else [])
                for outside, inside in pairs:
                    sizes = [[s.tensors[t].size if t >= 0 else 0 for t in side] for s, side in ((subgraph, outside), (inner, inside))]
                    if sizes[0] != sizes[1]:
                        yield f"subgraph {k}, operator {i} ({op.op}) passes {sizes[0]} bytes where subgraph {callee} has {sizes[1]}"


def _variables(graph: Graph) -> Iterator[str]:
    """Whoever reads or assigns a resource variable takes it to be as large as it was when it was assigned first."""
    sizes: dict[tuple[str, str], tuple[int, str]] = {}
    for k, subgraph in enumerate(graph.subgraphs):
        for i, op in enumerate(subgraph.operators):
            moved = {"ASSIGN_VARIABLE": op.inputs[1:2], "READ_VARIABLE": op.outputs[:1]}.get(op.op, ())
            producer = subgraph.producer.get(op.inputs[0]) if op.inputs else None
            resource = subgraph.operators[producer].resource if producer is not None else None
            if resource is None or not moved or moved[0] < 0:
                continue
            size, name = subgraph.tensors[moved[0]].size, f"operator {i} ({op.op}) of subgraph {k}"
            first, other = sizes.setdefault(resource, (size, name))
            if size != first:
                yield f"{name} takes variable {'/'.join(resource)!r} for {size} bytes, {other} for {first}"
