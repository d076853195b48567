"""Changing a file without touching what need not change.

An order is realized by exchanging entries of the operator vectors: an entry holds the distance to its operator, so the
entry at position p becomes ``address - p`` of the operator that is to stand there, and nothing else changes. An
offline plan overwrites the one in the file; where there is none, a new root table is put before the old file (see
`peakmem_tflite.prefix`). Either way constants keep their alignment.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from peakmem.model import InputError

from peakmem_tflite.arena import untouched
from peakmem_tflite.flatbuffer import Flat
from peakmem_tflite.graph import PLAN_NAME, Graph
from peakmem_tflite.prefix import MODEL, SUBGRAPH, TENSOR, Prefix, unknown_field

_SUBGRAPHS, _BUFFERS, _METADATA = 2, 4, 6
_TENSORS, _SHAPE = 0, 0


def permute(graph: Graph, orders: Mapping[int, Sequence[int]]) -> bytes:
    """The file with the operators of each subgraph in the given order; as many bytes as before.

    Raises
    ------
    InputError
        When an operator lies before its vector's end, where no distance can reach it (no writer does that).
    """
    data = bytearray(graph.data)
    for k, order in orders.items():
        subgraph = graph.subgraphs[k]
        if list(order) == list(range(len(subgraph.operators))):
            continue
        start = subgraph.vector
        addresses = []
        for j in range(len(subgraph.operators)):
            at = start + 4 * j
            addresses.append(at + struct.unpack_from("<I", graph.data, at)[0])
        for j, i in enumerate(order):
            distance = addresses[i] - (start + 4 * j)
            if distance <= 0:
                raise InputError(f"subgraph {k}: operator {i} is stored where its vector cannot be rearranged")
            struct.pack_into("<I", data, start + 4 * j, distance)
    return bytes(data)


def unplannable(graph: Graph) -> str:
    """Why no plan can be added to this file; empty if one can.

    TFLite Micro looks up the plan of a variable tensor without counting the tensors of earlier subgraphs, so a plan
    could take the storage of a variable in a later subgraph away.
    """
    if unknown_field(Flat(graph.data, "model").root(), MODEL) is not None:
        return "the file's root table has fields this version does not know"
    if any(t.variable for s in graph.subgraphs[1:] for t in s.tensors):
        return "a subgraph other than the main one has variable tensors, whose plan TFLite Micro misreads"
    return ""


def with_plan(graph: Graph, offsets: Sequence[int] | None) -> bytes:
    """The file with this offline plan and no other; None removes what is there.

    Parameters
    ----------
    graph : Graph
    offsets : sequence of int, optional
        For each tensor of all subgraphs counted through, -1 for those left to the interpreter.
    """
    entries = [m for m in graph.metadata if m.name == PLAN_NAME]
    if not entries and offsets is None:
        return graph.data
    count = graph.tensor_count
    if len(entries) == 1 and _private(graph, entries[0].buffer):
        data = bytearray(graph.data)
        struct.pack_into(f"<{count}i", data, entries[0].at + 12, *(offsets or [-1] * count))
        return bytes(data)
    return _prepend(graph, offsets)


def _private(graph: Graph, buffer: int) -> bool:
    """Whether only one metadata entry refers to the buffer."""
    users = sum(t.buffer == buffer for s in graph.subgraphs for t in s.tensors)
    return users + sum(m.buffer == buffer for m in graph.metadata) == 1


def _prepend(graph: Graph, offsets: Sequence[int] | None) -> bytes:
    """A new root, with new vectors of buffers and metadata entries, before the old file."""
    root = Flat(graph.data, "model").root()
    buffers: list[int | str] = [t.at for t in root.children(_BUFFERS, "buffer")]
    entries = entries_without_plan(graph)
    number = len(buffers)
    if offsets is not None:
        buffers.append("buffer")
        entries.append("entry")
    out = Prefix()
    out.copy("root", root, MODEL, {_BUFFERS: "buffers", _METADATA: "entries"})
    out.vector("buffers", buffers)
    out.vector("entries", entries)
    if offsets is not None:
        out.table("buffer", [4])
        out.distance("plan")
        out.table("entry", [4, 8])
        out.distance("name")
        out.put("I", number)
        out.text("name", PLAN_NAME)
        out.align(16, 12)  # so that the data after the vector's length are aligned
        out.mark("plan")
        out.put("I", 4 * (3 + len(offsets)))
        out.bytes += struct.pack(f"<{3 + len(offsets)}i", 1, len(graph.subgraphs), len(offsets), *offsets)
    return out.join(graph)


def entries_without_plan(graph: Graph) -> list[int | str]:
    """Positions of the metadata entries other than the plan."""
    rows = Flat(graph.data, "model").root().children(_METADATA, "metadata entry")
    return [t.at for t, m in zip(rows, graph.metadata) if m.name != PLAN_NAME]


def without_untouched(graph: Graph) -> bytes:
    """The file with the shape [0] for each tensor that no operator and no signature names, so that it takes no memory.

    New are a root and the tables that lead to these tensors, before the old file.
    """
    chosen: dict[int, set[int]] = {}
    for k, t, _ in untouched(graph):
        chosen.setdefault(k, set()).add(t)
    root = Flat(graph.data, "model").root()
    subgraphs = root.children(_SUBGRAPHS, "subgraph")
    out = Prefix()
    out.copy("root", root, MODEL, {_SUBGRAPHS: "subgraphs"})
    out.vector("subgraphs", [f"subgraph {k}" if k in chosen else table.at for k, table in enumerate(subgraphs)])
    for k, numbers in chosen.items():
        tensors = subgraphs[k].children(_TENSORS, "tensor")
        out.copy(f"subgraph {k}", subgraphs[k], SUBGRAPH, {_TENSORS: f"tensors {k}"})
        out.vector(f"tensors {k}", [f"tensor {k} {t}" if t in numbers else table.at for t, table in enumerate(tensors)])
        for t in sorted(numbers):
            out.copy(f"tensor {k} {t}", tensors[t], TENSOR, {_SHAPE: "no elements"})
    out.ints("no elements", [0])
    return out.join(graph)
