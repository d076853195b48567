"""The static verifier: nothing is written that it has not accepted.

TFLite Micro checks nothing: a stale plan, overlapping offsets and operators in an illegal order all run, with wrong
results. So the rewritten bytes are read again and compared with the original from scratch, by rules stated anew and
not by the code that ordered and planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from peakmem.model import InputError

from peakmem_tflite.arena import Allocation, allocations, simulate, untouched
from peakmem_tflite.effects import tokens
from peakmem_tflite.enlarge import operator_tables, settings
from peakmem_tflite.flatbuffer import Flat
from peakmem_tflite.graph import CONTROL_FLOW, PLAN_NAME, Graph
from peakmem_tflite.joins import blocks
from peakmem_tflite.overlays import PERMITTED, WIDTHS, Permit
from peakmem_tflite.prefix import UNIT, moved
from peakmem_tflite.reader import read
from peakmem_tflite.scratch import ALIGNMENT
from peakmem_tflite.targets import Target


def check_rewrite(
    old: Graph, data: bytes, orders: Mapping[int, Sequence[int]], target: Target, permitted: Permit | None = None
) -> Graph:
    """Read ``data`` and make sure that it is ``old`` with its operators in ``orders`` and a sound plan, if any.

    Checked are: the same tensors, signatures, operators and metadata; every order a permutation that keeps each pair
    of operators in conflict (one writes what the other touches, they change one variable, a barrier) as it was; every
    two buffers that are ever resident together at offsets that do not overlap, aligned and inside the arena, but for an
    output that begins where an input dies under it and whose kernel was ``permitted`` that, and blocks that are copied onto themselves.

    Raises
    ------
    InputError
        Naming what is wrong. It means a fault in peakmem or a model outside what it understands.
    """
    try:
        new = read(data, "the rewritten model")
        _same(old, new, orders)
        for k in range(len(old.subgraphs)):
            _order(old, k, orders.get(k, range(len(old.subgraphs[k].operators))))
        _placement(new, target, permitted)
    except InputError as error:
        raise InputError(f"{error} (nothing was written; please report the model)") from None
    return new


def overlaps(graph: Graph, target: Target, permitted: Permit | None) -> str:
    """What is wrong with the plan in a file, such as two tensors in the same bytes where that was not ``permitted``; empty if nothing is."""
    try:
        _placement(graph, target, permitted)
    except InputError as error:
        return str(error).removeprefix(_REFUSED)
    return ""


def check_enlarged(old: Graph, data: bytes, sources: Sequence[int]) -> Graph:
    """Read ``data`` and make sure that it is ``old`` with some operators of the main subgraph run again.

    Every operator is followed from the values it reads to the values it writes, where a value is named by the tensor
    that holds it in ``old``: each read must find the value that the original operator reads there, whichever copy of
    it that is. Besides: nothing of the old file changed behind the prefix, every operator is there, in an order that
    keeps pairs in conflict, and runs with the very same options; only pure ones run again; the old tensors, outputs
    among them, hold the values they held, and the new ones are like those they repeat.

    Parameters
    ----------
    old : Graph
    data : bytes
    sources : sequence of int
        For each operator of the main subgraph in ``data`` the one of ``old`` that it is or repeats.

    Raises
    ------
    InputError
        Naming what is wrong. It means a fault in peakmem.
    """
    try:
        new = read(data, "the enlarged model")
        _untouched(old, new)
        _values(old, new, sources)
    except InputError as error:
        raise InputError(f"{error} (nothing was written; please report the model)") from None
    return new


def check_emptied(old: Graph, data: bytes) -> Graph:
    """Read ``data`` and make sure that it is ``old``, but for tensors without elements where nothing names the tensor.

    Raises
    ------
    InputError
        Naming what is wrong. It means a fault in peakmem.
    """
    try:
        new = read(data, "the model without untouched tensors")
        _kept_behind(old, new)
        idle = {(k, t) for k, t, _ in untouched(old)}
        for k, (a, b) in enumerate(zip(old.subgraphs, new.subgraphs, strict=True)):
            wanted = tuple(replace(x, shape=(0,), size=0) if (k, t) in idle else x for t, x in enumerate(a.tensors))
            if replace(b, vector=0) != replace(a, tensors=wanted, vector=0):
                raise _refuse(f"subgraph {k} is another")
        if _metadata(old) != _metadata(new) or old.plan != new.plan:
            raise _refuse("metadata changed")
    except InputError as error:
        raise InputError(f"{error} (nothing was written; please report the model)") from None
    return new


def _kept_behind(old: Graph, new: Graph) -> None:
    """The old file stands behind what is new, as it was."""
    shift = len(new.data) - len(old.data)
    if shift < 0 or shift % UNIT or new.data[shift:] != moved(old, shift):
        raise _refuse("the old file changed")


def _untouched(old: Graph, new: Graph) -> None:
    """All but the main subgraph's operators and its further tensors is what it was."""
    _kept_behind(old, new)
    a, b = old.subgraphs[0], new.subgraphs[0]
    if (a.inputs, a.outputs, a.name, a.tensors) != (b.inputs, b.outputs, b.name, b.tensors[: len(a.tensors)]):
        raise _refuse("tensors, inputs or outputs of the main subgraph changed")
    rest = [[replace(s, vector=0) for s in g.subgraphs[1:]] for g in (old, new)]
    if rest[0] != rest[1]:
        raise _refuse("a subgraph other than the main one changed")
    if _metadata(old) != _metadata(new):
        raise _refuse("metadata other than the plan changed")


