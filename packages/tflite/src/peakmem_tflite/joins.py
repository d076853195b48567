"""Joins and slices in place: a tensor that lies inside the one it is joined to, or cut from, from its birth on.

Where the dimensions before the axis of a CONCATENATION are all 1, each of its inputs is one block of its output, in order. If such an
input lies in its block, the join copies that block onto itself, and the two need not be there side by side. So it is with a
STRIDED_SLICE that takes one block of its input. Nothing is overwritten: it is one value under two names, cut into parts that are
born and die one by one, and lie one behind the other in the arena.

Blocks copied onto themselves were compared, bit for bit, on TFLite Micro's portable kernels (``tests/test_joins.py``); neither ESP-NN nor
CMSIS-NN has kernels of its own for the two.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from peakmem_tflite.arena import planned
from peakmem_tflite.flatbuffer import Flat
from peakmem_tflite.graph import Graph, Operator, Subgraph, Tensor
from peakmem_tflite.scratch import ALIGNMENT, rounded

COPIED = frozenset({"FLOAT32", "INT8", "INT16", "INT32", "BOOL"})
"""Elements that joins and slices in place were run with."""

_SUBGRAPHS, _BUFFERS, _OPERATORS, _OPTIONS = 2, 4, 3, 4


@dataclass(frozen=True)
class Family:
    """A tensor of the main subgraph and those that lie inside it.

    Attributes
    ----------
    whole : int
    members : dict of int to int
        Tensor -> the byte of ``whole`` at which it begins.
    parts : tuple of (int, int)
        First byte and end of each part: ``whole``, rounded, cut where a member begins or ends.
    """

    whole: int
    members: dict[int, int]
    parts: tuple[tuple[int, int], ...]

    def covered(self, tensor: int, size: int) -> list[int]:
        """Positions among the parts of those that a tensor of the family, of ``size`` bytes, covers."""
        start = self.members.get(tensor, 0)
        return [k for k, (low, _) in enumerate(self.parts) if start <= low < start + size]


def families(graph: Graph, pairs: Sequence[tuple[int, int]] = ()) -> tuple[Family, ...]:
    """All that may lie inside others; each tensor belongs to one family at most.

    Parameters
    ----------
    graph : Graph
    pairs : sequence of (int, int)
        Overlays, as `peakmem_tflite.overlays.pairs` lists them. A family is left out where it would take one of them away, which
        may be worth more: no output is put on several parts, nor on what is a part of an output. So what is proved of the
        program with parts holds for plans without joins too.
    """
    subgraph = graph.subgraphs[0]
    here = planned(subgraph)
    members: dict[int, dict[int, int]] = {}
    taken: set[int] = set()

    def free(t: int) -> bool:
        return here[t] and t in subgraph.producer and t not in subgraph.inputs

    for i, op in enumerate(subgraph.operators):
        for small, whole, at in blocks(graph, 0, i, op):
            size = subgraph.tensors[small].size
            ends = at + size in (subgraph.tensors[whole].size, rounded(at + size))
            if free(small) and free(whole) and at % ALIGNMENT == 0 and ends and small not in taken | members.keys() | set(subgraph.outputs) and whole not in taken:
                members.setdefault(whole, {})[small] = at
                taken.add(small)
    result = []
    for whole, inside in members.items():
        size = rounded(subgraph.tensors[whole].size)
        cuts = {0, size} | set(inside.values()) | {min(at + rounded(subgraph.tensors[t].size), size) for t, at in inside.items()}
        family = Family(whole, inside, tuple(pairwise(sorted(cuts))))
        if not any(_spoils(subgraph, family, a, o) for a, o in pairs):
            result.append(family)
    return tuple(result)


def _spoils(subgraph: Subgraph, family: Family, a: int, o: int) -> bool:
    """Whether the overlay of ``o`` on ``a`` is none any more if the family lies together."""
    here = [t for t in (a, o) if t == family.whole or t in family.members]
    if len(here) == 2 or (a in here and family.whole in subgraph.outputs):
        return True
    return any(len(family.covered(t, subgraph.tensors[t].size)) > 1 for t in here)


def blocks(graph: Graph, k: int, i: int, op: Operator) -> list[tuple[int, int, int]]:
    """Tensors that an operator copies as a block: the small one, the large one, and at which byte of it; as the file says."""
    subgraph = graph.subgraphs[k]
    if op.custom or len(op.outputs) != 1 or not op.inputs or min(op.inputs) < 0:
        return []
    if op.op == "CONCATENATION":
        return _joined(subgraph, op)
    if op.op == "STRIDED_SLICE" and len(op.inputs) == 4:
        at = _first_byte(graph, k, i, op)
        return [(op.outputs[0], op.inputs[0], at)] if at is not None else []
    return []


def _joined(subgraph: Subgraph, op: Operator) -> list[tuple[int, int, int]]:
    whole = subgraph.tensors[op.outputs[0]]
    if op.axis is None or whole.type not in COPIED or any(subgraph.tensors[t].type != whole.type for t in op.inputs):
        return []
    axis = op.axis + len(whole.shape) if op.axis < 0 else op.axis
    if not 0 <= axis < len(whole.shape) or prod(whole.shape[:axis]) != 1:
        return []
    found, at = [], 0
    for t in op.inputs:
        if op.inputs.count(t) == 1:
            found.append((t, op.outputs[0], at))
        at += subgraph.tensors[t].size
    return found if at == whole.size else []


def _first_byte(graph: Graph, k: int, i: int, op: Operator) -> int | None:
    """Where the block begins that a slice takes; None where it takes no single block."""
    subgraph = graph.subgraphs[k]
    x, y = subgraph.tensors[op.inputs[0]], subgraph.tensors[op.outputs[0]]
    table = Flat(graph.data, "model").root().children(_SUBGRAPHS, "subgraph")[k].children(_OPERATORS, "operator")[i]
    options = table.sub(_OPTIONS, table.what)
    begin, steps = (_numbers(graph, subgraph.tensors[op.inputs[n]]) for n in (1, 3))
    if options is None or begin is None or steps is None or set(steps) != {1} or not x.elements or x.size % x.elements:
        return None
    begin_mask, _, *others = (options.scalar(slot, "i") for slot in range(5))
    if any(others) or options.scalar(5, "b") or x.type != y.type or x.type not in COPIED or not len(begin) == len(x.shape) == len(y.shape):
        return None
    first = 0
    whole = True  # the dimensions seen so far, from the last on, are taken whole
    for axis in reversed(range(len(x.shape))):
        low = 0 if begin_mask >> axis & 1 else begin[axis] + x.shape[axis] * (begin[axis] < 0)
        if low < 0 or low + y.shape[axis] > x.shape[axis] or (y.shape[axis] != 1 and not whole):
            return None
        whole = whole and y.shape[axis] == x.shape[axis]
        first += low * prod(x.shape[axis + 1 :])
    return first * (x.size // x.elements)


def _numbers(graph: Graph, tensor: Tensor) -> tuple[int, ...] | None:
    if not tensor.constant or tensor.type != "INT32":
        return None
    table = Flat(graph.data, "model").root().children(_BUFFERS, "buffer")[tensor.buffer]
    at, count = table.vector(0, 1, "data")
    return struct.unpack_from(f"<{count // 4}i", graph.data, at) if count == tensor.size else None


def sentences(found: Sequence[Family], offsets: Sequence[int]) -> tuple[str, ...]:
    """How many tensors a plan puts inside others."""
    count = sum(offsets[f.whole] >= 0 and offsets[t] == offsets[f.whole] + at for f in found for t, at in f.members.items())
    if not count:
        return ()
    many = f"{count} tensors lie inside what they are" if count > 1 else "a tensor lies inside what it is"
    return (f"{many} joined to or cut from",)
