"""Writing a split model: operators on bands, cuts and joins, in a file whose old bytes stay as they are.

New tables stand before the old file (see `peakmem_tflite.prefix`). A band of a tensor is a tensor with other rows, and
with the very same type and quantization; a band's operator has the very same options. Tensors that nobody names any more
(what ran whole before) lend their numbers to new ones, so that none is left over; the others keep theirs, and with them
signatures, inputs and outputs stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from peakmem.frontends.splitting import Split, Step
from peakmem.model import InputError, Program, Refused

from peakmem_tflite.bands import TfliteBands, dimension
from peakmem_tflite.enlarge import INPUTS, OUTPUTS
from peakmem_tflite.flatbuffer import Flat, Table
from peakmem_tflite.graph import PLAN_NAME, Graph
from peakmem_tflite.prefix import MODEL, OPERATOR, SUBGRAPH, TENSOR, Layout, Prefix
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import entries_without_plan
from peakmem_tflite.splitcheck import check_split

_CODES, _SUBGRAPHS, _BUFFERS, _METADATA = 1, 2, 4, 6
_TENSORS, _OPERATORS = 0, 3
_SHAPE, _KIND, _BUFFER, _NAME, _QUANTIZATION, _SIGNATURE = 0, 1, 2, 3, 4, 7
_SCALE, _ZERO_POINT = 2, 3
QUANTIZATION = Layout(frozenset({0, 1, 2, 3, 5}), {4: "B", 6: "i"})

_STRIDED_SLICE, _CONCATENATION = (45, 32), (2, 10)
"""Operator and its kind of options, as numbers of the schema."""
_INT32 = 2


def write(bands: TfliteBands, split: Split) -> tuple[Graph, int]:
    """The file split, its operators in the given order of the split program, without a plan; read again and checked.

    Returns
    -------
    Graph
    int
        Bytes of constants that stand in it cut as well as whole.

    Raises
    ------
    InputError
        When a table has fields this version cannot copy.
    Refused
        When the static check does not recognise what was written: another split may do.
    """
    writing = _Writing(bands, split)
    new = read(writing.file(), "the split model")
    try:
        graph = check(bands.graph, new)
    except InputError as error:
        raise Refused(f"the split that was written is not recognised: {error}") from None
    return graph, sum(len(t.data) for t in writing.new if t.like >= 0 and t.data is not None)


def check(old: Graph, new: Graph) -> Graph:
    """The one place where a split file is checked statically before anything is written."""
    check_split(old.data, new.data)
    return new


def check_program(split: Split, found: Program) -> None:
    """Whether what was written is what was planned: operator by operator the same, as large, on the same buffers.

    Raises
    ------
    InputError
        When it is not, which means a fault in peakmem.
    """
    wanted = split.program
    alike: dict[int, int] = {}
    fault = len(wanted) != len(found)
    for a, b in zip(wanted.statements, found.statements):
        here = [x for x in a.reads if wanted.buffers[x].kind != "constant"]
        there = [x for x in b.reads if found.buffers[x].kind != "constant"]
        fault |= (a.op, a.workspace, a.cost, len(here), len(a.writes)) != (b.op, b.workspace, b.cost, len(there), len(b.writes))
        for x, y in zip((*here, *a.writes), (*there, *b.writes)):
            fault |= alike.setdefault(x, y) != y
            fault |= (wanted.buffers[x].size, wanted.buffers[x].pinned) != (found.buffers[y].size, found.buffers[y].pinned)
    if fault or len(set(alike.values())) < len(alike):
        raise InputError("the split model is not the split program (nothing was written; please report it)")


@dataclass
class _New:
    """A tensor to be written: like an old one but for its shape, or a constant of whole numbers."""

    name: str
    shape: tuple[int, ...]
    like: int = -1
    data: bytes | None = None
    kept: tuple[int, int, int] | None = None  # dimension, start and count of the channels whose quantization it keeps


@dataclass
class _Writing:
    bands: TfliteBands
    split: Split
    new: list[_New] = field(default_factory=list)
    codes: list[tuple[int, int]] = field(default_factory=list)  # new operator codes: number, version
    _constants: dict[object, int] = field(default_factory=dict)

    def file(self) -> bytes:
        bands, graph = self.bands, self.bands.graph
        main = bands.main
        self.tables = bands.tables
        count = len(bands.program.buffers)
        self.value: dict[int, int] = dict(enumerate(bands.tensor_of))
        # New tensors are numbered -2, -3, ... until it is known which old numbers are free.
        for k, part in enumerate(self.split.parts):
            old = bands.tensor_of[part.buffer]
            tensor = main.tensors[old]
            d = dimension(tensor.shape, part.axis)
            assert d is not None
            shape = (*tensor.shape[:d], part.count, *tensor.shape[d + 1 :])
            self.value[count + k] = self._add(_New(part.name, shape, old))
        rows = [self._operator(step) for step in self.split.steps]
        named = {t for row in rows for t in (*row.inputs, *row.outputs)} | {*main.inputs, *main.outputs}
        before = {t for op in main.operators for t in (*op.inputs, *op.outputs, *op.intermediates) if t >= 0}
        kept = {t for row in rows if row.table is not None and row.kept for t in main.operators[row.source].intermediates}
        free = sorted(before - named - kept)
        place = {-1: -1, **{t: t for t in range(len(main.tensors))}}
        for k in range(len(self.new)):
            place[-2 - k] = free[k] if k < len(free) else len(main.tensors) + k - len(free)
        return self._join(graph, rows, place)

    def _add(self, tensor: _New) -> int:
        self.new.append(tensor)
        return -1 - len(self.new)

    def _ints(self, values: Sequence[int]) -> int:
        """A constant of int32; the same values are the same constant."""
        key = tuple(values)
        if key not in self._constants:
            data = b"".join(v.to_bytes(4, "little", signed=True) for v in values)
            self._constants[key] = self._add(_New("peakmem/" + "_".join(map(str, values)), (len(values),), data=data))
        return self._constants[key]

    def _cut(self, tensor: int, d: int, start: int, count: int) -> int:
        """Entries of a constant along a dimension."""
        whole = self.bands.main.tensors[tensor]
        if count == whole.shape[d]:
            return tensor
        key = ("cut", tensor, d, start, count)
        if key not in self._constants:
            outer = 1
            for n in whole.shape[:d]:
                outer *= n
            data = self.bands.data(tensor)
            step = whole.size // outer  # bytes behind one index of the outer dimensions
            inner = step // whole.shape[d]
            piece = b"".join(data[o * step + start * inner : o * step + (start + count) * inner] for o in range(outer))
            shape = (*whole.shape[:d], count, *whole.shape[d + 1 :])
            name = f"{whole.name} [{d}: {start}:{start + count}]"
            self._constants[key] = self._add(_New(name, shape, tensor, piece, (d, start, count)))
        return self._constants[key]

    def _operator(self, step: Step) -> _Row:
        main, bands = self.bands.main, self.bands
        if step.kind == "keep":
            op = main.operators[step.statement]
            return _Row(op.inputs, op.outputs, step.statement, self.tables[step.statement], kept=True)
        outputs = tuple(self.value[b] for b in step.writes)
        whole = [self._rows(b) for b in (*step.reads, *step.writes)]
        if step.kind == "cut":
            (source,) = step.reads
            shape = self._shape(self.value[source])
            d = dimension(shape, step.axis)
            assert d is not None
            start = whole[1][0] - whole[0][0]
            begin, end = [0] * len(shape), list(shape)
            begin[d], end[d] = start, start + whole[1][1]
            numbers = [self._ints(values) for values in (begin, end, [1] * len(shape))]
            return _Row((self.value[source], *numbers), outputs, code=self._code(_STRIDED_SLICE[0], self._kind_of(source)), options=_STRIDED_SLICE[1])
        if step.kind == "join":
            shape = self._shape(outputs[0])
            d = dimension(shape, step.axis)
            assert d is not None
            kind = self._kind_of(step.reads[0])
            return _Row(tuple(self.value[b] for b in step.reads), outputs, code=self._code(_CONCATENATION[0], kind), options=_CONCATENATION[1], along=d)
        kernel = bands.kernel(step.statement, step.axis)
        assert not isinstance(kernel, str)
        op = main.operators[step.statement]
        original = bands.program.statements[step.statement]
        given = {bands.tensor_of[b]: self.value[new] for b, new in zip(original.reads, step.reads)}
        start, count = whole[-1]
        inputs: list[int] = []
        for place, t in enumerate(op.inputs):
            if place in kernel.cuts:
                t = self._cut(t, kernel.cuts[place], start, count)
            elif kernel.shape is not None and place == kernel.shape[0]:
                numbers = list(bands._numbers(op, place) or ())
                numbers[kernel.shape[1]] = count
                t = self._ints(numbers)
            inputs.append(given.get(t, t))
        return _Row(tuple(inputs), outputs, step.statement, self.tables[step.statement])

    def _rows(self, buffer: int) -> tuple[int, int]:
        """Start and count of a buffer of the split program."""
        parts = self.split.parts
        k = buffer - len(self.bands.program.buffers)
        return (parts[k].start, parts[k].count) if k >= 0 else (0, 0)

    def _shape(self, tensor: int) -> tuple[int, ...]:
        return self.new[-2 - tensor].shape if tensor < -1 else self.bands.main.tensors[tensor].shape

    def _kind_of(self, buffer: int) -> str:
        tensor = self.value[buffer]
        return self.bands.main.tensors[self.new[-2 - tensor].like if tensor < -1 else tensor].type

    def _code(self, number: int, kind: str) -> int:
        """The operator code with this number, of the version that first took such elements."""
        version = {"FLOAT32": 1, "INT8": 2}.get(kind, 3 if number == _CONCATENATION[0] else 4)
        old = Flat(self.bands.graph.data, "model").root().children(_CODES, "operator code")
        for k, table in enumerate(old):
            if max(table.scalar(0, "b"), table.scalar(3, "i")) == number and table.scalar(2, "i", 1) >= version:
                return k
        if (number, version) not in self.codes:
            self.codes.append((number, version))
        return len(old) + self.codes.index((number, version))

    # -- bytes --------------------------------------------------------------------------------------------------

    def _join(self, graph: Graph, rows: list[_Row], place: dict[int, int]) -> bytes:
        root = Flat(graph.data, "model").root()
        subgraphs = root.children(_SUBGRAPHS, "subgraph")
        tables = self.bands.tensor_tables
        buffers: list[int | str] = [t.at for t in root.children(_BUFFERS, "buffer")]
        old_buffers = len(buffers)
        codes: list[int | str] = [t.at for t in root.children(_CODES, "operator code")]
        codes += [f"code {k}" for k in range(len(self.codes))]
        dropping = any(m.name == PLAN_NAME for m in graph.metadata)
        tensors: list[int | str] = [t.at for t in tables]
        tensors += [0] * (max(place.values(), default=-1) + 1 - len(tensors))
        data: list[bytes] = []
        number: list[int] = []  # buffer of each new tensor
        for k, tensor in enumerate(self.new):
            tensors[place[-2 - k]] = f"tensor {k}"
            number.append(-1)
            if tensor.data is not None:
                number[k] = old_buffers + len(data)
                buffers.append(f"buffer {len(data)}")
                data.append(tensor.data)
        out = Prefix()
        replaced = {_CODES: "codes", _SUBGRAPHS: "subgraphs", _BUFFERS: "buffers"}
        out.copy("root", root, MODEL, replaced | ({_METADATA: "entries"} if dropping else {}))
        out.vector("codes", codes)
        out.vector("subgraphs", ["main", *(t.at for t in subgraphs[1:])])
        out.vector("buffers", buffers)
        if dropping:
            out.vector("entries", entries_without_plan(graph))
        out.copy("main", subgraphs[0], SUBGRAPH, {_TENSORS: "tensors", _OPERATORS: "operators"})
        out.vector("tensors", tensors)
        out.vector("operators", [f"operator {k}" if row.table is None or not row.kept else row.table.at for k, row in enumerate(rows)])
        for k, (code, version) in enumerate(self.codes):
            out.table(f"code {k}", [4, 0, 8, 12])
            for value in (code, version, code):
                out.put("i", value)
        for k, tensor in enumerate(self.new):
            self._tensor(out, k, tensor, number[k])
        for k, row in enumerate(rows):
            if not row.kept:
                _operator_table(out, k, row, place)
        for k in range(len(data)):
            out.table(f"buffer {k}", [4])
            out.distance(f"data {k}")
        for k, content in enumerate(data):
            out.align(16, 12)  # so that the data after the vector's length are aligned
            out.mark(f"data {k}")
            out.put("I", len(content))
            out.bytes += content
        return out.join(graph)

    def _tensor(self, out: Prefix, k: int, tensor: _New, buffer: int) -> None:
        """A tensor's table, its shape and name, and the quantization of the channels it keeps."""
        if tensor.like < 0:
            out.table(f"tensor {k}", [4, 8, 12, 16])
            out.distance(f"shape {k}")
            out.put("i", _INT32)
            out.put("I", buffer)
            out.distance(f"name {k}")
        else:
            table = self.bands.tensor_tables[tensor.like]
            replaced = {_SHAPE: f"shape {k}", _NAME: f"name {k}"}
            quantization = table.sub(_QUANTIZATION, "quantization")
            cut = quantization if tensor.kept is not None and self._scales(quantization) > 1 else None
            if cut is not None:
                replaced[_QUANTIZATION] = f"quantization {k}"
            numbers = {_BUFFER: buffer} if buffer >= 0 else {}
            out.copy(f"tensor {k}", table, TENSOR, replaced, numbers=numbers, dropped=(_SIGNATURE,))
            if cut is not None:
                assert tensor.kept is not None
                _quantization_table(out, f"quantization {k}", cut, *tensor.kept[1:])
        out.ints(f"shape {k}", tensor.shape)
        out.text(f"name {k}", tensor.name)

    @staticmethod
    def _scales(quantization: Table | None) -> int:
        return quantization.vector(_SCALE, 4, "scale")[1] if quantization is not None else 0