def _values(old: Graph, new: Graph, sources: Sequence[int]) -> None:
    a, b = old.subgraphs[0], new.subgraphs[0]
    shift = len(new.data) - len(old.data)
    if len(sources) != len(b.operators) or set(sources) != set(range(len(a.operators))):
        raise _refuse("an operator is missing or one too many")
    _order(old, 0, list(dict.fromkeys(sources)))
    before, after = operator_tables(old), operator_tables(new)
    value = {t: t for t in range(len(a.tensors)) if t not in a.producer}
    value[-1] = -1
    ran: set[int] = set()
    for j, (i, op) in enumerate(zip(sources, b.operators)):
        original = a.operators[i]
        if replace(op, inputs=(), outputs=()) != replace(original, inputs=(), outputs=()):
            raise _refuse(f"operator {j} ({op.op}) is not operator {i} of the original ({original.op})")
        if settings(after[j], shift) != settings(before[i]):
            raise _refuse(f"operator {j} ({op.op}) has other options than operator {i} of the original")
        if tuple(value.get(t) for t in op.inputs) != original.inputs:
            raise _refuse(f"operator {j} ({op.op}) reads other values than operator {i} of the original")
        if i in ran and (original.callees or tokens(old, a, original)):
            raise _refuse(f"operator {j} ({op.op}) runs again, which its effects forbid")
        ran.add(i)
        if len(op.outputs) != len(original.outputs):
            raise _refuse(f"operator {j} ({op.op}) has {len(op.outputs)} outputs, not {len(original.outputs)}")
        for t, origin in zip(op.outputs, original.outputs):
            if replace(b.tensors[t], name="") != replace(a.tensors[origin], name=""):
                raise _refuse(f"tensor {t} is not like tensor {origin}, whose value it is to hold")
            value[t] = origin
    for t in range(len(a.tensors)):
        if value.get(t) != t:
            raise _refuse(f"tensor {t} ({a.tensors[t].name!r}) does not hold its value")
    if set(value) != {-1, *range(len(b.tensors))}:
        raise _refuse("a new tensor holds no value")
    rows = [Flat(g.data, "model").root().children(2, "subgraph")[0].children(0, "tensor") for g in (old, new)]
    for t in range(len(a.tensors), len(b.tensors)):
        if rows[1][t].target(4) != rows[0][value[t]].target(4) + (shift if rows[0][value[t]].target(4) else 0):
            raise _refuse(f"tensor {t} is quantized otherwise than tensor {value[t]}, whose value it is to hold")


def _metadata(graph: Graph) -> list[tuple[str, bytes]]:
    return [(m.name, graph.data[m.at : m.at + m.length]) for m in graph.metadata if m.name != PLAN_NAME]


_REFUSED = "the rewritten model was refused: "


def _refuse(what: str) -> InputError:
    return InputError(_REFUSED + what)


