"""From a file to a model: optimize, fix the order that ONNX Runtime runs today, gather the facts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from peakmem.model import InputError, RuntimeFailed, RuntimeMissing, UsageError
from peakmem.system.sizes import human

from peakmem_onnx import protos
from peakmem_onnx.artifact import Artifact, Origin
from peakmem_onnx.child import ENDLESS
from peakmem_onnx.facts import Facts, collect_shapes, levels
from peakmem_onnx.feeds import (
    by_shape,
    contrast_of,
    free_axes,
    largest_first,
    make_feeds,
    parse_feeds,
    read_inputs,
    shape_texts,
    shapes_of,
    write_feeds,
)
from peakmem_onnx.graph import Graph, read_graph
from peakmem_onnx.guesses import LARGEST, suggest
from peakmem_onnx.orders import default_order, file_order, priority_order
from peakmem_onnx.planned import LARGEST_REGION
from peakmem_onnx.portable import numbering_of
from peakmem_onnx.process import parse_session
from peakmem_onnx.replaying import unavailable
from peakmem_onnx.rewrite import permute_level
from peakmem_onnx.rules import LEVELS, NCHWC
from peakmem_onnx.runtime import ask, require_runtime, scratch
from peakmem_onnx.ways import ARENA, NODES, PORTABLE, RECIPE, REPLAY, Way, way_of

LIMIT_OF_TRIES = 3
"""Seconds of computing after which no more dimensions are tried for a model that leaves them open."""

GROWN = 0.1
"""Part of weights and activations by which constants must grow before other levels are looked at."""

A = TypeVar("A", bound=Artifact)


def load_model(kind: type[A], path: Path, options: Mapping[str, Any]) -> A:
    """Read an ONNX file.

    A file that peakmem has written is taken as it is. Any other is optimized by ONNX Runtime at ``ort_level`` and its
    nodes are brought into the order in which the optimizing session itself ran them: what ONNX Runtime does today.

    Parameters
    ----------
    kind : type
        What is made: `peakmem_onnx.model.OnnxModel`.
    path : Path
    options : mapping
        See `peakmem_onnx.frontend.OPTIONS`.

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
    deploy, executor = str(options.get("deploy", "auto")), str(options.get("executor", "ort"))
    if deploy not in ("auto", "python") and executor == "nodes":
        raise UsageError(f"--executor nodes: runs every node alone, which --deploy {deploy} does not do; give one of them")
    language = str(options.get("snippet_language", "auto"))
    way = way_of(deploy, executor, language)
    if way is REPLAY and (why := unavailable()):
        raise RuntimeMissing(f"--deploy replay: what a session asks for cannot be recorded: {why}")
    if language == "c" and deploy not in ("arena", "replay"):
        raise UsageError("--snippet-language c: goes with --deploy arena; the texts of replay and portable are for C and C++ at any rate")
    session = tuple(options.get("session", ()))
    parse_session(session)
    marker = protos.read_marker(proto)
    arrays = read_inputs(options.get("inputs", ()))
    # What is said wins; a contradiction is told by name when the arrays are looked at.
    free = {name: axes for name, axes in free_axes(arrays, path).items() if name not in shapes}
    shapes = {**shapes_of(arrays, proto, path), **shapes}
    # A file that peakmem wrote has its dimensions fixed, or it says for which shapes it leaves them open; their names went with that.
    recorded: dict[str, list[int]] = (marker or {}).get("shapes", {})
    if recorded:
        free = protos.open_axes(proto, recorded)
        shapes = {**recorded, **shapes}
    external = str(path.parent.resolve()) if protos.external_files(proto) else ""
    tried = ""
    try:
        protos.fix_dimensions(proto, dims if marker is None else {}, shapes, path, free)
    except protos.OpenDimensions as error:
        session_of_tries = {"threads": 1, "external": external, "limit": LIMIT_OF_TRIES}
        found = suggest(protos.with_shapes(proto, {name: shapes[name] for name in free}), fixed, path, session_of_tries)
        if found is None or not found.runs or not options.get("try_dims"):
            nothing = f"; --try-dims knows no sizes for them with which the inputs have at most {LARGEST:,} elements" if options.get("try_dims") else ""
            raise InputError(f"{error}{found or nothing}") from None
        shapes = {**found.shapes, **shapes}
        protos.fix_dimensions(proto, {}, shapes, path, free)
        tried = f"its open dimensions were given the first sizes tried with which it runs, for which all figures are: {found.options}"
    sets = largest_first(make_feeds(protos.with_shapes(proto, shapes if recorded and not arrays else {}), fixed, path, arrays))
    notes = [tried] if tried else []
    source = b""
    if marker is None:
        protos.name_nodes(proto)
        source = proto.SerializeToString()
    origin = Origin(
        path=path,
        source=source,
        level=str(options.get("ort_level", "all") if marker is None else marker.get("ort_level", "none")),
        threads=int(options.get("threads", 1)),
        external=external,
        feeds=tuple(sets),
        recipe=dict(marker or {}, **({"deploy": deploy} if marker is None else {}), **_recorded(sets[0], free if marker is None else {})),
        blank=not options.get("no_blank_unread"),
        blanked=(),
        version=version,
        contrast=contrast_of(sets[0], fixed, tuple(arrays[0]) if arrays else ()),
        session=session,
        inexact=bool(options.get("accept_inexact")),
        all_levels=bool(options.get("all_levels")),
        limit=int(options.get("run_limit", 0)),
        repeats=int(options.get("repeats", 0)),
    )
    if marker is not None:
        if marker.get("onnxruntime") != version:
            notes.append(f"the model was optimized by onnxruntime {marker.get('onnxruntime')}, {version} runs it now")
        if protos.name_nodes(proto):
            notes.append("nodes without a unique name were given one")
    proto, origin, facts = _studied_lower(proto, origin, way, notes)
    if facts.others:
        notes.append(_several(origin.feeds))
    numbering: tuple[int, ...] = ()
    if way.numbered and (marker is not None or way is not PORTABLE):
        graph = read_graph(proto.graph)
        given = file_order(graph) if marker is not None else numbering_of(graph, file_order(graph))
        order = default_order(graph, given)
        permute_level(proto.graph, order)
        place = {v: i for i, v in enumerate(order)}
        numbering = tuple(place[v] for v in given)
    model = kind(proto, facts, origin, digest, tuple(notes), way, marker is None, numbering)
    if way.planned and model.layout[0] >= LARGEST_REGION:
        raise InputError(
            f"{path}: its region would take {human(model.layout[0])}, and ONNX Runtime plans less than 2 GiB; use --deploy python"
        )
    folded = _folded(model) if marker is None else ""
    return replace(model, remarks=(*model.remarks, folded)) if folded else model