@dataclass
class _Row:
    """An operator to be written: a kept one, a band of one (with its table), or one of our own."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    source: int = -1
    table: Table | None = None
    code: int = 0
    options: int = 0
    along: int | None = None
    kept: bool = False


def _operator_table(out: Prefix, k: int, row: _Row, place: dict[int, int]) -> None:
    if row.table is not None:
        out.copy(f"operator {k}", row.table, OPERATOR, {INPUTS: f"inputs {k}", OUTPUTS: f"outputs {k}"})
    else:
        out.table(f"operator {k}", [4, 8, 12, 16, 20])
        out.put("I", row.code)
        out.distance(f"inputs {k}")
        out.distance(f"outputs {k}")
        out.put("I", row.options)
        out.distance(f"options {k}")
        out.table(f"options {k}", [4] if row.along is not None else [])
        if row.along is not None:
            out.put("i", row.along)
    out.ints(f"inputs {k}", [place[t] for t in row.inputs])
    out.ints(f"outputs {k}", [place[t] for t in row.outputs])


def _quantization_table(out: Prefix, label: str, table: Table, start: int, count: int) -> None:
    """The quantization of some of the channels: their scales and zero points."""
    replaced = {_SCALE: f"{label} scale"}
    points = table.vector(_ZERO_POINT, 8, "zero point")
    if points[1] > 1:
        replaced[_ZERO_POINT] = f"{label} zero point"
    out.copy(label, table, QUANTIZATION, replaced, dropped=(0, 1))  # the range seen in training, which no runtime reads
    data = table.flat.data
    at, _ = table.vector(_SCALE, 4, "scale")
    out.mark(f"{label} scale")
    out.put("I", count)
    out.bytes += data[at + 4 * start : at + 4 * (start + count)]
    if points[1] > 1:
        out.align(8, 4)  # so that the numbers of 8 bytes after the vector's length are aligned
        out.mark(f"{label} zero point")
        out.put("I", count)
        out.bytes += data[points[0] + 8 * start : points[0] + 8 * (start + count)]
