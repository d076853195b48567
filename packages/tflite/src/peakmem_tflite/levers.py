"""What could make a file smaller where its order and its plan are proved the best: each lever with its figure, computed here.

A lever is a function of `LEVERS`: it gets the program, the file and its head, and returns a sentence, or none where it does not
apply. A further one (splitting operators into bands, say) is one more function there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from peakmem.arena import Item, liveness_peak
from peakmem.model import Program
from peakmem.report.words import shorten
from peakmem.system.sizes import in_bytes
from peakmem.transform.recompute import floor

from peakmem_tflite.arena import allocations
from peakmem_tflite.graph import Graph, Tensor
from peakmem_tflite.scratch import rounded
from peakmem_tflite.targets import Target

Lever = Callable[[Program, Graph, Target, int], str]


def recomputation(program: Program, graph: Graph, target: Target, head: int) -> str:
    """Running operators twice: what no schedule goes below, however often it runs them."""
    del graph, target
    least = floor(program)
    if least.size < head:
        return f"running operators twice can go no lower than {in_bytes(least.size)} (peakmem recompute shows what that costs)"
    return f"running operators twice cannot help: {least.sentence(program, show=shorten)}"


def smaller_elements(program: Program, graph: Graph, target: Target, head: int) -> str:
    """Activations of 8 bits in the place of floats, at the order of the file."""
    del program
    if not any(t.type == "FLOAT32" and not t.constant for s in graph.subgraphs for t in s.tensors):
        return ""
    small = replace(graph, subgraphs=tuple(replace(s, tensors=tuple(map(_as_int8, s.tensors))) for s in graph.subgraphs))
    buffers = [b for b in allocations(small, target) if b.first >= 0]
    peak = liveness_peak([Item(str(i), b.size, b.first, b.last) for i, b in enumerate(buffers)])
    if peak >= head:
        return ""
    return f"8-bit activations instead of floats would need about {in_bytes(rounded(peak))} (estimated: a quarter of their bytes at this order)"


def _as_int8(tensor: Tensor) -> Tensor:
    return replace(tensor, size=-(-tensor.size // 4)) if tensor.type == "FLOAT32" else tensor


LEVERS: tuple[Lever, ...] = (recomputation, smaller_elements)
"""In the order in which they are named."""


def sentences(program: Program, graph: Graph, target: Target, head: int) -> tuple[str, ...]:
    """Of each lever that applies to a file whose head, ``head`` bytes, no order and no plan can lower."""
    said = (lever(program, graph, target, head) for lever in LEVERS)
    return tuple(f"beyond order and plan: {sentence}" for sentence in said if sentence)
