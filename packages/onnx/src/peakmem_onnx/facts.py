"""What ONNX Runtime tells about a model: shapes at every level, workspace per node.

Facts are keyed by names, not positions, so they hold for every permutation of the nodes. A level is named by the
path of the nodes and attributes that lead to it: ``""`` is the top, ``"If_3/then_branch"`` a body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peakmem.errors import InputError, RuntimeFailed
from peakmem_onnx.graph import Graph, Value, charge
from peakmem_onnx.macs import macs
from peakmem_onnx.protos import body_attributes, import_onnx, real_inputs
from peakmem_onnx.runtime import ask


@dataclass(frozen=True)
class Facts:
    """Facts of one model.

    Attributes
    ----------
    values : dict of str to dict of str to Value
        Level -> value name -> what is known of it.
    workspace : dict of str to int
        Node name -> bytes of workspace, charged.
    costs : dict of str to int
        Node name -> MACs.
    unknown : tuple of str
        Levels whose shapes ONNX Runtime could not tell (a body that its inputs never reach).
    """

    values: dict[str, dict[str, Value]]
    workspace: dict[str, int]
    costs: dict[str, int]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def levels(graph: Graph, proto: Any, prefix: str = "") -> Iterator[tuple[str, Graph, Any]]:
    """All levels, outermost first: (path, graph, GraphProto)."""
    yield prefix, graph, proto
    for node, node_proto in zip(graph.nodes, proto.node, strict=True):
        for (name, body), (_, body_proto) in zip(node.bodies, body_attributes(node_proto), strict=True):
            yield from levels(body, body_proto, f"{prefix}{node.name}/{name}" if not prefix else f"{prefix}/{node.name}/{name}")


def collect(
    proto: Any, graph: Graph, *, session: Mapping[str, Any], feeds: Sequence[str], folder: Path, path: Path
) -> Facts:
    """Ask ONNX Runtime.

    Parameters
    ----------
    proto, graph
        The optimized model, with unique node names.
    session : mapping
        Session settings for the child (threads, external data).
    feeds : sequence of str
        Files with inputs.
    folder : Path
        For files of the conversation.
    path : Path
        For messages.
    """
    values: dict[str, dict[str, Value]] = {}
    unknown: list[str] = []
    model_file = folder / "model.onnx"
    model_file.write_bytes(proto.SerializeToString())
    for key, level, level_proto in levels(graph, proto.graph):
        known = {} if not key else values.get(key.rpartition("/")[0].rpartition("/")[0], {})
        try:
            values[key] = _describe(proto, key, level, level_proto, known, session, feeds, folder)
        except RuntimeFailed as error:
            if not key:
                raise
            values[key] = {}
            unknown.append(f"{key} ({error})")
    for key, found in values.items():
        for name, value in found.items():
            if not value.type.startswith("tensor("):
                raise InputError(
                    f"{path}: value {name!r} is of type {value.type}, whose memory peakmem does not model; "
                    "replace it by tensors"
                )
            if value.shape == (-1,):
                unknown.append(key)
                break
    stats = ask(folder, [{**session, "do": "statistics", "level": "none", "model": str(model_file),
                          "feeds_files": list(feeds), "stats": str(folder / "stats.csv")}])["statistics"]["stats"]
    workspace = {}
    costs = {}
    for key, level, level_proto in levels(graph, proto.graph):
        shapes = _shapes(values, key, level_proto, proto)
        for node in level.nodes:
            workspace[node.name] = charge(stats.get(node.name, (0, 0))[1])
            costs[node.name] = macs(node, shapes)
    return Facts(values, workspace, costs, tuple(dict.fromkeys(unknown)))


def _shapes(values: Mapping[str, Mapping[str, Value]], key: str, level: Any, proto: Any) -> dict[str, tuple[int, ...]]:
    shapes = {i.name: tuple(i.dims) for i in proto.graph.initializer}
    shapes.update({i.name: tuple(i.dims) for i in level.initializer})
    parent = key
    chain = [key]
    while parent:
        parent = parent.rpartition("/")[0].rpartition("/")[0]
        chain.append(parent)
    for k in reversed(chain):
        shapes.update({name: value.shape for name, value in values.get(k, {}).items()})
    return shapes


def _describe(
    proto: Any,
    key: str,
    level: Graph,
    level_proto: Any,
    outer: Mapping[str, Value],
    session: Mapping[str, Any],
    feeds: Sequence[str],
    folder: Path,
) -> dict[str, Value]:
    exposed = _expose(proto, key, level, level_proto, outer)
    file = folder / "exposed.onnx"
    file.write_bytes(exposed.SerializeToString())
    answer = ask(folder, [{**session, "do": "describe", "level": "none", "model": str(file),
                           "feeds_files": list(feeds) if not key else []}])["describe"]
    found = dict(outer)
    for name, row in answer["values"].items():
        planned = None if row["planned"] is None else tuple("" if d is None else d for d in row["planned"])
        shape = row.get("shape", planned)
        if shape is None or not all(isinstance(d, int) for d in shape):
            shape = (-1,)
        found[name] = Value(row["type"], planned, tuple(shape))
    return found


def _expose(proto: Any, key: str, level: Graph, level_proto: Any, outer: Mapping[str, Value]) -> Any:
    """The level as a model of its own whose outputs are all its values."""
    onnx = import_onnx()
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    if key:
        model.graph.CopyFrom(level_proto)
        weights = {i.name: i for i in proto.graph.initializer}
        for name in sorted(level.outer):
            if name in weights:
                model.graph.initializer.add().CopyFrom(weights[name])
            elif name in outer:
                value = outer[name]
                info = model.graph.input.add()
                info.name = name
                tensor = info.type.tensor_type
                tensor.elem_type = _element_type(onnx, value.element)
                if value.planned is not None:
                    tensor.shape.SetInParent()
                    for d in value.planned:
                        dim = tensor.shape.dim.add()
                        if isinstance(d, int):
                            dim.dim_value = d
                        elif d:
                            dim.dim_param = d
    del model.graph.output[:]
    done = {v.name for v in real_inputs(model.graph)} | {i.name for i in model.graph.initializer}
    declared = {v.name: v for v in (*level_proto.output, *level_proto.value_info)}
    for node in level.nodes:
        for name in node.outputs:
            if name and name not in done:
                done.add(name)
                info = model.graph.output.add()
                info.name = name
                if name in declared and name in level.outputs:
                    info.CopyFrom(declared[name])
    return model


_ELEMENTS = {"float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOL", "string": "STRING"}


def _element_type(onnx: Any, element: str) -> int:
    return int(getattr(onnx.TensorProto, _ELEMENTS.get(element, element.upper())))