def _same(old: Graph, new: Graph, orders: Mapping[int, Sequence[int]]) -> None:
    if len(old.subgraphs) != len(new.subgraphs):
        raise _refuse("the number of subgraphs changed")
    for k, (a, b) in enumerate(zip(old.subgraphs, new.subgraphs)):
        order = orders.get(k, range(len(a.operators)))
        if sorted(order) != list(range(len(a.operators))):
            raise _refuse(f"the order of subgraph {k} is no permutation")
        if (a.tensors, a.inputs, a.outputs, a.name) != (b.tensors, b.inputs, b.outputs, b.name):
            raise _refuse(f"tensors, inputs or outputs of subgraph {k} changed")
        if [a.operators[i] for i in order] != list(b.operators):
            raise _refuse(f"operators of subgraph {k} changed")
    if _metadata(old) != _metadata(new):
        raise _refuse("metadata other than the plan changed")


def _order(old: Graph, k: int, order: Sequence[int]) -> None:
    """Every pair in conflict keeps its order."""
    subgraph = old.subgraphs[k]
    place = {i: at for at, i in enumerate(order)}
    last_write: dict[object, list[int]] = {}
    touched: dict[object, list[int]] = {}
    for i, op in enumerate(subgraph.operators):
        effects = tokens(old, subgraph, op)
        # What an operator writes and reads, as keys; a barrier writes the key that every effect reads.
        writes: set[object] = set(op.outputs)
        reads: set[object] = {t for t in op.inputs if t >= 0} | {"fence"}
        for effect in effects:
            verb, _, name = effect.partition(" ")
            if effect == "own state":
                continue
            reads.add("effects")
            if verb in ("write", "state"):
                writes.add(("variable", verb == "state", name))
            elif verb == "read":
                reads.add(("variable", False, name))
            elif effect == "barrier":
                writes.add("effects")
            elif effect == "fence":
                writes.update(("effects", "fence"))
        for key in writes | reads:
            rivals = touched.get(key, []) if key in writes else last_write.get(key, [])
            for j in rivals:
                if place[j] > place[i]:
                    raise _refuse(
                        f"subgraph {k}, operator {i} ({op.op}) runs before operator {j} ({subgraph.operators[j].op}), "
                        "whose effect or result it depends on"
                    )
            touched.setdefault(key, []).append(i)
            if key in writes:
                last_write.setdefault(key, []).append(i)


