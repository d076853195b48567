"""From a `Graph` to peakmem's program model."""

from __future__ import annotations

from dataclasses import dataclass

from peakmem.model import Buffer, Kind, Overlay, Program, Statement

from peakmem_tflite.arena import planned
from peakmem_tflite.effects import dependences, pure, tokens
from peakmem_tflite.graph import CONTROL_FLOW, Graph
from peakmem_tflite.joins import Family
from peakmem_tflite.macs import macs
from peakmem_tflite.overlays import Permit, overlays
from peakmem_tflite.scratch import rounded
from peakmem_tflite.targets import Target, requests


@dataclass(frozen=True)
class Mapped:
    """A program and where it came from.

    Attributes
    ----------
    program : Program
        Statements are the operators of the main subgraph in the file's order.
    subgraph_of : dict of str to int
        Body path -> subgraph; ``""`` is the main one. Bodies that stand for no subgraph are left out.
    permitted : Permit or None
        Which overlays it has.
    families : tuple of Family
        Tensors of the main subgraph that lie inside others; their buffers are parts of tensors.
    """

    program: Program
    subgraph_of: dict[str, int]
    permitted: Permit | None = None
    families: tuple[Family, ...] = ()


def build(
    graph: Graph, target: Target, name: str = "", permitted: Permit | None = None, families: tuple[Family, ...] = ()
) -> Mapped:
    """The program of a file.

    Buffers are the tensors TFLite Micro plans, at the size it charges; constants are listed, and variables, which live
    in the tail of the arena, are not. Inputs are freed after their last use. Scratch is workspace. Subgraphs of
    IF, WHILE and CALL_ONCE are bodies. Overlays are those ``permitted``.
    """
    subgraph_of: dict[str, int] = {}
    return Mapped(_program(graph, target, 0, "", name, subgraph_of, permitted, families), subgraph_of, permitted, families)


def buffer_names(graph: Graph, k: int) -> list[str]:
    """A unique name for each tensor of a subgraph: its own where that is unique, else with its index."""
    prefix = f"subgraph {k}: " if k else ""
    tensors = graph.subgraphs[k].tensors
    count: dict[str, int] = {}
    for t in tensors:
        count[t.name] = count.get(t.name, 0) + 1
    taken = {t.name for t in tensors if t.name and count[t.name] == 1}
    names = []
    for i, t in enumerate(tensors):
        label = t.name
        if not label or count[label] > 1:
            label = f"{label or 'tensor'}#{i}"
            while label in taken:
                label += "'"
            taken.add(label)
        names.append(prefix + label)
    return names


def _program(
    graph: Graph, target: Target, k: int, path: str, name: str, subgraph_of: dict[str, int],
    permitted: Permit | None, families: tuple[Family, ...] = (),
) -> Program:  # fmt: skip
    subgraph = graph.subgraphs[k]
    subgraph_of[path] = k
    here = planned(subgraph)
    inputs, outputs = set(subgraph.inputs), set(subgraph.outputs)
    touched = {t for op in subgraph.operators for t in (*op.inputs, *op.outputs) if t >= 0}
    buffers: list[Buffer] = []
    buffer_of: dict[int, tuple[int, ...]] = {}
    inside = {t: f for f in families for t in (f.whole, *f.members)}
    for t, label in enumerate(buffer_names(graph, k)):
        tensor = subgraph.tensors[t]
        if not (t in touched or t in inputs or t in outputs):
            continue
        if t in inside and t != inside[t].whole:
            continue
        if t in inside:  # parts of it, shared with those that lie inside
            family = inside[t]
            for low, high in family.parts:
                buffers.append(Buffer(f"{label} [{low}:{high}]", high - low, pinned=t in outputs))
            first = len(buffers) - len(family.parts)
            for member in (t, *family.members):
                buffer_of[member] = tuple(first + n for n in family.covered(member, subgraph.tensors[member].size))
            continue
        if tensor.constant:
            buffers.append(Buffer(label, tensor.size, "constant"))
        elif here[t]:
            # What no operator writes is there from the entry, be it an input or not.
            kind: Kind = "intermediate"
            if t in inputs or t not in subgraph.producer:
                kind = "input"
            elif t in outputs:
                kind = "output"
            buffers.append(Buffer(label, rounded(tensor.size), kind, pinned=t in outputs))
        else:
            continue
        buffer_of[t] = (len(buffers) - 1,)
    before = dependences(graph, k)
    laid = overlays(graph, k, permitted)
    statements = []
    for i, op in enumerate(subgraph.operators):
        effects = tokens(graph, subgraph, op)
        bodies: list[Program] = []
        if op.op in CONTROL_FLOW:
            for b, callee in enumerate(op.callees):
                inner = f"{path}/{i}/{b}" if path else f"{i}/{b}"
                bodies.append(_program(graph, target, callee, inner, "", subgraph_of, permitted))
            entry = max((_entry_bytes(graph, c) for c in op.callees), default=0)
            if entry > max((body.entry_bytes for body in bodies), default=0):
                # All inputs of a subgraph are resident at its entry, those it never reads too.
                bodies.append(Program((Buffer("all inputs at the entry", entry, "input", pinned=True),), ()))
        overlay = None
        if i in laid:
            output, on = laid[i]
            overlay = Overlay(buffer_of[output][0], tuple(buffer_of[a][0] for a in on))
        reads = tuple(dict.fromkeys(b for t in op.inputs for b in buffer_of.get(t, ())))
        statements.append(
            Statement(
                name=f"{i}:{op.op}",
                op=op.op,
                reads=reads,
                writes=tuple(b for t in dict.fromkeys(op.outputs) for b in buffer_of.get(t, ()) if t not in inside or b not in reads),
                dependences=tuple(sorted(before[i])),
                workspace=sum(requests(target, k, subgraph, op)),
                cost=macs(subgraph, op),
                pure=pure(graph, subgraph, op),
                effects=effects,
                bodies=tuple(bodies),
                overlay=overlay,
            )
        )
    return Program(tuple(buffers), tuple(statements), name=name)


def _entry_bytes(graph: Graph, k: int) -> int:
    """Bytes resident when a subgraph is entered, before its first operator."""
    subgraph = graph.subgraphs[k]
    here = planned(subgraph)
    resident = set(subgraph.inputs) | {t for t in subgraph.outputs if t not in subgraph.producer}
    return sum(rounded(subgraph.tensors[t].size) for t in resident if here[t])


def main_entry_bytes(graph: Graph) -> int:
    """Bytes resident before the first operator of the main subgraph, inputs that nothing reads among them.

    A floor of every arena, whatever the order, that the program model leaves out where an input is never read.
    """
    return _entry_bytes(graph, 0)
