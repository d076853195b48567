"""Is one file the other with its operators permuted, and some of them run again? Read off both files; nothing runs.

What a file holds is listed for `peakmem.frontends.structure`: every operator with its options, decoded, since two files
lay them out differently; constants by what they contain; the effects of `peakmem_tflite.effects` as values. Who assigns a
variable reads what it was before, so assignments form a chain; a barrier changes "the effects so far", which every operator
with effects reads; a fence changes what every operator reads. Whatever passes what it may not pass then reads another
value. Names of tensors and subgraphs do not count, nor does an offline plan.
"""

from __future__ import annotations

import hashlib
import struct
from functools import cache
from importlib import import_module
from typing import Any

from peakmem.frontends import Structure
from peakmem.frontends.structure import Part, Step, compare

from peakmem_tflite.build import buffer_names
from peakmem_tflite.effects import pure, tokens
from peakmem_tflite.flatbuffer import Flat, Table
from peakmem_tflite.graph import CONTROL_FLOW, Graph

_EFFECTS, _FENCE = "the effects so far", "what a fence lets pass"

_UNIONS = {"Details": "QuantizationDetails", "ArraySegments": "SparseIndexVector", "ArrayIndices": "SparseIndexVector"}
"""Field that holds one of several tables -> the enumeration of their names."""

_NO_MEANING = frozenset({"Min", "Max"})
"""Fields that no runtime reads: the range seen in training."""

_OPTIONS = (("BuiltinOptions", 3, 4), ("BuiltinOptions2", 11, 12))
"""Enumeration of an operator's tables of options, slots of the kind and of the table."""


class Unknown(Exception):
    """Something that this version cannot read, so that it cannot be compared."""


def compare_graphs(first: Graph, second: Graph) -> Structure:
    """What ``second`` is to ``first``; see `peakmem.frontends.Model.structure`. Reads each file once.

    Raises
    ------
    InputError
        When a table that only this comparison reads is damaged.
    """
    files = File(first, "the first file"), File(second, "the second file")
    roots = [[k for k, count in enumerate(g.callers) if not count or not k] for g in (first, second)]
    difference = interfaces(*files)
    if difference:
        return Structure(difference=difference)
    if len(roots[0]) != len(roots[1]):
        return Structure(difference=f"the first has {len(roots[0])} subgraphs that no operator runs, the second {len(roots[1])}")
    try:
        found = [compare(files[0].part(k), files[1].part(m)) for k, m in zip(*roots)]
    except Unknown as error:
        return Structure(difference=str(error))
    return next((row for row in found if row.difference), found[0])


def interfaces(first: File, second: File) -> str:
    """In what callers would tell the two files apart; empty for nothing."""
    for side in ("inputs", "outputs"):
        x, y = (file.interface(side) for file in (first, second))
        if len(x) != len(y):
            return f"the first has {len(x)} {side}, the second {len(y)}"
        for k, (p, q) in enumerate(zip(x, y)):
            if p != q:
                return f"{side[:-1]} {k} is of another type, shape or quantization"
    return "their signatures differ" if first.signatures() != second.signatures() else ""


