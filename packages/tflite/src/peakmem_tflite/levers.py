"""What could make a file smaller where its order and its plan are proved the best: each lever with its figure, computed here.

A lever is a function of `LEVERS`: it gets the file with its best orders and returns a sentence, or none where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from peakmem.arena import Item, liveness_peak
from peakmem.frontends.splitting import Splittable
from peakmem.model import Program
from peakmem.report.words import shorten
from peakmem.system.sizes import in_bytes
from peakmem.transform.recompute import floor
from peakmem.transform.recompute.reruns import parse_extra_macs
from peakmem.transform.split import DEFAULT_MACS, glance
from peakmem.transform.split import floor as split_floor

from peakmem_tflite.arena import Orders, allocations
from peakmem_tflite.graph import Graph, Tensor
from peakmem_tflite.overlays import Permit, pairs
from peakmem_tflite.scratch import rounded
from peakmem_tflite.targets import Target


@dataclass(frozen=True)
class Best:
    """A file that neither order nor plan can make smaller.

    Attributes
    ----------
    program : Program
    graph : Graph
        As it was given.
    orders : mapping
        Subgraph -> the order that is proved the best.
    target : Target
        Kernels charged.
    head : int
        Bytes that are reached.
    permitted : Permit or None
        Which overlays were.
    bands : Splittable or None
        The file for splitting; None where it cannot be split, or is split already.
    """

    program: Program
    graph: Graph
    orders: Orders
    target: Target
    head: int
    permitted: Permit | None = None
    bands: Splittable | None = None


Lever = Callable[[Best], str]


def recomputation(best: Best) -> str:
    """Running operators twice: what no schedule goes below, however often it runs them."""
    least = floor(best.program)
    if least.size < best.head:
        return f"running operators twice can go no lower than {in_bytes(least.size)} (peakmem recompute shows what that costs)"
    return f"running operators twice cannot help: {least.sentence(best.program, show=shorten)}"


def bands(best: Best) -> str:
    """Running operators in bands: what a short search finds, or why it can find nothing."""
    if best.bands is None:
        return ""
    least = split_floor(best.bands)
    if least.size >= best.head:
        return f"running operators in bands cannot help: {least.sentence(best.program, show=shorten)}"
    macs = sum(s.cost for s in best.program.statements)
    found = glance(best.bands, tuple(best.orders[0]), best.head, parse_extra_macs(DEFAULT_MACS, macs))
    if found.points:
        point = found.points[0]
        cost = f"{100 * point.extra_macs / macs:.2f} % more MACs" if point.extra_macs else "no more MACs"
        return f"operators in bands need about {in_bytes(point.peak)} for {cost}, by a short search (peakmem split searches on, and writes the file)"
    if not found.complete:
        return "peakmem split may go lower, by running operators in bands; a short search did not get through"
    return f"a short search found no bands that need less for {DEFAULT_MACS} more MACs (peakmem split looks at more orders)"


def overwritten_inputs(best: Best) -> str:
    """Outputs on top of the file's inputs, where overlays are permitted on others only."""
    if best.permitted is None or best.permitted.inputs:
        return ""
    buffers = [b for b in allocations(best.graph, best.target, best.orders) if b.first >= 0]
    number = {b.tensor: i for i, b in enumerate(buffers) if b.tensor >= 0}
    items = [Item(str(i), b.size, b.first, b.last) for i, b in enumerate(buffers)]
    share = [(number[a], number[o]) for a, o in pairs(best.graph, replace(best.permitted, inputs=True)) if a in number and o in number]
    peak = liveness_peak(items, share)
    return f"--overlay-inputs, where a run may overwrite the inputs: {in_bytes(peak)} in this order" if peak < best.head else ""


def smaller_elements(best: Best) -> str:
    """Activations of 8 bits in the place of floats, in the same order."""
    if not any(t.type == "FLOAT32" and not t.constant for s in best.graph.subgraphs for t in s.tensors):
        return ""
    small = replace(
        best.graph, subgraphs=tuple(replace(s, tensors=tuple(map(_as_int8, s.tensors))) for s in best.graph.subgraphs)
    )
    buffers = [b for b in allocations(small, best.target, best.orders) if b.first >= 0]
    peak = rounded(liveness_peak([Item(str(i), b.size, b.first, b.last) for i, b in enumerate(buffers)]))
    if peak >= best.head:
        return ""
    return f"8-bit activations instead of floats would need about {in_bytes(peak)} (estimated: a quarter of their bytes, in this order)"


def _as_int8(tensor: Tensor) -> Tensor:
    return replace(tensor, size=-(-tensor.size // 4)) if tensor.type == "FLOAT32" else tensor


LEVERS: tuple[Lever, ...] = (overwritten_inputs, bands, recomputation, smaller_elements)
"""In the order in which they are named."""


def sentences(best: Best) -> tuple[str, ...]:
    """Of each lever that applies."""
    return tuple(f"beyond order and plan: {said}" for said in (lever(best) for lever in LEVERS) if said)
