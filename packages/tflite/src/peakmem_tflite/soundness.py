"""What kernels take on trust, checked before anything is made of a file.

TFLite Micro looks at few shapes while it prepares. Where they do not fit together its kernels read and write past their
tensors, so that what lies beside a tensor decides the result, and moving tensors changes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from peakmem.model import InputError

from peakmem_tflite.graph import Graph, Operator, Subgraph

_COMPILED = {"ethos-u": ("an Arm Ethos-U", "Vela"), "ethos-u85": ("an Arm Ethos-U", "Vela")}
"""Custom operators that hold a program for another processor: which one, and who compiles them."""


def check_sound(graph: Graph, where: str) -> None:
    """Raise `InputError` for the first operator whose tensors do not fit together, or that no order may be changed around."""
    for sentence in (*_channels(graph), *_variables(graph)):
        raise InputError(f"{where}: {sentence}; kernels would read or write past their tensors, convert the model anew")


def check_not_compiled(op: Operator, where: str, place: str) -> None:
    """Raise `InputError` for an operator whose command stream addresses the arena itself."""
    if op.custom and op.op in _COMPILED:
        processor, compiler = _COMPILED[op.op]
        raise InputError(
            f"{where}: {place} ({op.op}) is a program for {processor}, made by {compiler}: it addresses the arena by offsets of its "
            f"own, which a new order or plan would make wrong; give peakmem the model from before {compiler}"
        )


def _channels(graph: Graph) -> Iterator[str]:
    for k, subgraph in enumerate(graph.subgraphs):
        for i, op in enumerate(subgraph.operators):
            said = _unfit(subgraph, op)
            if said:
                yield f"subgraph {k}, operator {i} ({op.op}) {said}"


def _unfit(subgraph: Subgraph, op: Operator) -> str:
    """What does not fit, by the operators whose kernels take channels from one tensor and loop over another."""
    tensors = [subgraph.tensors[t] if t >= 0 else None for t in op.inputs]
    if op.custom or not op.outputs or not tensors or tensors[0] is None:
        return ""
    x, w, y = tensors[0], tensors[1] if len(tensors) > 1 else None, subgraph.tensors[op.outputs[0]]
    if op.op in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        return _differ(x.shape[-1:], y.shape[-1:], "pools {} channels into {}")
    if w is None or not w.shape or not y.shape or not x.shape:
        return ""
    if op.op == "DEPTHWISE_CONV_2D":
        return _differ(w.shape[-1:], y.shape[-1:], "gives {1} channels with a filter of {0}")
    if op.op == "CONV_2D" and len(w.shape) == 4:
        if w.shape[3] == 0 or x.shape[-1] % w.shape[3]:
            return f"reads {x.shape[-1]} channels with a filter of {w.shape[3]}"
        return _differ(w.shape[:1], y.shape[-1:], "gives {1} channels with {0} filters")
    if op.op == "FULLY_CONNECTED" and len(w.shape) == 2 and x.elements * w.shape[0] != y.elements * w.shape[1]:
        return f"gives {y.elements} elements from {x.elements} with weights of {w.shape[0]} x {w.shape[1]}"
    return ""


def _differ(a: tuple[int, ...], b: tuple[int, ...], sentence: str) -> str:
    return sentence.format(*a, *b) if a and b and a != b else ""


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