class File:
    """A file and the tables of what it holds, by subgraph."""

    def __init__(self, graph: Graph, where: str) -> None:
        self.graph, self.flat = graph, Flat(graph.data, where)
        root = self.flat.root()
        subgraphs = root.children(2, "subgraph")
        self.tensors = [table.children(0, "tensor") for table in subgraphs]
        self.operators = [table.children(3, "operator") for table in subgraphs]
        self.buffers = root.children(4, "buffer")
        self.signature_tables = root.children(7, "signature")
        self.names = [[f"'{name}'" for name in buffer_names(graph, k)] for k in range(len(subgraphs))]
        self.fenced = any("fence" in tokens(graph, s, op) for s in graph.subgraphs for op in s.operators)
        self.kinds: dict[tuple[int, int], str] = {}
        self.forms: dict[tuple[int, int], str] = {}
        self.digests: dict[int, str] = {}

    def interface(self, side: str) -> list[str]:
        """Inputs or outputs of the main subgraph."""
        return [self.kind(0, t) for t in getattr(self.graph.subgraphs[0], side)]

    def signatures(self) -> list[object]:
        """Names that callers know: of each signature, and of its inputs and outputs by their position."""
        rows: list[object] = []
        for table in self.signature_tables:
            k = table.scalar(4, "I")
            if k >= len(self.graph.subgraphs):
                raise self.flat.fail(f"{table.what}: subgraph {k} does not exist")
            row: list[object] = [table.text(2, table.what), k == 0]
            for slot, side in ((0, self.graph.subgraphs[k].inputs), (1, self.graph.subgraphs[k].outputs)):
                named = [(m.text(0, m.what), m.scalar(1, "I")) for m in table.children(slot, table.what)]
                row.append(sorted((name, [i for i, u in enumerate(side) if u == t]) for name, t in named))
            rows.append(row)
        return rows

    def part(self, k: int) -> Part:
        """A subgraph."""
        subgraph, names = self.graph.subgraphs[k], self.names[k]
        given = {}
        variables = 0
        for t, tensor in enumerate(subgraph.tensors):
            if t in subgraph.producer and not tensor.variable:
                continue
            what = f"input {subgraph.inputs.index(t)}" if t in subgraph.inputs else "nothing"
            if tensor.variable:
                what, variables = f"{what}, variable {variables}", variables + 1
            given[names[t]] = f"{what}, {self.kind(k, t)}, {self.content(tensor.buffer)}"
        steps = [self._step(k, i) for i in range(len(subgraph.operators))]
        return Part(given, steps, tuple(names[t] for t in subgraph.outputs))

    def _step(self, k: int, i: int) -> Step:
        subgraph, names = self.graph.subgraphs[k], self.names[k]
        op = subgraph.operators[i]
        what = [op.op, f"{op.custom} {op.version}", *(self.kind(k, t) for t in (*op.outputs, *op.intermediates))]
        reads = [names[t] if t >= 0 else "" for t in op.inputs]
        writes = [names[t] for t in op.outputs]
        effects = tokens(self.graph, subgraph, op)
        for effect in effects:
            verb, _, name = effect.partition(" ")
            if effect == "own state":
                continue
            reads.append(_EFFECTS)
            if verb in ("read", "write", "state"):
                reads.append(names[int(name)] if verb == "state" else f"variable {name}")
                writes += [reads[-1]] if verb != "read" else []
            if effect in ("barrier", "fence"):
                writes.append(_EFFECTS)
        if self.fenced:
            reads.append(_FENCE)
            writes += [_FENCE] if "fence" in effects else []
        inside = op.callees if op.op in CONTROL_FLOW else ()
        where = f"operator {i} ({op.op})" + (f" of subgraph {k}" if k else "")
        return Step(
            where,
            "\n".join((*what, *self.attributes(self.operators[k][i], bool(inside)))),
            tuple(reads),
            tuple(writes),
            bodies=tuple(self.part(callee) for callee in inside),
            once=not pure(self.graph, subgraph, op),
        )

    def attributes(self, table: Table, runs_subgraphs: bool) -> list[str]:
        """Options by what they say, those for custom operators as they are; the numbers of subgraphs that it runs do not count."""
        rows = []
        for enumeration, kind_slot, slot in () if runs_subgraphs else _OPTIONS:
            kind, options = table.scalar(kind_slot, "B"), table.sub(slot, table.what)
            if options is not None:
                rows.append(self.fields(self._named(enumeration, kind, table.what), options.at))
        for slot in (5, 7):  # custom options; which inputs are changed in place
            at, count = table.vector(slot, 1, table.what)
            rows.append(self.flat.data[at : at + count].hex())
        at, count = table.scalar(9, "Q"), table.scalar(10, "Q")
        rows.append(self.flat.data[at : at + count].hex() if at > 1 else "")
        return rows

    def kind(self, k: int, t: int) -> str:
        """Type, shape, quantization and sparsity of a tensor."""
        if t < 0:
            return "none"
        if (k, t) not in self.kinds:
            table, tensor = self.tensors[k][t], self.graph.subgraphs[k].tensors[t]
            self.kinds[k, t] = f"{tensor.shape} {table.ints(7, table.what)} {self.form(k, t)}"
        return self.kinds[k, t]

    def form(self, k: int, t: int) -> str:
        """Type, quantization and sparsity of a tensor: what its parts share with it."""
        if (k, t) in self.forms:
            return self.forms[k, t]
        table, tensor = self.tensors[k][t], self.graph.subgraphs[k].tensors[t]
        tables = [(name, table.sub(slot, table.what)) for name, slot in (("QuantizationParameters", 4), ("SparsityParameters", 6))]
        parts = [self.fields(name, sub.at) if sub else name for name, sub in tables]
        self.forms[k, t] = f"{tensor.type} {tensor.variable} {parts}"
        return self.forms[k, t]

    def content(self, buffer: int) -> str:
        """Digest of a buffer's bytes."""
        if buffer not in self.digests:
            data = self.bytes(buffer)
            self.digests[buffer] = hashlib.sha256(data).hexdigest() if data else ""
        return self.digests[buffer]

    def bytes(self, buffer: int) -> bytes:
        """A buffer's bytes."""
        table = self.buffers[buffer]
        at, count = table.vector(0, 1, table.what)
        if table.scalar(1, "Q") > 1:  # outside the flatbuffer
            at, count = table.scalar(1, "Q"), table.scalar(2, "Q")
        return self.flat.data[at : at + count]

    def options(self, k: int, i: int) -> Any:
        """An operator's table of options as the schema package reads it; None where it has none. Damage shows in `attributes`."""
        table = self.operators[k][i]
        options = table.sub(4, table.what)
        if options is None:
            return None
        result = _class(self._named("BuiltinOptions", table.scalar(3, "B"), table.what))()
        result.Init(self.flat.data, options.at)
        return result

    def _named(self, enumeration: str, value: int, where: str) -> str:
        name = _names(enumeration).get(value)
        if not name or name == "NONE":
            raise Unknown(f"{where} has options of a kind ({value}) that this version does not know")
        return name

    def fields(self, name: str, at: int) -> str:
        """All fields of a table of the schema, with those of the tables in it; absent ones have their defaults."""
        try:
            return self._fields(_class(name), at)
        except (struct.error, ValueError, TypeError, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise self.flat.fail(f"{name} cannot be decoded ({type(error).__name__})") from None

    def _fields(self, cls: Any, at: int) -> str:
        table = cls()
        table.Init(self.flat.data, at)
        rows = []
        for field, is_vector in _accessors(cls):
            read = getattr(table, field)
            if is_vector:
                count = getattr(table, f"{field}Length")()
                self.flat.spend(count, field)
                rows.append(f"{field}={[self._value(table, field, read(j)) for j in range(count)]}")
            else:
                rows.append(f"{field}={self._value(table, field, read())}")
        return f"{cls.__name__}({', '.join(rows)})"

    def _value(self, table: Any, field: str, value: Any) -> str:
        if field in _UNIONS and value is not None:
            name = self._named(_UNIONS[field], getattr(table, f"{field}Type")(), field)
            return self._fields(_class(name), value.Pos)
        return self._fields(type(value), value._tab.Pos) if hasattr(value, "_tab") else repr(value)


def _class(name: str) -> Any:
    return getattr(import_module(f"tflite.{name}"), name)


@cache
def _names(enumeration: str) -> dict[int, str]:
    return {value: name for name, value in vars(_class(enumeration)).items() if isinstance(value, int)}


@cache
def _accessors(cls: Any) -> tuple[tuple[str, bool], ...]:
    """Fields of a class of the schema package, and whether each is a vector."""
    methods = {name: f.__code__.co_argcount for name, f in vars(cls).items() if hasattr(f, "__code__")}
    beside = {f"{name}{end}" for name in methods for end in ("Length", "AsNumpy", "IsNone")} | {"Init"} | _NO_MEANING
    return tuple((name, count == 2) for name, count in methods.items() if name not in beside)
