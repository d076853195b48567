"""How often memory is touched: bytes that one invocation reads and writes in the head and in the tail of the arena."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from peakmem_tflite.arena import planned
from peakmem_tflite.build import buffer_names
from peakmem_tflite.graph import Graph
from peakmem_tflite.macs import macs
from peakmem_tflite.reader import BYTES
from peakmem_tflite.targets import Target, requests


@dataclass(frozen=True)
class Accesses:
    """Bytes touched in one invocation.

    Attributes
    ----------
    head, tail : int
        Tensors and scratch; variables, and multipliers by channel.
    hottest : str
        The tensor of the main subgraph that is touched most; empty where there is none.
    hottest_bytes : int
    """

    head: int
    tail: int
    hottest: str
    hottest_bytes: int


def accesses(graph: Graph, target: Target) -> Accesses:
    """Count them, every operator of every subgraph once.

    A multiplication with addition reads an element of the operator's activations, as the portable kernels do; otherwise a tensor
    is read once by each operator that takes it and written once, and scratch is written and read once. O(operators).
    """
    head = tail = 0
    touched: Counter[int] = Counter()
    for k, s in enumerate(graph.subgraphs):
        here = planned(s, graph.plan[graph.bases[k] :] if graph.plan is not None else None)
        for op in s.operators:
            head += 2 * sum(requests(target, k, s, op))
            work = macs(s, op)
            read = 2 if op.op == "TRANSPOSE_CONV" else 0
            for i, t in enumerate((*op.inputs, *op.outputs)):
                if t < 0 or s.tensors[t].constant:
                    continue
                tensor = s.tensors[t]
                size = work * BYTES.get(tensor.type, 1) if work and i == read else tensor.size
                if here[t]:
                    head += size
                    if k == 0:
                        touched[t] += size
                elif tensor.variable:
                    tail += size
            if op.op in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
                moved = op.outputs[:1] if op.op == "READ_VARIABLE" else op.inputs[1:2]
                tail += sum(s.tensors[t].size for t in moved if t >= 0)
            if work and op.outputs and s.tensors[op.outputs[0]].type != "FLOAT32":
                tail += 8 * s.tensors[op.outputs[0]].elements  # a multiplier and a shift for each result
    most = max(touched, key=lambda t: (touched[t], -t), default=None)
    if most is None:
        return Accesses(head, tail, "", 0)
    return Accesses(head, tail, buffer_names(graph, 0)[most], touched[most])
