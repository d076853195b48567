"""Writing a split graph, and judging by a run whether it kept every bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from peakmem.frontends.splitting import Split
from peakmem.model import InputError, Refused

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.facts import Facts, collect
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.graph import Node, all_names, is_constant, read_graph
from peakmem_onnx.protos import import_onnx
from peakmem_onnx.rewrite import replace_nodes
from peakmem_onnx.runtime import ask, scratch
from peakmem_onnx.splitbands import ROWS, OnnxBands, attributes, full_pads

SLICE_BY_INPUTS = 10
"""The first operator set whose Slice takes its ranges as inputs."""

THREADS = (1, 2)
"""Numbers of threads for which bits are compared, beside the one asked for."""


def bands_of(model: Artifact) -> OnnxBands:
    """The model's graph for splitting."""
    opset = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.proto.opset_import}
    bands = OnnxBands(model.graph, model.facts, opset.get("", 0))
    bands.constants = {i.name: tuple(i.dims) for i in model.proto.graph.initializer}
    return bands


def write(model: Artifact, bands: OnnxBands, split: Split) -> Any:
    """The file with the steps of a split as its nodes; kept nodes keep their bytes."""
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    onnx, graph = import_onnx(), bands.graph
    names = all_names([graph]) | {node.name for node in graph.nodes}
    old = len(bands.program.buffers)

    def fresh(name: str) -> str:
        while name in names:
            name += "'"
        names.add(name)
        return name

    value = [b.name for b in bands.program.buffers] + [fresh(part.name) for part in split.parts]

    def rows(buffer: int) -> tuple[int, int]:
        """Start and count."""
        return (split.parts[buffer - old].start, split.parts[buffer - old].count) if buffer >= old else (0, bands.extent(buffer, "rows"))

    numbers: dict[int, str] = {}

    def number(n: int) -> str:
        if n not in numbers:
            numbers[n] = fresh(f"peakmem/{n}")
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([n], np.int64), numbers[n]))
        return numbers[n]

    made: list[bytes] = [node.SerializeToString() for node in proto.graph.node if is_constant(node)]
    for k, step in enumerate(split.steps):
        if step.kind == "keep":
            made.append(graph.nodes[step.statement].proto.SerializeToString())
            continue
        name = fresh(split.program.statements[k].name)
        if step.kind == "join":
            node = onnx.helper.make_node("Concat", [value[b] for b in step.reads], [value[step.writes[0]]], name, axis=ROWS)
        elif step.kind == "cut":
            start, (first, count) = rows(step.reads[0])[0], rows(step.writes[0])
            ends, source, result = (first - start, first - start + count), value[step.reads[0]], [value[step.writes[0]]]
            if bands.opset < SLICE_BY_INPUTS:
                node = onnx.helper.make_node("Slice", [source], result, name, starts=[ends[0]], ends=[ends[1]], axes=[ROWS])
            else:
                node = onnx.helper.make_node("Slice", [source, *map(number, (*ends, ROWS))], result, name)
        else:
            node = _band(bands, step.statement, {bands.program.buffers[b].name: value[c] for b, c in zip(bands.program.statements[step.statement].reads, step.reads)})
            node.name, node.output[0] = name, value[step.writes[0]]
            window = bands.window(step.statement)
            if window is not None:
                banded = bands.rule(step.statement, "rows").banded[0]  # type: ignore[union-attr]
                start, count = rows(step.reads[bands.program.statements[step.statement].reads.index(banded)])
                _pad(bands, bands.graph.nodes[step.statement], node, *window.padding(start, start + count))
        made.append(node.SerializeToString())
    replace_nodes(proto.graph, made)
    del proto.graph.value_info[:]
    return proto


def _band(bands: OnnxBands, statement: int, instead: dict[str, str]) -> Any:
    """The node reading bands."""
    source = bands.graph.nodes[statement].proto
    node = type(source)()
    node.CopyFrom(source)
    for k, name in enumerate(source.input):
        node.input[k] = instead.get(name, name)
    return node


