"""Writing a split graph, and judging by a run whether it kept every bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from peakmem.frontends.splitting import Axis, Split, Step
from peakmem.model import InputError, Refused

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.facts import Facts, collect
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.graph import Graph, all_names, is_constant, read_graph
from peakmem_onnx.protos import import_onnx
from peakmem_onnx.rewrite import permute, replace_nodes
from peakmem_onnx.rules import NCHWC
from peakmem_onnx.runtime import ask, scratch
from peakmem_onnx.splitbands import OnnxBands
from peakmem_onnx.splitkernels import DIMENSION, ROWS, Known, Told

SLICE_BY_INPUTS = 10
"""The first operator set whose Slice takes its ranges as inputs."""

THREADS = (1, 2)
"""Numbers of threads for which bits are compared, beside the one asked for."""


def bands_of(model: Artifact) -> OnnxBands:
    """The model's graph for splitting."""
    versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.proto.opset_import}
    graph = model.proto.graph
    known = Known(model.facts.values[()], {i.name: i for i in graph.initializer}, frozenset(v.name for v in graph.input), versions.get("", 0))
    block = block_size() if any(node.domain == NCHWC for node in model.graph.nodes) else 0
    return OnnxBands(model.graph, model.facts, known, block)


@cache
def block_size() -> int:
    """Channels of a block of ONNX Runtime's kernels on this machine, as it lays out two pixels of many channels; 0 where it has none."""
    onnx = import_onnx()
    h, most = onnx.helper, 64
    value = [h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, most, 1, 2]) for name in ("x", "y")]
    nodes = [h.make_node("ReorderInput", ["x"], ["b"], "r", domain=NCHWC), h.make_node("Identity", ["b"], ["y"], "i")]
    opsets = [h.make_opsetid("", 17), h.make_opsetid(NCHWC, 1)]
    proto = h.make_model(h.make_graph(nodes, "g", value[:1], value[1:]), opset_imports=opsets, ir_version=8)
    numbers = np.arange(2 * most, dtype=np.float32).reshape(1, most, 1, 2)
    with scratch() as folder:
        (folder / "m.onnx").write_bytes(proto.SerializeToString())
        step = {"do": "measure", "level": "none", "model": str(folder / "m.onnx"), "feeds_files": write_feeds([{"x": numbers}], folder),
                "threads": 1, "external": "", "outputs": str(folder / "y.npz"), "optional": True}  # fmt: skip
        if "error" in ask(folder, [step])[0]:
            return 0
        with np.load(folder / "y.npz") as found:
            laid = found["0"].ravel().tolist()
    block = laid.index(1.0)  # the second pixel of channel 0 stands behind the first pixel's channels of the block
    expected = numbers.reshape(most // block, block, 2).transpose(0, 2, 1) if most % block == 0 else numbers[:0]
    return block if expected.ravel().tolist() == laid else 0


class _Writer:
    """Nodes of a split graph, one step after the other."""

    def __init__(self, proto: Any, bands: OnnxBands, split: Split) -> None:
        self.proto, self.bands, self.split = proto, bands, split
        self.names = all_names([bands.graph]) | {node.name for node in bands.graph.nodes}
        self.first = len(bands.program.buffers)  # of the parts
        self.value = [b.name for b in bands.program.buffers] + [self.fresh(part.name) for part in split.parts]
        self.nodes: list[bytes] = [node.SerializeToString() for node in proto.graph.node if is_constant(node)]
        self._constants: dict[object, str] = {}

    def fresh(self, name: str) -> str:
        while name in self.names:
            name += "'"
        self.names.add(name)
        return name

    def numbers(self, *values: int) -> str:
        """A constant."""
        return self.constant(values, "peakmem/" + "_".join(map(str, values)), lambda: np.array(values, np.int64))

    def cut(self, name: str, dimension: int, start: int, count: int) -> str:
        """Entries of a constant along a dimension."""
        whole = self.bands.known.array(name)
        if count == whole.shape[dimension]:
            return name
        key = (name, dimension, start, count)
        return self.constant(key, f"{name} [{dimension}: {start}:{start + count}]", lambda: whole.take(range(start, start + count), dimension))

    def constant(self, key: object, name: str, made: Callable[[], Any]) -> str:
        """A constant of this content, written once."""
        if key not in self._constants:
            self._constants[key] = self.fresh(name)
            self.proto.graph.initializer.append(import_onnx().numpy_helper.from_array(made(), self._constants[key]))
        return self._constants[key]

    def add(self, op: str, inputs: Sequence[str], output: str, name: str, **more: Any) -> None:
        self.nodes.append(import_onnx().helper.make_node(op, inputs, [output], name, **more).SerializeToString())

    def span(self, buffer: int, axis: Axis) -> tuple[int, int]:
        """Start and count."""
        part = self.split.parts[buffer - self.first] if buffer >= self.first else None
        return (part.start, part.count) if part else (0, self.bands.extent(buffer, axis))

    def original(self, buffer: int) -> str:
        """The value that a buffer is, or is part of."""
        return self.bands.program.buffers[self.split.parts[buffer - self.first].buffer if buffer >= self.first else buffer].name

    def shape(self, buffer: int) -> tuple[int, ...]:
        """The shape that its value must have."""
        shape = list(self.bands.values[self.original(buffer)].shape)
        if buffer >= self.first:
            part = self.split.parts[buffer - self.first]
            shape[DIMENSION[part.axis]] = part.count
        return tuple(shape)

    def moved(self, k: int, step: Step) -> None:
        """A cut or a join; blocked values are viewed as what has rows."""
        bands, sources, result = self.bands, [self.value[b] for b in step.reads], self.value[step.writes[0]]
        name, along = self.fresh(self.split.program.statements[k].name), DIMENSION[step.axis]
        view = bands.view(self.original(step.writes[0]))
        target = result
        if view is not None:
            for i, b in enumerate(step.reads):
                viewed = self.fresh(f"{sources[i]} viewed")
                self.add("Reshape", [sources[i], self.numbers(*view[:ROWS], self.span(b, "rows")[1], view[3])], viewed, self.fresh(f"{name} view {i}"))
                sources[i] = viewed
            target = self.fresh(f"{result} viewed")
        if step.kind == "join":
            self.add("Concat", sources, target, name, axis=along)
        else:
            start = self.span(step.writes[0], step.axis)[0] - self.span(step.reads[0], step.axis)[0]
            end = start + self.span(step.writes[0], step.axis)[1]
            if bands.known.opset < SLICE_BY_INPUTS:
                self.add("Slice", sources, target, name, starts=[start], ends=[end], axes=[along])
            else:
                self.add("Slice", [*sources, *map(self.numbers, (start, end, along))], target, name)
        if view is not None:
            self.add("Reshape", [target, self.numbers(*self.shape(step.writes[0]))], result, self.fresh(f"{name} back"))

    def run(self, k: int, step: Step) -> None:
        """A node on a band."""
        bands, statement = self.bands, self.bands.program.statements[step.statement]
        kernel, source = bands.kernel(step.statement, step.axis), bands.graph.nodes[step.statement]
        assert not isinstance(kernel, str)
        node = type(source.proto)()
        node.CopyFrom(source.proto)
        instead = {bands.program.buffers[b].name: c for b, c in zip(statement.reads, step.reads)}
        start, count = self.span(step.writes[0], step.axis)
        for i, name in enumerate(source.inputs):
            if i in kernel.cuts:
                node.input[i] = self.cut(name, kernel.cuts[i], start, count)
            elif name in instead:
                node.input[i] = self.value[instead[name]]
        node.name, node.output[0] = self.fresh(self.split.program.statements[k].name), self.value[step.writes[0]]
        if kernel.told is not None:
            first, rows = self.span(instead[kernel.banded[0]], step.axis)
            self.tell(node, kernel.told((first, first + rows), (start, count)))
        self.nodes.append(node.SerializeToString())

    def tell(self, node: Any, told: Told) -> None:
        """Attributes and operands that a band has otherwise."""
        kept = [x for x in node.attribute if x.name not in told]
        del node.attribute[:]
        node.attribute.extend(kept)
        for what, value in told.items():
            if isinstance(what, int):
                node.input[what] = self.numbers(*value)
            elif value is not None:
                node.attribute.append(import_onnx().helper.make_attribute(what, value))


def write(model: Artifact, bands: OnnxBands, split: Split) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The file with the steps of a split as its nodes, and the shapes that what they write must have; kept nodes keep their bytes."""
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    writer = _Writer(proto, bands, split)
    for k, step in enumerate(split.steps):
        if step.kind == "keep":
            writer.nodes.append(bands.graph.nodes[step.statement].proto.SerializeToString())
        elif step.kind == "run":
            writer.run(k, step)
        else:
            writer.moved(k, step)
    replace_nodes(proto.graph, writer.nodes)
    del proto.graph.value_info[:]
    _drop_unread(proto.graph, bands.graph)
    return proto, {writer.value[b]: writer.shape(b) for step in split.steps for b in step.writes}


def _drop_unread(graph: Any, before: Graph) -> None:
    """Constants that only whole nodes read, which are not run any more, go."""
    after = read_graph(graph)
    unread = _read(before) - _read(after)
    kept = [i for i in graph.initializer if i.name not in unread]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _read(graph: Graph) -> set[str]:
    return {*graph.outputs, *graph.inputs, *(name for node in graph.nodes for name in node.reads)}


def facts_of(model: Artifact, proto: Any, shapes: Mapping[str, tuple[int, ...]]) -> Facts:
    """What ONNX Runtime tells of the split file, whose values must have these shapes.

    Raises
    ------
    InputError
        Where they have not, which means a fault in peakmem.
    RuntimeFailed
        Where ONNX Runtime does not run it.
    """
    session = {"threads": model.origin.threads, "external": model.origin.external, "limit": model.origin.limit}
    with scratch() as folder:
        feeds = write_feeds(model.origin.feeds, folder)
        facts = collect(proto, read_graph(proto.graph), session=session, feeds=feeds, folder=folder, path=model.path or folder)
    for name, wanted in shapes.items():
        if facts.values[()][name].shape != wanted:
            raise InputError(
                f"{name} of the split model has the shape {list(facts.values[()][name].shape)}, not {list(wanted)} (nothing was written; please report it)"
            )
    return facts


def judge(model: Artifact, made: Artifact, joined: Sequence[str] = ()) -> None:
    """Run both, and compare all outputs and ``joined`` values bit for bit, in as many threads as are asked for, in one and in two.

    An output may be the same whatever goes in, as of a model with made-up weights; what is joined seldom is.

    Raises
    ------
    Refused
        Where a bit differs.
    """
    feeds: Sequence[dict[str, Any]] = [*model.origin.feeds, *([model.origin.contrast] if model.origin.contrast else [])]
    with scratch() as folder:
        for n, a, b in _runs(model, made, joined, joined, feeds, folder):
            for key, x in a.items():
                if not _same(x, b[key]):
                    raise Refused(
                        f"in bands, {key.split('/', 1)[1]!r} has other bits with {n} thread{'s' if n > 1 else ''}: ONNX Runtime "
                        "adds in another sequence for fewer pixels; name other regions, or another --ort-level"
                    )


def culprits(model: Artifact, made: Artifact, split: Split) -> tuple[tuple[int, Axis], ...]:
    """The nodes a band of which gives other bits for the same rows; one run each, with all bands as outputs."""
    bands = bands_of(model)
    writer = _Writer(type(model.proto)(), bands, split)
    parts = [(step, writer.value[step.writes[0]]) for step in split.steps if step.kind in ("run", "cut")]
    wholes = list(dict.fromkeys(writer.original(step.writes[0]) for step, _ in parts))
    shown = [name for name in wholes if name not in model.graph.inputs and name not in model.graph.outputs]
    found: set[tuple[int, Axis]] = set()
    with scratch() as folder:
        for _, a, b in _runs(model, made, shown, [name for _, name in parts], model.origin.feeds[:1], folder):
            given = {f"0/{name}": x for name, x in model.origin.feeds[0].items()}
            same: set[int] = set(range(writer.first))
            for step, name in parts:
                part, whole = step.writes[0], writer.original(step.writes[0])
                start, count = writer.span(part, step.axis)
                shape = bands.view(whole) or bands.values[whole].shape
                rows = (a if f"0/{whole}" in a else given)[f"0/{whole}"].reshape(shape).take(range(start, start + count), DIMENSION[step.axis])
                if _same(rows, b[f"0/{name}"].reshape(rows.shape)):
                    same.add(part)
                elif step.kind == "run" and same.issuperset(step.reads):
                    found.add((step.statement, step.axis))
    return tuple(sorted(found))


def _same(x: Any, y: Any) -> bool:
    return bool(x.dtype == y.dtype and x.shape == y.shape and np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes())


def _runs(
    first: Artifact, second: Artifact, shown: Sequence[str], there: Sequence[str], feeds: Sequence[dict[str, Any]], folder: Path
) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """For numbers of threads, the outputs of both by set and name, ``shown`` values of the first and others of the second among them."""
    files = write_feeds(feeds, folder)
    counts = sorted({first.origin.threads, *THREADS})
    steps = []
    for which, (one, names) in enumerate(((first, shown), (second, there))):
        path = folder / f"run{which}.onnx"
        proto = type(one.proto)()
        proto.ParseFromString(one.serialized())
        proto.graph.output.extend(import_onnx().ValueInfoProto(name=name) for name in names)
        path.write_bytes(proto.SerializeToString())
        steps += [
            {"do": "measure", "level": "none", "model": str(path), "feeds_files": files, "external": first.origin.external,
             "limit": first.origin.limit, **one.session, "threads": n, "outputs": str(folder / f"{which}_{n}.npz")}
            for n in counts
        ]  # fmt: skip
    answers = ask(folder, steps)
    for k, n in enumerate(counts):
        both = []
        for which, answer in enumerate((answers[k], answers[len(counts) + k])):
            with np.load(folder / f"{which}_{n}.npz") as found:
                both.append({key: found[str(i)] for i, key in enumerate(answer["keys"])})
        yield n, both[0], both[1]


def apply(model: Artifact, split: Split) -> tuple[Any, Facts, list[str]]:
    """The split file, its nodes in an order that the model's way runs as written, its facts, and the inner values that are joined in it."""
    bands = bands_of(model)
    proto, shapes = write(model, bands, split)
    facts = facts_of(model, proto, shapes)
    permute(proto.graph, {"": model.way.order(read_graph(proto.graph), None)})
    whole = {b.name for b in bands.program.buffers} - set(model.graph.outputs)
    return proto, facts, sorted(b.name for step in split.steps if step.kind == "join" for b in (split.program.buffers[w] for w in step.writes) if b.name in whole)
