"""Writing recomputed copies: operators that run again, and the tensors they fill.

New are the main subgraph's table, its vectors of tensors and operators, a tensor for each copied value, and a table for
each operator that is a copy or reads one. They share everything else (options, quantization, shapes) with the
originals, and stand before the old file (see `peakmem_tflite.prefix`). New tensors are counted behind the old ones, so
no tensor changes its index.
"""

from __future__ import annotations

from peakmem.model import Expansion, InputError, Program

from peakmem_tflite.build import buffer_names
from peakmem_tflite.effects import pure
from peakmem_tflite.flatbuffer import Flat, Table
from peakmem_tflite.graph import PLAN_NAME, Graph
from peakmem_tflite.prefix import MODEL, OPERATOR, SUBGRAPH, TENSOR, Prefix
from peakmem_tflite.rewrite import entries_without_plan

_SUBGRAPHS, _METADATA = 2, 6
_TENSORS, _OPERATORS = 0, 3
_BUFFER_NAME = 3
INPUTS, OUTPUTS = 1, 2
"""Slots of an operator's tensors."""


def enlarge(graph: Graph, program: Program, expansion: Expansion) -> bytes:
    """The file with the copies of an expansion of its program, operators in the order of the enlarged program.

    A plan in the file is dropped, since it counts the tensors there were.

    Raises
    ------
    InputError
        When the expansion is of another program, or a table has fields this version cannot copy.
    """
    main = graph.subgraphs[0]
    old, new = program.buffers, expansion.program.buffers
    if new[: len(old)] != old or expansion.buffer_of[: len(old)] != tuple(range(len(old))):
        raise InputError("the enlarged program is not one of this model: its first buffers are not the model's")
    index = {name: t for t, name in enumerate(buffer_names(graph, 0))}
    tensor_of = [index[b.name] for b in old]
    added: list[tuple[int, str]] = []  # original tensor, name

    def add(tensor: int, name: str) -> int:
        added.append((tensor, name))
        return len(main.tensors) + len(added) - 1

    tensor_of += [add(tensor_of[expansion.buffer_of[b]], new[b].name) for b in range(len(old), len(new))]
    tables = operator_tables(graph)
    produced: set[int] = set()
    rows: list[int | str] = []
    changed: list[tuple[Table, list[int], list[int]]] = []
    for v, i in enumerate(expansion.statement_of):
        statement, op = expansion.program.statements[v], main.operators[i]
        instead = {tensor_of[expansion.buffer_of[b]]: tensor_of[b] for b in (*statement.reads, *statement.writes)}
        inputs = [instead.get(t, t) for t in op.inputs]
        # What the arena does not hold (an empty tensor) is no buffer, yet nothing may be produced twice.
        outputs = [
            add(t, f"{main.tensors[t].name}#again") if u in produced else u
            for t, u in ((t, instead.get(t, t)) for t in op.outputs)
        ]
        produced.update(outputs)
        if (inputs, outputs) == (list(op.inputs), list(op.outputs)):
            rows.append(tables[i].at)
        else:
            rows.append(f"operator {len(changed)}")
            changed.append((tables[i], inputs, outputs))

    root = Flat(graph.data, "model").root()
    subgraphs = root.children(_SUBGRAPHS, "subgraph")
    tensors = subgraphs[0].children(_TENSORS, "tensor")
    dropping = any(m.name == PLAN_NAME for m in graph.metadata)
    out = Prefix()
    out.copy("root", root, MODEL, {_SUBGRAPHS: "subgraphs", **({_METADATA: "entries"} if dropping else {})})
    out.vector("subgraphs", ["main", *(t.at for t in subgraphs[1:])])
    if dropping:
        out.vector("entries", entries_without_plan(graph))
    out.copy("main", subgraphs[0], SUBGRAPH, {_TENSORS: "tensors", _OPERATORS: "operators"})
    out.vector("tensors", [*(t.at for t in tensors), *(f"tensor {k}" for k in range(len(added)))])
    out.vector("operators", rows)
    for k, (t, name) in enumerate(added):
        out.copy(f"tensor {k}", tensors[t], TENSOR, {_BUFFER_NAME: f"name {k}"})
        out.text(f"name {k}", name)
    for k, (table, inputs, outputs) in enumerate(changed):
        out.copy(f"operator {k}", table, OPERATOR, {INPUTS: f"inputs {k}", OUTPUTS: f"outputs {k}"})
        out.ints(f"inputs {k}", inputs)
        out.ints(f"outputs {k}", outputs)
    return out.join(graph)


def operator_tables(graph: Graph) -> list[Table]:
    """The tables of the main subgraph's operators."""
    return Flat(graph.data, "model").root().children(_SUBGRAPHS, "subgraph")[0].children(_OPERATORS, "operator")


def options_of(graph: Graph, k: int, i: int) -> Table | None:
    """The table of builtin options of operator ``i`` of subgraph ``k``; None where it has none."""
    table = Flat(graph.data, "model").root().children(_SUBGRAPHS, "subgraph")[k].children(_OPERATORS, "operator")[i]
    return table.sub(4, table.what)


def settings(table: Table, shift: int = 0) -> tuple[tuple[int, int], ...]:
    """Everything of an operator but its inputs and outputs: by slot, a number or the position of what it refers to.

    Positions are less ``shift``, so that those of a file and of the same file behind a prefix compare.
    """
    found = []
    for slot in range((table.length - 4) // 2):
        if slot in (INPUTS, OUTPUTS) or not table.position(slot):
            continue
        if slot in OPERATOR.references:
            found.append((slot, table.target(slot) - shift))
        elif slot in OPERATOR.scalars:
            found.append((slot, table.scalar(slot, OPERATOR.scalars[slot])))
        else:  # known to no version of the schema yet: the same only if it is the very same table
            found.append((slot, table.position(slot) - shift))
    return tuple(found)


def same_values(graph: Graph) -> dict[int, int]:
    """For each tensor of the main subgraph, the first by index that is known to hold the same value.

    Two tensors do if pure operators with the same code and the very same options compute them from the same values:
    a copy and its original in a file that `enlarge` wrote. O(size of the subgraph).
    """
    main = graph.subgraphs[0]
    group = {t: t for t in range(len(main.tensors))}
    seen: dict[object, tuple[int, ...]] = {}
    for op, table in zip(main.operators, operator_tables(graph)):
        if not pure(graph, main, op):
            continue
        key = (settings(table), tuple(group.get(t, t) for t in op.inputs))
        first = seen.setdefault(key, op.outputs)
        if len(first) == len(op.outputs):
            group.update((t, group[u]) for t, u in zip(op.outputs, first))
    least: dict[int, int] = {}
    for t, g in group.items():
        least[g] = min(t, least.get(g, t))
    return {t: least[g] for t, g in group.items()}