def _recorded(first: Mapping[str, Any], free: Mapping[str, frozenset[int]]) -> dict[str, Any]:
    """What a file has to say of inputs whose shapes it leaves open."""
    return {"shapes": {name: list(first[name].shape) for name in free}} if free else {}


def _several(sets: Sequence[Mapping[str, Any]]) -> str:
    """What is planned for which of several shapes."""
    told = shape_texts([sets[group[0]] for group in by_shape(sets)])
    return (
        f"the file is for {len(told)} shapes: the order is sought and proved for {told[0]}, whose inputs are the largest; for "
        f"{' and '.join(told[1:])} it is replayed, and bytes are the largest of all"
    )


def _folded(model: Artifact) -> str:
    """A sentence where the optimizer makes more of the constants than it saves, and a lower level takes less in all."""
    given = type(model.proto)()
    given.ParseFromString(model.origin.source)
    before, total = protos.weight_bytes(given), model.weight_bytes + model.predicted_bytes
    if model.weight_bytes - before <= GROWN * total:
        return ""
    level = model.origin.level
    others = {one: at_level(model, one) for one in LEVELS[: LEVELS.index(level)]}
    totals = {one: other.weight_bytes + other.predicted_bytes for one, other in others.items()}
    best = min(totals, key=lambda one: totals[one], default=level)
    if totals.get(best, total) >= total:
        return ""
    return (
        f"at --ort-level {level} ONNX Runtime makes {human(model.weight_bytes)} of constants out of {human(before)}; with them the "
        f"order given takes {human(total)}, at --ort-level {best} {human(totals[best])}"
    )


def at_level(model: A, level: str) -> A:
    """A model that was read from a source, as if it had been read with another ``--ort-level``."""
    notes: list[str] = []
    proto, origin, facts = _studied(None, replace(model.origin, level=level, blanked=()), model.way, notes)
    return replace(
        model, proto=proto, facts=facts, origin=origin, remarks=tuple(notes), given=True, numbering=(), written=[],
        regions=[], levelled={},
    )