def _pad(bands: OnnxBands, source: Node, node: Any, top: int, bottom: int) -> None:
    """Padding by rows as the band has it; by columns as the whole has it, also where a node left both to the runtime."""
    a = attributes(source)
    kernel = a.get("kernel_shape") or list(bands.constants[source.inputs[3 if source.op == "QLinearConv" else 1]][2:])
    _, left, _, right = full_pads(a, kernel, bands.values[source.inputs[0]].shape, bands.values[source.outputs[0]].shape)
    kept = [x for x in node.attribute if x.name not in ("pads", "auto_pad")]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.append(import_onnx().helper.make_attribute("pads", [top, left, bottom, right]))


def facts_of(model: Artifact, proto: Any, bands: OnnxBands, split: Split) -> Facts:
    """What ONNX Runtime tells of the split file, whose values must have the shapes that the split gives them.

    Raises
    ------
    InputError
        Where they have not, which means a fault in peakmem.
    RuntimeFailed
        Where ONNX Runtime does not run it.
    """
    session = {"threads": model.origin.threads, "external": model.origin.external, "limit": model.origin.limit}
    graph = read_graph(proto.graph)
    with scratch() as folder:
        feeds = write_feeds(model.origin.feeds, folder)
        facts = collect(proto, graph, session=session, feeds=feeds, folder=folder, path=model.path or folder)
    found = facts.values[()]
    names = [name for node in graph.nodes for name in node.outputs]
    for step in split.steps:
        for b in step.writes:
            part = split.parts[b - len(bands.program.buffers)] if b >= len(bands.program.buffers) else None
            original = bands.values[bands.program.buffers[part.buffer if part else b].name].shape
            wanted = (*original[:ROWS], part.count, *original[ROWS + 1 :]) if part else original
            written = part.name if part else bands.program.buffers[b].name
            here = next((found[name].shape for name in (written, *names) if name in found and name.rstrip("'") == written.rstrip("'")), None)
            if here != wanted:
                raise InputError(f"{written} of the split model has the shape {here}, not {wanted} (nothing was written; please report it)")
    return facts


def judge(model: Artifact, made: Artifact) -> None:
    """Run both, and compare all outputs bit for bit, in as many threads as are asked for, in one and in two.

    Raises
    ------
    Refused
        Where a bit differs.
    """
    feeds: Sequence[dict[str, Any]] = [*model.origin.feeds, *([model.origin.contrast] if model.origin.contrast else [])]
    with scratch() as folder:
        files = write_feeds(feeds, folder)
        steps = []
        counts = sorted({model.origin.threads, *THREADS})
        for which, one in enumerate((model, made)):
            path = folder / f"judged{which}.onnx"
            path.write_bytes(one.serialized())
            steps += [
                {"do": "measure", "level": "none", "model": str(path), "feeds_files": files, "external": model.origin.external,
                 "limit": model.origin.limit, **one.session, "threads": n, "outputs": str(folder / f"{which}_{n}.npz")}
                for n in counts
            ]  # fmt: skip
        answers = ask(folder, steps)
        for n, run in zip(counts, answers):
            with np.load(folder / f"0_{n}.npz") as a, np.load(folder / f"1_{n}.npz") as b:
                for k, key in enumerate(run["keys"]):
                    x, y = a[str(k)], b[str(k)]
                    if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                        raise Refused(
                            f"in bands, output {key.split('/', 1)[1]!r} has other bits with {n} thread{'s' if n > 1 else ''}: ONNX Runtime "
                            "adds in another sequence for fewer pixels; name other regions, or another --ort-level"
                        )


def apply(model: Artifact, split: Split) -> tuple[Any, Facts]:
    """The split file and its facts, its nodes in an order that the model's way runs as written."""
    from peakmem_onnx.rewrite import permute

    bands = bands_of(model)
    proto = write(model, bands, split)
    facts = facts_of(model, proto, bands, split)
    graph = read_graph(proto.graph)
    order = model.way.order(graph, None)
    if order != tuple(range(len(order))):
        permute(proto.graph, {"": order})
    return proto, replace(facts)
