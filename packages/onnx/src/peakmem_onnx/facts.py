"""What ONNX Runtime tells about a model: shapes at every level, workspace per node.

Facts are keyed by names, not positions, so they hold for every permutation of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peakmem.model import InputError

from peakmem_onnx.bodies import carried_by_scan
from peakmem_onnx.feeds import by_shape, write_feeds
from peakmem_onnx.graph import Graph, Value, body_attributes, charge
from peakmem_onnx.macs import macs
from peakmem_onnx.nodewise import alone, constants_of
from peakmem_onnx.protos import import_onnx, real_inputs
from peakmem_onnx.rules import RECURRENT
from peakmem_onnx.runtime import ask, counting_library

Key = tuple[str, ...]
"""Node and attribute names that lead to a level; empty for the top."""


@dataclass(frozen=True)
class Facts:
    """Facts of one model.

    Attributes
    ----------
    values : dict of Key to dict of str to Value
        Level -> value name -> what is known of it; only values of known shape are listed.
    workspace : dict of str to int
        Node name -> bytes of workspace, charged.
    costs : dict of str to int
        Node name -> MACs.
    trips : dict of str to int
        Node with a body -> how often its body runs in one execution.
    unknown : tuple of str
        Levels with values of unknown shape (a body that no input set reaches).
    pieces : dict of str to tuple of (int, int)
        Node name -> requests and releases of its workspace, as `peakmem_onnx.arena.Event`; where that was looked at.
    loading : tuple of (int, int)
        Those of opening a session; only what its arena serves.
    others : tuple of Facts
        The same of inputs of other shapes, in the order in which these were given.
    """

    values: dict[Key, dict[str, Value]]
    workspace: dict[str, int]
    costs: dict[str, int]
    trips: dict[str, int]
    unknown: tuple[str, ...] = ()
    pieces: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    loading: tuple[tuple[int, int], ...] = ()
    others: tuple[Facts, ...] = ()

    @property
    def shapes(self) -> tuple[Facts, ...]:
        """Facts of every shape of the inputs; the first ones are these."""
        return (self, *self.others)

    def repeated(self, repeats: Mapping[str, str]) -> Facts:
        """Facts that also hold for repetitions of nodes and values of the top level (new name -> what it repeats)."""

        def more(table: dict[str, Any]) -> dict[str, Any]:
            return {**table, **{new: table[old] for new, old in repeats.items() if old in table}}

        return replace(
            self,
            values={**self.values, (): more(self.values[()])},
            workspace=more(self.workspace),
            pieces=more(self.pieces),
            costs=more(self.costs),
            others=tuple(other.repeated(repeats) for other in self.others),
        )


def levels(graph: Graph, proto: Any, key: Key = ()) -> Iterator[tuple[Key, Graph, Any]]:
    """All levels, outermost first: (key, graph, GraphProto)."""
    yield key, graph, proto
    for node in graph.nodes:
        for (name, body), (_, body_proto) in zip(node.bodies, body_attributes(node.proto), strict=True):
            yield from levels(body, body_proto, (*key, node.name, name))


def collect_shapes(
    proto: Any, graph: Graph, sets: Sequence[Mapping[str, Any]], *, session: Mapping[str, Any], folder: Path, path: Path, arena: bool = False
) -> Facts:
    """`collect` for every shape of the sets of inputs; see `Facts.others`."""
    found = []
    for index, group in enumerate(by_shape(sets)):
        own = folder / f"shape{index}"
        own.mkdir()
        feeds = write_feeds([sets[k] for k in group], own)
        found.append(collect(proto, graph, session=session, feeds=feeds, folder=own, path=path, arena=arena))
    return replace(found[0], others=tuple(found[1:]))


def collect(
    proto: Any,
    graph: Graph,
    *,
    session: Mapping[str, Any],
    feeds: Sequence[str],
    folder: Path,
    path: Path,
    arena: bool = False,
) -> Facts:
    """Ask ONNX Runtime.

    The planner's view of the shapes comes from sessions in which every value of a level is an output, exact shapes
    and workspace from a profiled run.

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
    arena : bool
        Whether requests are told one by one: `Facts.pieces` and `Facts.loading`.
    """
    model_file = folder / "model.onnx"
    model_file.write_bytes(proto.SerializeToString())
    run = {**session, "do": "statistics", "level": "none", "model": str(model_file), "feeds_files": list(feeds),
           "stats": str(folder / "stats.csv"), "profile": str(folder / "profile")}
    by_depth: dict[int, list[tuple[Key, Graph, Any]]] = {}
    for entry in levels(graph, proto.graph):
        by_depth.setdefault(len(entry[0]), []).append(entry)
    values: dict[Key, dict[str, Value]] = {}
    stats: dict[str, list[int]] = {}
    shapes: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    for depth in sorted(by_depth):
        steps = []
        for index, (key, level, level_proto) in enumerate(by_depth[depth]):
            file = folder / f"exposed{index}.onnx"
            file.write_bytes(_expose(proto, key, level, level_proto, values.get(key[:-2], {})).SerializeToString())
            steps.append({**session, "do": "describe", "level": "none", "model": str(file), "optional": bool(key)})
        answers = ask(folder, [*steps, run] if depth == 0 else steps)
        if depth == 0:
            stats, shapes, counts = (answers[-1][name] for name in ("stats", "shapes", "counts"))
        for (key, level, _), answer in zip(by_depth[depth], answers, strict=False):
            values[key] = _merge(values.get(key[:-2], {}), level, answer.get("values", {}), shapes, path)
    asking = {name for name, (_, size) in stats.items() if size} if arena else set()
    counts_alone = _counted_alone(proto, graph, values, asking, session=session, folder=folder)
    workspace: dict[str, int] = {}
    costs: dict[str, int] = {}
    trips: dict[str, int] = {}
    unknown = []
    for key, level, level_proto in levels(graph, proto.graph):
        sizes = {i.name: tuple(i.dims) for i in (*proto.graph.initializer, *level_proto.initializer)}
        sizes.update({name: value.shape for name, value in values[key].items()})
        for node in level.nodes:
            workspace[node.name] = charge(stats.get(node.name, (0, 0))[1])
            if (node.domain, node.op) in RECURRENT and node.name in counts_alone:
                workspace[node.name] = counts_alone[node.name][0]
            costs[node.name] = macs(node, sizes)
            for _, body in node.bodies:
                ran = max((counts.get(inner.name, 0) for inner in body.nodes), default=0)
                trips[node.name] = max(trips.get(node.name, 0), -(-ran // counts.get(node.name, 1)))
                if node.op == "Scan" and complete(body, values[(*key, node.name, "body")]):
                    inner = [values[(*key, node.name, "body")][name] for name in carried_by_scan(node, body)]
                    turns = min(2, max(0, trips[node.name] - 1))
                    rest = stats.get(node.name, (0, 0))[1] - turns * sum(value.size for value in inner)
                    workspace[node.name] = charge(max(0, rest)) + turns * sum(value.bytes for value in inner)
        if not complete(level, values[key]):
            if not key:
                raise InputError(f"{path}: ONNX Runtime does not tell the shapes of all values")
            unknown.append("/".join(key))
    pieces = {name: events for name, (_, events) in counts_alone.items()} if arena else {}
    loading = _loading(model_file, session, folder) if arena else ()
    return Facts(values, workspace, costs, trips, tuple(unknown), pieces, loading)


def _counted_alone(
    proto: Any,
    graph: Graph,
    values: Mapping[Key, Mapping[str, Value]],
    asking: set[str],
    *,
    session: Mapping[str, Any],
    folder: Path,
) -> dict[str, tuple[int, tuple[tuple[int, int], ...]]]:
    """Workspace of operators that take it in pieces, and of the nodes in ``asking``, counted while each runs alone: bytes, and
    its requests and releases; of those that can be counted so.

    Inputs are zeros, whole numbers the length of the sequence: of neither the workspace depends on more than the shape.
    """
    import numpy as np

    library = counting_library()
    everything = list(levels(graph, proto.graph))
    found = [
        (values[key], node)
        for key, level, _ in everything
        for node in level.nodes
        if (node.domain, node.op) in RECURRENT or node.name in asking
    ]
    if library is None or not found:
        return {}
    known = constants_of([level for _, _, level in everything])
    dtype_of = import_onnx().helper.tensor_dtype_to_np_dtype
    steps: list[dict[str, Any]] = []
    counted = []
    for here, node in found:
        if any(name and name not in known and name not in here for name in (*node.inputs, *node.outputs)):
            continue
        names = [name for name in (*node.inputs, *node.outputs) if name in here]
        types = {name: (element_type(here[name].element), list(here[name].shape)) for name in names}
        single, inputs, _ = alone(proto, node.proto, known, types)
        length = here[node.inputs[0]].shape[0] if (node.domain, node.op) in RECURRENT and node.inputs[0] in here else 0
        feeds = {}
        for name in inputs:
            dtype = np.dtype(dtype_of(types[name][0]))
            feeds[name] = np.full(types[name][1], length if dtype.kind in "iu" else 0, dtype)
        place = folder / f"alone{len(steps)}"
        place.mkdir()
        (place / "model.onnx").write_bytes(single.SerializeToString())
        steps.append({**session, "do": "measure", "level": "none", "model": str(place / "model.onnx"), "trace": True,
                      "feeds_files": write_feeds([feeds], place), "optional": True})
        counted.append((node, [here[name].bytes for name in node.outputs if name]))
    answers = zip(counted, ask(folder, steps, preload=library), strict=True)
    return {
        node.name: (answer["peaks"][0][1] - sum(outputs), _without(outputs, answer["trace"]))
        for (node, outputs), answer in answers
        if "peaks" in answer
    }


def _without(outputs: Sequence[int], trace: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Events of a trace (see `peakmem_onnx.child`) but for the first requests of the sizes given."""
    left = list(outputs)
    number = -1
    theirs: set[int] = set()
    events = []
    for entry in trace:
        if entry < 0:
            if -1 - entry not in theirs:
                events.append((-1 - entry, -1))
            continue
        number += 1
        if entry in left:
            left.remove(entry)
            theirs.add(number)
        else:
            events.append((number, entry))
    return tuple(events)