def _placement(new: Graph, target: Target, permitted: Permit | None) -> None:
    """Walk the execution step by step, note what each step needs resident, and compare the places pair by pair."""
    buffers = allocations(new, target, None, new.plan)
    size, offsets = simulate(buffers, new.plan)
    index = {b.tensor: i for i, b in enumerate(buffers) if b.tensor >= 0}
    scratch: dict[tuple[int, int], list[int]] = {}
    for i, b in enumerate(buffers):
        if b.tensor < 0:
            scratch.setdefault((b.subgraph, b.operator), []).append(i)
    spans: dict[int, list[int]] = {}
    made: dict[int, tuple[int, int]] = {}  # buffer -> operator that gives it, and the step at which it runs

    def need(i: int, first: int, last: int) -> None:
        span = spans.setdefault(i, [first, last])
        span[0], span[1] = min(span[0], first), max(span[1], last)

    def walk(k: int, step: int) -> int:
        subgraph, base, entry = new.subgraphs[k], new.bases[k], step

        def tensor(t: int, first: int, last: int) -> None:
            if t >= 0 and base + t in index:
                need(index[base + t], first, last)

        for t in subgraph.inputs:
            tensor(t, entry, entry)
        for o, op in enumerate(subgraph.operators):
            step += 1
            begin = step
            if op.op in CONTROL_FLOW:
                for callee in op.callees:
                    step = walk(callee, step + 1)
            for t in (*op.inputs, *op.outputs):
                tensor(t, begin, step)
            made.update((index[base + t], (o, begin)) for t in op.outputs if base + t in index)
            for i in scratch.get((k, o), ()):
                need(i, begin, step)
        for t in subgraph.outputs:
            tensor(t, step if t in subgraph.producer else entry, step)
        return step

    def overlaid(i: int, j: int) -> bool:
        """Whether the later of two tensors may lie on the earlier: it is what the last reader of that one writes."""
        a, o = (i, j) if spans[i][0] <= spans[j][0] else (j, i)
        if permitted is None or o not in made or buffers[a].tensor < 0 or buffers[a].subgraph != buffers[o].subgraph:
            return False
        operator, step = made[o]
        if not spans[a][0] < spans[a][1] == step == spans[o][0] or offsets[a] != offsets[o]:
            return False
        return _kernel_reads_first(new, buffers[a].subgraph, operator, buffers[a].tensor, buffers[o].tensor, permitted)

    inside: dict[int, list[tuple[int, int]]] = {}  # tensor of the main subgraph -> those it is a block of, and at which byte

    def anchors(i: int) -> dict[int, int]:
        """Where tensors begin of which this one is, or holds, a block in its place: itself, and what it is joined to or cut from."""
        t = buffers[i].tensor
        return {t: offsets[i], **{whole: offsets[i] - at for whole, at in inside.get(t, ())}}

    def one_value(i: int, j: int) -> bool:
        """Whether both tensors are, or lie in their places in, one tensor, whose bytes are copied onto themselves."""
        if permitted is None or not inside or min(buffers[i].tensor, buffers[j].tensor) < 0:
            return False
        a, b = anchors(i), anchors(j)
        return any(b.get(whole) == at and index.get(whole) is not None and offsets[index[whole]] == at for whole, at in a.items())

    if permitted is not None and permitted.joins:
        for o, op in enumerate(new.subgraphs[0].operators):
            for small, whole, at in blocks(new, 0, o, op):
                if not any(new.subgraphs[0].tensors[t].variable or new.subgraphs[0].tensors[t].constant for t in (small, whole)):
                    inside.setdefault(small, []).append((whole, at))
    end = walk(0, 0)
    for t, tensor in enumerate(t for s in new.subgraphs for t in s.tensors):
        if tensor.variable and t in index:  # it lives on
            need(index[t], 0, end)
    resident = sorted(spans, key=lambda i: offsets[i])
    for i in resident:
        if offsets[i] < 0 or offsets[i] % ALIGNMENT or offsets[i] + buffers[i].size > size:
            raise _refuse(f"{_label(new, buffers[i])} is planned at offset {offsets[i]}, misaligned or out of the arena")
    for at, i in enumerate(resident):
        end = offsets[i] + buffers[i].size
        for j in resident[at + 1 :]:
            if offsets[j] >= end:
                break
            if spans[i][0] <= spans[j][1] and spans[j][0] <= spans[i][1] and not overlaid(i, j) and not one_value(i, j):
                raise _refuse(f"{_label(new, buffers[i])} and {_label(new, buffers[j])} overlap in the arena")


def _kernel_reads_first(new: Graph, k: int, operator: int, a: int, o: int, permitted: Permit) -> bool:
    """Whether an operator reads each element of an input before it writes the output there, and nobody wants the input any more.

    Tensors ``a`` and ``o`` are counted through.
    """
    subgraph, base = new.subgraphs[k], new.bases[k]
    op, source, result = subgraph.operators[operator], subgraph.tensors[a - base], subgraph.tensors[o - base]
    rule = PERMITTED.get(op.op)
    if rule is None or op.custom or len(op.outputs) != 1 or (source.type, result.type) not in rule.types:
        return False
    if op.op in permitted.foreign and source.type in ("INT8", "INT16"):
        return False
    if any(t == a - base and rule.inputs is not None and i not in rule.inputs for i, t in enumerate(op.inputs)):
        return False
    if a - base not in op.inputs or source.variable or source.constant or a - base in subgraph.outputs:
        return False
    if a - base not in subgraph.producer and not (permitted.inputs and k == 0 and a - base in subgraph.inputs):
        return False
    count = prod(source.shape)
    sizes = [count * WIDTHS[t.type] for t in (source, result)]
    return count == prod(result.shape) and sizes == [source.size, result.size] and sizes[1] <= sizes[0]


def _label(graph: Graph, buffer: Allocation) -> str:
    if buffer.tensor < 0:
        return f"scratch of operator {buffer.operator} in subgraph {buffer.subgraph}"
    t = buffer.tensor - graph.bases[buffer.subgraph]
    return f"tensor {t} ({graph.subgraphs[buffer.subgraph].tensors[t].name!r}) of subgraph {buffer.subgraph}"