def _studied_lower(proto: Any, origin: Origin, way: Way, notes: list[str]) -> tuple[Any, Origin, Facts]:
    """`_studied`; where ONNX Runtime cannot optimize the source at its level, at the highest one below at which it can.

    Its optimizer gives up on models whose branches do not all fit the dimensions, which it runs all the same.
    """
    try:
        return _studied(proto, origin, way, notes)
    except InputError as error:
        if not origin.source or ENDLESS in str(error):
            raise
        first = error
    for level in reversed(LEVELS[: LEVELS.index(origin.level)]):
        told = list(notes)
        try:
            found = _studied(proto, replace(origin, level=level), way, told)
        except InputError:
            continue
        notes[:] = [*told, f"the level is {level} instead of {origin.level}: {str(first).removeprefix(f'{origin.path}: ')}"]
        return found
    raise first


def _studied(proto: Any, origin: Origin, way: Way, notes: list[str]) -> tuple[Any, Origin, Facts]:
    """The program of a source (or ``proto``, where there is none), what is known of it then, and its facts."""
    path = origin.path or Path("the model")
    session: dict[str, Any] = {"threads": origin.threads, "external": origin.external, "limit": origin.limit}
    graph: Graph | None = None
    with scratch() as folder:
        try:
            if origin.source:
                proto, origin = _optimized(origin, way, session, notes, folder, path)
            elif len(origin.feeds) > 1:  # of a file that peakmem wrote, whose source may have refused some of them
                _, _, usable = _run_optimizer(proto.SerializeToString(), "none", session, write_feeds(origin.feeds, folder), folder, path)
                origin = _accepting(origin, usable, notes)
            graph = read_graph(proto.graph)
            if way is NODES and any(node.bodies for node in graph.nodes):
                raise InputError(f"{path}: has nodes with bodies (If, Loop, Scan), which --executor nodes does not run; use ort")
            facts = collect_shapes(proto, graph, origin.feeds, session=session, folder=folder, path=path, arena=way.planned)
        except RuntimeFailed as error:
            what, advice = "it", ""
            if graph is not None and origin.source and origin.level != "none":  # the source itself did run
                what, advice = f"what it makes of it at --ort-level {origin.level}", "; try --ort-level none"
            raise InputError(f"{path}: onnxruntime {origin.version} cannot load or run {what}: {error}{advice}") from None
    if facts.unknown:
        more = f" and {len(facts.unknown) - 3} more" if len(facts.unknown) > 3 else ""
        notes.append(f"ONNX Runtime does not tell all shapes of {', '.join(facts.unknown[:3])}{more}; these bodies are not charged")
    return proto, origin, facts


def _optimized(
    origin: Origin, way: Way, session: Mapping[str, Any], notes: list[str], folder: Path, path: Path
) -> tuple[Any, Origin]:
    """What ONNX Runtime makes of the source at the level of ``origin``, its nodes in the order that ran."""
    feeds = write_feeds(origin.feeds, folder)
    proto, executed, usable = _run_optimizer(origin.source, origin.level, session, feeds, folder, path)
    origin = _accepting(origin, usable, notes)
    given = type(proto)()
    given.ParseFromString(origin.source)
    protos.drop_vanished_inputs(proto, given)
    protos.name_nodes(proto)
    recipe = {**origin.recipe, "ort_level": origin.level, "threads": origin.threads, "onnxruntime": origin.version}
    blanked = protos.blank_unread(proto) if origin.blank else []
    if blanked:
        notes.append(
            f"{len(blanked)} unread output{'s were' if len(blanked) > 1 else ' was'} blanked ({', '.join(blanked[:3])}"
            f"{', ...' if len(blanked) > 3 else ''}); ONNX Runtime would hold them to the end of the run"
        )
    protos.write_marker(proto, recipe)
    _arrange(proto, executed, way, notes)
    if sum(node.domain == NCHWC and node.op_type == "ReorderOutput" for node in proto.graph.node) > 1:
        notes.append(
            "ONNX Runtime's layout optimizer places some nodes by their addresses in memory: what other processes run today may need "
            "other bytes than this one did"
        )
    return proto, replace(origin, recipe=recipe, blanked=tuple(blanked))


def _accepting(origin: Origin, usable: Mapping[int, str], notes: list[str]) -> Origin:
    """With the input sets that the model accepts alone."""
    for index in range(len(origin.feeds)):
        if index not in usable:
            notes.append(f"ONNX Runtime refuses inputs of set {index}, which is left out: {usable.get(-1 - index, '')}")
    return replace(origin, feeds=tuple(feeds for index, feeds in enumerate(origin.feeds) if index in usable))


def _run_optimizer(
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
    fixed = priority_order if way in (RECIPE, ARENA) else file_order
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