def _loading(model: Path, session: Mapping[str, Any], folder: Path) -> tuple[tuple[int, int], ...]:
    """What opening a session asks of the arena: all that it takes of the C library without one, less what it takes with one."""
    library = counting_library()
    if library is None:
        return ()
    step = {**session, "do": "load", "level": "none", "model": str(model), "priority": True}
    plain, served = (ask(folder, [{**step, **more}], preload=library)[0]["trace"] for more in ({}, {"chunk": _UNUSUAL}))
    return _without([size for size in served if size >= 0 and size != _UNUSUAL], plain)


_UNUSUAL = (256 << 20) + 7 * 256
"""Bytes of a region that nothing else has, and that no loading exceeds."""


def complete(graph: Graph, values: Mapping[str, Value]) -> bool:
    """Whether every value that the nodes of a level write has a known shape."""
    return all(name in values for node in graph.nodes for name in node.outputs if name)


def _merge(
    outer: Mapping[str, Value],
    level: Graph,
    described: Mapping[str, Mapping[str, Any]],
    ran: Mapping[str, Sequence[Any]],
    path: Path,
) -> dict[str, Value]:
    """Values of a level: what the planner knows of them from ``described``, how large they were from ``ran``."""
    exact: dict[str, tuple[str, tuple[int, ...]]] = {}
    for node in level.nodes:
        names = [name for name in node.outputs if name]
        rows = ran.get(node.name, ())
        if len(rows) == len(names):
            exact.update({n: (f"tensor({kind})", tuple(shape)) for n, (kind, shape) in zip(names, rows, strict=True)})
    found = dict(outer)
    for name in dict.fromkeys([*described, *exact]):
        row = described.get(name)
        kind = row["type"] if row is not None else exact[name][0]
        if not kind.startswith("tensor("):
            raise InputError(
                f"{path}: value {name!r} is of type {kind}, whose memory peakmem does not model; replace it by tensors"
            )
        planned = None
        if row is not None and row["planned"] is not None:
            planned = tuple("" if d is None else d for d in row["planned"])
            if planned == () and (name not in exact or exact[name][1] != ()):
                planned = None  # told as a scalar, but it may be of unknown rank (see `child.describe`)
        shape = exact[name][1] if name in exact else planned
        if shape is not None and all(isinstance(d, int) for d in shape):
            found[name] = Value(kind, planned, tuple(int(d) for d in shape))
    return found


def _expose(proto: Any, key: Key, level: Graph, level_proto: Any, outer: Mapping[str, Value]) -> Any:
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
                tensor.elem_type = element_type(value.element)
                if value.planned is not None:
                    tensor.shape.SetInParent()
                    for d in value.planned:
                        dim = tensor.shape.dim.add()
                        if isinstance(d, int):
                            dim.dim_value = d
                        elif d:
                            dim.dim_param = d
    del model.graph.output[:]
    done = {v.name for v in real_inputs(model.graph)} | level.initializers
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


def element_type(element: str) -> int:
    """ONNX's number for ONNX Runtime's name of an element type."""
    return int(getattr(import_onnx().TensorProto, _ELEMENTS.get(element, element.upper())))
