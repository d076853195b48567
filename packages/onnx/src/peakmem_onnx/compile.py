"""From a file to a model: optimize, fix the order that ONNX Runtime runs today, gather the facts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peakmem.model import InputError, RuntimeFailed, UsageError

from peakmem_onnx import protos
from peakmem_onnx.facts import collect, levels
from peakmem_onnx.feeds import make_feeds, parse_feeds, write_feeds
from peakmem_onnx.graph import Graph, read_graph
from peakmem_onnx.model import OnnxModel, Origin
from peakmem_onnx.orders import default_order, file_order, priority_order
from peakmem_onnx.rewrite import permute_level
from peakmem_onnx.runtime import ask, require_runtime, scratch
from peakmem_onnx.ways import NODES, PORTABLE, RECIPE, Way, way_of


def load_model(path: Path, options: Mapping[str, Any]) -> OnnxModel:
    """Read an ONNX file.

    A file that peakmem has written is taken as it is. Any other is optimized by ONNX Runtime at ``ort_level`` and its
    nodes are brought into the order in which the optimizing session itself ran them: what ONNX Runtime does today.

    Raises
    ------
    InputError, UsageError
        With one sentence, for what cannot be modelled (see `peakmem_onnx.protos.read_model`).
    RuntimeMissing
        Without ONNX Runtime.
    """
    proto = protos.read_model(path)
    version = require_runtime()
    digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    dims = protos.parse_dims(options.get("dim", ()))
    shapes = protos.parse_shapes(options.get("shape", ()))
    fixed = parse_feeds(options.get("feed", ()))
    threads = int(options.get("threads", 1))
    deploy, executor = str(options.get("deploy", "python")), str(options.get("executor", "ort"))
    if deploy == "portable" and executor == "nodes":
        raise UsageError("--executor nodes: runs a file's order, which --deploy portable cannot promise; give one of them")
    way = way_of(deploy, executor)
    marker = protos.read_marker(proto)
    # A file that peakmem wrote has its dimensions fixed; their names went with that.
    protos.fix_dimensions(proto, dims if marker is None else {}, shapes, path)
    sets = make_feeds(proto, fixed, path)
    notes: list[str] = []
    external = str(path.parent.resolve()) if protos.external_files(proto) else ""
    session: dict[str, Any] = {"threads": threads, "external": external}
    with scratch() as folder:
        try:
            if marker is None:
                level = str(options.get("ort_level", "all"))
                protos.name_nodes(proto)
                source = proto.SerializeToString()
                feeds = write_feeds(sets, folder)
                compiled, executed, usable = _optimize(source, level, session, feeds, folder, path)
                for index in reversed(range(len(sets))):
                    if index not in usable:
                        notes.append(f"ONNX Runtime refuses inputs of set {index}, which is left out: {usable.get(-1 - index, '')}")
                        del sets[index]
                protos.drop_vanished_inputs(compiled, proto)
                protos.name_nodes(compiled)
                recipe = {"ort_level": level, "threads": threads, "onnxruntime": version, "deploy": deploy}
                blanked = [] if options.get("no_blank_unread") else protos.blank_unread(compiled)
                if blanked:
                    notes.append(
                        f"{len(blanked)} unread output{'s were' if len(blanked) > 1 else ' was'} blanked ({', '.join(blanked[:3])}"
                        f"{', ...' if len(blanked) > 3 else ''}); ONNX Runtime would hold them to the end of the run"
                    )
                protos.write_marker(compiled, recipe)
                proto = compiled
                _arrange(proto, executed, way, notes)
            else:
                level = str(marker.get("ort_level", "none"))
                recipe = dict(marker)
                source = b""
                blanked = []
                if marker.get("onnxruntime") != version:
                    notes.append(
                        f"the model was optimized by onnxruntime {marker.get('onnxruntime')}, {version} runs it now"
                    )
                if protos.name_nodes(proto):
                    notes.append("nodes without a unique name were given one")
            feeds = write_feeds(sets, folder)
            graph = read_graph(proto.graph)
            if way is NODES and any(node.bodies for node in graph.nodes):
                raise InputError(f"{path}: has nodes with bodies (If, Loop, Scan), which --executor nodes does not run; use ort")
            facts = collect(proto, graph, session=session, feeds=feeds, folder=folder, path=path)
        except RuntimeFailed as error:
            raise InputError(f"{path}: onnxruntime {version} cannot load or run it: {error}") from None
    if facts.unknown:
        notes.append(
            "ONNX Runtime does not tell all shapes of " + ", ".join(facts.unknown) + "; these bodies are not charged"
        )
    origin = Origin(
        path=path,
        source=source,
        level=level,
        threads=threads,
        external=external,
        feeds=tuple(sets),
        recipe=recipe,
        blank=not options.get("no_blank_unread"),
        blanked=tuple(blanked),
        version=version,
    )
    numbering: tuple[int, ...] = ()
    if marker is not None and way is PORTABLE:
        order = default_order(graph)
        permute_level(proto.graph, order)
        numbering = tuple(sorted(range(len(order)), key=order.__getitem__))
    return OnnxModel(proto, facts, origin, digest, tuple(notes), way, marker is None, numbering)


def _optimize(
    source: bytes, level: str, session: Mapping[str, Any], feeds: list[str], folder: Path, path: Path
) -> tuple[Any, list[str], dict[int, str]]:
    """The optimized model, the order in which the optimizing session ran, and which input sets it accepts."""
    model, output = folder / "source.onnx", folder / "optimized.onnx"
    model.write_bytes(source)
    step = {**session, "do": "compile", "level": level, "model": str(model), "output": str(output),
            "feeds_files": feeds, "profile": str(folder / "profile")}
    answer = ask(folder, [step])[0]
    onnx = protos.import_onnx()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(output.read_bytes())
    except Exception:
        raise InputError(f"{path}: what ONNX Runtime saved at level {level} cannot be read; try --ort-level none") from None
    usable = {int(k): v for k, v in answer["accepted"].items()}
    if 0 not in usable:
        raise RuntimeFailed(usable.get(-1, "the run failed"))
    return proto, answer["order"], usable


def _arrange(proto: Any, executed: list[str], way: Way, notes: list[str]) -> None:
    """Put the nodes of every level into the order that ran; for the recipe a fixed point of the priority-based order."""
    fixed = priority_order if way is RECIPE else file_order
    first: dict[str, int] = {}
    for name in executed:
        first.setdefault(name, len(first))
    graph = read_graph(proto.graph)
    # Innermost first, so that a body is rearranged inside a node that has not been moved yet.
    for key, level, level_proto in reversed(list(levels(graph, proto.graph))):
        names = [node.name for node in level.nodes]
        if all(name in first for name in names):
            order = sorted(range(len(names)), key=lambda v: first[names[v]])
            order = list(fixed(level, order)) if _topological(level, order) else []
        else:
            order = []
            if not key:
                notes.append("the order that ONNX Runtime ran could not be matched to the saved nodes; its rule was used")
        permute_level(level_proto, order or fixed(level, default_order(level)))


def _topological(graph: Graph, order: list[int]) -> bool:
    position = {v: i for i, v in enumerate(order)}
    return all(position[u] < position[v] for v, before in enumerate(graph.predecessors) for u in before)


