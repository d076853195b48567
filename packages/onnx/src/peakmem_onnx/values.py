"""Every value of two files compared bit for bit, not their outputs alone.

The values become outputs of sessions of their own, so that the measured sessions stay as they are. Which value of one file
is which of the other is told by their numbers (see `peakmem.frontends.structure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.graph import Graph
from peakmem_onnx.protos import import_onnx
from peakmem_onnx.runtime import ask, scratch
from peakmem_onnx.splitcheck import in_bands, split_numbers

AT_ONCE = 256 << 20
"""Bytes of values that one session gives; a larger value goes alone."""

_NUMPY = frozenset(
    {"float", "double", "float16", "bool", "string", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
)


@dataclass(frozen=True)
class Values:
    """What comparing showed.

    Attributes
    ----------
    compared, whole : int
        Values compared, and values of the second file without its outputs, those of bodies included.
    outputs, sets : int
        Outputs compared, and sets of inputs that ran.
    difference : str
        The first value that differs, as a sentence; empty where none does.
    varied : bool or None
        Whether any of them had other bits for another set of inputs; None with one set.
    notes : tuple of str
    """

    compared: int
    whole: int
    outputs: int
    sets: int
    difference: str
    varied: bool | None
    notes: tuple[str, ...]


def compare_values(first: Artifact, second: Artifact, names: tuple[str, str]) -> Values:
    """Run both with all their values as outputs.

    Parameters
    ----------
    first, second : Artifact
    names : pair of str
        What the two are called in sentences.

    Raises
    ------
    RuntimeFailed
        Where ONNX Runtime does not run them so.
    """
    pairs = _pairs(first, second)
    results = [name for name in second.graph.outputs if name in first.graph.outputs]
    given = (*first.origin.feeds, *((first.origin.contrast,) if first.origin.contrast is not None else ()))
    with scratch() as folder:
        files = write_feeds(given, folder)
        steps = []
        for k, (one, wanted) in enumerate(((first, dict.fromkeys(u for u, _ in pairs)), (second, [v for _, v in pairs]))):
            path = folder / f"values{k}.onnx"
            path.write_bytes(one.serialized())
            steps.append(_step(one, path, files, list(dict.fromkeys((*results, *wanted)))))
        answers = ask(folder, steps)
    notes = []
    refused = [{int(k): text for k, text in answer["refused"].items()} for answer in answers]
    difference = ""
    for index in sorted(refused[0].keys() ^ refused[1].keys()):
        which = 0 if index in refused[0] else 1
        difference = f"{names[which]} refuses inputs that {names[1 - which]} takes: {refused[which][index]}"
    for index in sorted(refused[0].keys() & refused[1].keys()):
        notes.append(f"ONNX Runtime refuses inputs of set {index}; values were not compared with them ({refused[0][index][:200]})")
    left, right = (answer["digests"] for answer in answers)
    if not difference:
        different = [
            f"value {v!r} of {names[1]} differs from {names[0]}"
            for u, v in (*pairs, *((name, name) for name in results))
            if left.get(u) != right.get(v)
        ]
        if different:
            difference = different[0] + (f", and so do {len(different) - 1} more" if len(different) > 1 else "")
    inner = _inside(second.graph)
    if inner:
        notes.append(f"{inner} values inside bodies (If, Loop, Scan) cannot be given out and were not compared one by one")
    sets = len(given) - len(refused[0].keys() | refused[1].keys())
    varied = any(len(set(digests)) > 1 for digests in left.values()) if sets > 1 else None
    return Values(len(pairs), len(_intermediate(second)) + inner, len(results), sets, difference, varied, tuple(notes))


def _intermediate(one: Artifact) -> list[str]:
    """Values of the top level that nodes write, without the outputs."""
    outputs = set(one.graph.outputs)
    return [name for node in one.graph.nodes for name in node.outputs if name and name not in outputs]


def _inside(graph: Graph) -> int:
    """How many values the nodes of all bodies write."""
    bodies = [body for node in graph.nodes for _, body in node.bodies]
    return sum(sum(1 for node in body.nodes for name in node.outputs if name) + _inside(body) for body in bodies)


def _pairs(first: Artifact, second: Artifact) -> list[tuple[str, str]]:
    """Values of the first and of the second file that are the same ones, in the order of the second's nodes."""
    left, right = split_numbers(first, second) if in_bands(first, second) else (first.value_numbers, second.value_numbers)
    known = {left[name]: name for name in (*first.graph.outputs, *_intermediate(first)) if name in left}
    facts = second.facts.values[()]
    return [
        (known[right[name]], name)
        for name in _intermediate(second)
        if right.get(name) in known and facts[name].element in _NUMPY
    ]


def _step(one: Artifact, path: Path, files: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """What the child is to do, in chunks of values that fit into memory together."""
    proto = import_onnx().ModelProto
    facts = one.facts.values[()]
    chunks: list[list[str]] = []
    room = 0
    for name in names:
        size = facts[name].size if name in facts else 0
        if not chunks or size > room:
            chunks.append([])
            room = AT_ONCE
        chunks[-1].append(name)
        room -= size
    known = set(one.graph.outputs)
    tasks = []
    for chunk in chunks:
        more = proto()
        for name in chunk:
            if name not in known:
                more.graph.output.add().name = name
        tasks.append({"names": chunk, "suffix": more.SerializeToString().hex()})
    return {"do": "values", "level": "none", "reuse": True, "limit": one.origin.limit, "threads": one.origin.threads, "external": one.origin.external,
            "model": str(path), "feeds_files": list(files), "chunks": tasks}
