"""Is one file the other with some of its operators run in bands of rows or channels? Read off both files; nothing runs.

A file is split by slices of a tensor (STRIDED_SLICE), its operators on fewer rows or with fewer output channels, and
CONCATENATION of their results. So a tensor of the split file holds a *piece* of one of the original: rows from some row
on, some of them right (the others saw the edge of the band as if it were the edge of the picture), and channels from
some channel on. Pieces follow from the files alone, operator by operator (`splitrules`): attributes must be the
original's, weights too, cut where channels are, and which rows are right follows from them and the shapes (`splitrows`).
Whatever joins to all right rows and channels of a tensor holds its value. All other operators are numbered by what they
read, as in `structure`, and must be the original's: reading a whole value, once where they have effects.
What is not known here to keep every bit in bands is refused. Nothing is taken from the code that splits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import prod

from peakmem.frontends import Structure
from peakmem.frontends.structure import Numbering, compare
from peakmem.model import InputError, moves

from peakmem_tflite.effects import pure
from peakmem_tflite.graph import PLAN_NAME, Graph, Operator
from peakmem_tflite.macs import macs
from peakmem_tflite.reader import read
from peakmem_tflite.splitrows import NoMap, whole
from peakmem_tflite.splitrules import MOST_PIECES, RULES, Pair, Piece, Rule, Sides, height, pair
from peakmem_tflite.structure import File, Unknown, compare_graphs, interfaces

_MOST_JOINED = 10
"""Inputs that a CONCATENATION of TFLite Micro may have."""

_COPIES = frozenset({"STRIDED_SLICE", "CONCATENATION"})
"""What cuts and joins; operators of the original may do so too."""


@dataclass(frozen=True)
class Bands:
    """An operator of the original that runs in bands.

    Attributes
    ----------
    operator : int
    op : str
    count : int
        Operators of the split file that are it on a part.
    axes : str
        ``"rows"``, ``"channels"``, or ``"rows and channels"``.
    rows_again : int
        Rows that the bands compute beyond the whole's, those that are dropped among them; negative where not all are needed.
    """

    operator: int
    op: str
    count: int
    axes: str
    rows_again: int


@dataclass(frozen=True)
class SplitReading:
    """What a split file is to the original.

    Attributes
    ----------
    bands : tuple of Bands
        By operator; empty where nothing runs in bands.
    macs, extra_macs : int
        Multiply-accumulates of the original, and how many more the split file has.
    others, moved : int
        Operators of the original that only run whole, and how many that run whole stand elsewhere among themselves.
    """

    bands: tuple[Bands, ...]
    macs: int
    extra_macs: int
    others: int
    moved: int

    @property
    def relation(self) -> str:
        """One sentence."""
        if not self.bands:
            return f"the same {self.others} operators, none of them in bands"
        said = []
        for (axes, count), rows in groupby(self.bands, lambda b: (b.axes, b.count)):
            said += [f"{_ranges([b.operator for b in rows])} in {count} {'band' if count == 1 else 'bands'} of {axes}"]
        share = f"{100 * abs(self.extra_macs) / self.macs:.2f} % {'more' if self.extra_macs > 0 else 'fewer'}" if self.extra_macs else "no more"
        again = sum(max(0, b.rows_again) for b in self.bands)
        return (
            f"the first one split: operator{'s' if len(self.bands) > 1 else ''} {', '.join(said)}, {share} multiply-accumulates, {again} rows computed again; "
            f"the other {self.others} operators, all constants and attributes are the same" + (f", {self.moved} at other places" if self.moved else "")
        )


def _ranges(numbers: list[int]) -> str:
    runs = [[i for _, i in run] for _, run in groupby(enumerate(numbers), lambda row: row[1] - row[0])]
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def check_split(original: bytes, split: bytes) -> SplitReading:
    """Make sure that ``split`` is ``original`` with some operators of its main subgraph in bands, and nothing else.

    Operators may stand in any order that dependences and effects allow, pure ones may run more than once, and a plan of offsets
    does not count. O(size of both files), times the channels where they are cut.

    Raises
    ------
    InputError
        Naming the first thing that is not so, or that is not known to keep every bit.
    """
    return read_split(read(original, "the first file"), read(split, "the second file"))


def compare_files(first: Graph, second: Graph) -> Structure:
    """What ``second`` is to ``first``: it with operators permuted and copied, or in bands; see `peakmem.frontends.Model.structure`."""
    found = compare_graphs(first, second)
    joins = [sum(op.op == "CONCATENATION" for op in g.subgraphs[0].operators) for g in (first, second)]
    if not found.difference or joins[1] <= joins[0]:
        return found
    try:
        return Structure(read_split(first, second).relation)
    except InputError as error:
        return Structure(difference=str(error))


def read_split(first: Graph, second: Graph) -> SplitReading:
    """As `check_split`, of files that were read."""
    files = File(first, "the first file"), File(second, "the second file")
    if len(first.subgraphs) != len(second.subgraphs):
        raise InputError(f"the first has {len(first.subgraphs)} subgraphs, the second {len(second.subgraphs)}")
    difference = interfaces(*files) or _beside(*files)
    if difference:
        raise InputError(difference)
    try:
        return _Reading(*files).reading()
    except Unknown as error:
        raise InputError(str(error)) from None


def _beside(first: File, second: File) -> str:
    """A difference beside the main subgraph."""
    rows = [sorted((m.name, f.bytes(m.buffer)) for m in f.graph.metadata if m.name != PLAN_NAME) for f in (first, second)]
    if rows[0] != rows[1]:
        return "their metadata differ"
    for k in range(1, len(first.graph.subgraphs)):
        if [g.callers[k] for g in (first.graph, second.graph)] == [0, 0]:
            found = compare(first.part(k), second.part(k)).difference
            if found:
                return f"{found} (subgraph {k})"
    return ""


class _Reading(Sides):
    """The walk over the split file."""

    def __init__(self, old: File, new: File) -> None:
        super().__init__(old, new)
        part = old.part(0)
        numbers = Numbering(part.given)
        self.steps, self.numbers = part.steps, [numbers.run(step)[0] for step in part.steps]
        self.values = [numbers.value(name) for name in old.names[0]]
        self.holders: dict[str, list[int]] = defaultdict(list)
        for t, tensor in enumerate(self.old.main.tensors):
            if not tensor.variable:
                self.holders[self.values[t]].append(t)
        self.readers: dict[tuple[int, int], list[int]] = defaultdict(list)  # (tensor, operand) -> operators
        for p, op in enumerate(self.old.main.operators):
            for k, t in enumerate(op.inputs):
                self.readers[t, k].append(p)
        self.pieces: dict[int, tuple[Piece, ...]] = {}
        self.banded: dict[int, list[int]] = defaultdict(list)
        self.placed: dict[int, str] = {}  # operators that run whole, and their numbers

    def reading(self) -> SplitReading:
        """Follow every operator, then see that all is there."""
        part = self.new.file.part(0)
        self.now = Numbering(part.given)
        known = set(self.numbers)
        for q, (op, step) in enumerate(zip(self.new.main.operators, part.steps)):
            number, _ = self.now.run(step)
            reason = "is not an operator of the first"
            if (number not in known or op.op in _COPIES) and pure(self.new.file.graph, self.new.main, op):
                reason = self._parts(q, op, original=number in known)
            if number in known:
                self.placed[q] = number
            elif reason:
                raise InputError(f"{step.name} of the second {reason}")
        self._complete()
        return self._said()

    # What tensors hold

    def held(self, t: int) -> list[Piece]:
        found = self.holders.get(self.now.value(self.new.file.names[0][t]), ())
        return [*(Piece(u, whole(height(self.old.shape(u)))) for u in found[:MOST_PIECES]), *self.pieces.get(t, ())]

    def same(self, t: int, u: int) -> bool:
        if min(t, u) < 0:
            return t == u
        return self.now.value(self.new.file.names[0][t]) == self.values[u] and not self.old.main.tensors[u].variable

    def _parts(self, q: int, op: Operator, *, original: bool) -> str:
        """Note the pieces that an operator's result is; the reason where it is none.

        The result of an operator of the original keeps its number: a slice may hold all of another tensor there, too.
        """
        reason = ""
        found: dict[Piece, None] = {}
        for way in (self._sliced, self._joined, self._in_bands):
            try:
                found.update(dict.fromkeys(way(q, op)))
            except NoMap as error:
                reason = reason or str(error)
        if not found:
            return reason
        t = op.outputs[0]
        self.pieces[t] = tuple(found)[:MOST_PIECES]
        for piece in found:  # what holds all of one of the original's has its number
            if not original and piece.rows == whole(piece.rows.count) and self.new.file.kind(0, t) == self.old.file.kind(0, piece.tensor):
                self.now.now[self.new.file.names[0][t]] = self.values[piece.tensor]
        return ""

    def _sliced(self, q: int, op: Operator) -> Iterator[Piece]:
        if op.op != "STRIDED_SLICE":
            return
        if len(op.inputs) != 4 or len(op.outputs) != 1 or min(op.inputs) < 0:
            raise NoMap("has not the operands of a slice")
        x, y = self.new.shape(op.inputs[0]), self.new.shape(op.outputs[0])
        options = self.new.options(q, "StridedSliceOptions")
        begin, end, steps = (self.new.numbers(t) for t in op.inputs[1:])
        if any((options.EllipsisMask(), options.NewAxisMask(), options.ShrinkAxisMask(), options.Offset(), set(steps) != {1})):
            raise NoMap("slices otherwise than by ranges")
        if not len(begin) == len(end) == len(steps) == len(x) == len(y):
            raise NoMap("slices otherwise than by ranges")
        spans = []
        for axis, extent in enumerate(x):
            lo, hi = (v + extent if v < 0 else v for v in (begin[axis], end[axis]))
            lo, hi = 0 if options.BeginMask() >> axis & 1 else lo, extent if options.EndMask() >> axis & 1 else hi
            if not 0 <= lo < hi <= extent or hi - lo != y[axis]:
                raise NoMap(f"slices {lo} to {hi} of {extent} into {y[axis]} (axis {axis})")
            if (lo, hi) != (0, extent) and axis != len(x) - 1 and (len(x), axis) != (4, 1):
                raise NoMap(f"slices along axis {axis}, neither rows nor channels")
            spans.append(lo)
        row = spans[1] if len(x) == 4 else 0
        held = self.held(op.inputs[0])
        rows = [replace(piece.rows, first=piece.rows.first + row, count=height(y)) for piece in held]
        yield from self._made(op, [Piece(piece.tensor, r, piece.channel + spans[-1]) for piece, r in zip(held, rows)])

    def _joined(self, q: int, op: Operator) -> Iterator[Piece]:
        if op.op != "CONCATENATION":
            return
        if len(op.outputs) != 1 or not op.inputs or min(op.inputs) < 0:
            raise NoMap("has not the operands of a join")
        options = self.new.options(q, "ConcatenationOptions")
        shapes = [self.new.shape(t) for t in op.inputs]
        rank = len(shapes[0])
        axis = options.Axis() + rank if options.Axis() < 0 else options.Axis()
        by_rows = (rank, axis) == (4, 1)
        if options.FusedActivationFunction() or not (by_rows or axis == rank - 1 >= 0) or any(len(s) != rank for s in shapes):
            raise NoMap("joins neither rows nor channels")
        if len(op.inputs) > _MOST_JOINED:
            raise NoMap(f"joins {len(op.inputs)} tensors, more than the {_MOST_JOINED} that TFLite Micro can")
        joined = [(piece, shapes[0][-1]) for piece in self.held(op.inputs[0])]  # with its channels
        for t, shape in zip(op.inputs[1:], shapes[1:]):
            more: dict[tuple[Piece, int], None] = {}
            for (piece, width), other in product(joined, self.held(t)):
                x, y = piece.rows, other.rows
                end = x.first + x.count
                if other.tensor != piece.tensor:
                    continue
                if by_rows:
                    if (y.first, other.channel, shape[-1]) == (end, piece.channel, width) and x.hi == end == y.lo:
                        more[replace(piece, rows=replace(x, count=x.count + y.count, hi=y.hi)), width] = None
                elif (y.first, y.count, other.channel) == (x.first, x.count, piece.channel + width):
                    more[replace(piece, rows=replace(x, lo=max(x.lo, y.lo), hi=min(x.hi, y.hi))), width + shape[-1]] = None
            if not more:
                raise NoMap(f"joins {self._about([piece for piece, _ in joined])} and {self._about(self.held(t))}")
            joined = list(more)[:MOST_PIECES]
        yield from self._made(op, [piece for piece, _ in joined])

    def _in_bands(self, q: int, op: Operator) -> Iterator[Piece]:
        """An operator of the original on some of its rows, or some of its channels."""
        rule = RULES.get(op.op)
        if rule is None or op.custom:
            raise NoMap(f"is not an operator of the first, and no {op.op} may run in bands")
        if len(op.outputs) != 1 or len(op.inputs) < rule.needed or min(op.inputs[: rule.needed]) < 0:
            raise NoMap("has not the operands that it needs")
        reason, tried = "is neither an operator of the first nor part of one", set()
        known = False
        # Of several operands alike the first may be a constant: the original is sought by any.
        for k in range(len(op.inputs)) if rule.data < 0 else (rule.data,):
            for piece in self.held(op.inputs[k]) if op.inputs[k] >= 0 else ():
                for p in self.readers.get((piece.tensor, k), ()):
                    if (piece, p) in tried:
                        continue
                    tried.add((piece, p))
                    try:
                        found = self._bands_of(rule, pair(self, p, q, piece, k))
                    except NoMap as error:
                        reason = str(error)
                        continue
                    known = True
                    self.banded[p] += [q] if q not in self.banded[p] else []
                    yield from found
        if not known:
            raise NoMap(reason)

    def _bands_of(self, rule: Rule, o: Pair) -> list[Piece]:
        if self.new.settings(o.q) != self.old.settings(o.p) or len(o.x.inputs) != len(o.y.inputs):
            raise NoMap(f"has other attributes than {o.name}")
        if not pure(self.old.file.graph, self.old.main, o.x) or self.old.file.fenced or self.new.file.fenced:
            raise NoMap("may not run in bands for its effects, or for those of another")
        results = list(rule.results(o))
        if not results:
            raise NoMap(f"is no part of {o.name}")
        return self._made(o.y, [Piece(o.x.outputs[0], rows, channel) for rows, channel in results])

    def _made(self, op: Operator, pieces: list[Piece]) -> list[Piece]:
        """Those pieces that an operator's result can be; at least one, if there are any."""
        found, reason = [], None
        for piece in pieces:
            try:
                found.append(self._fitting(op.outputs[0], piece))
            except NoMap as error:
                reason = error
        if reason and not found:
            raise reason
        return found

    def _fitting(self, t: int, piece: Piece) -> Piece:
        """The piece that a tensor is, if it is of the shape, type and quantization that it should have."""
        u = piece.tensor
        x, y = self.new.main.tensors[t], self.old.main.tensors[u]
        rank = len(y.shape)
        if len(x.shape) != rank or any(n != m for k, (n, m) in enumerate(zip(x.shape, y.shape)) if k != rank - 1 and (rank, k) != (4, 1)):
            raise NoMap(f"gives the shape {list(x.shape)}, which is no part of {list(y.shape)}")
        if height(x.shape) != piece.rows.count:
            raise NoMap(f"gives {height(x.shape)} rows, not the {piece.rows.count} that it computes")
        if rank and piece.channel + x.shape[-1] > y.shape[-1]:
            raise NoMap(f"gives channels that {self._name(u)} of the first has not")
        if self.new.file.form(0, t) != self.old.file.form(0, u) or x.variable:
            raise NoMap(f"gives another type or quantization than {self._name(u)} of the first has")
        if x.shape[-1:] != y.shape[-1:] and y.scales > 1:
            raise NoMap("cuts channels that are quantized one by one")
        signature = self.new.file.tensors[0][t].ints(7, "shape signature")
        if signature and (len(signature) != rank or any(s not in (-1, n) for s, n in zip(signature, x.shape))):
            raise NoMap("gives a tensor whose signature is of another shape")
        return replace(piece, rows=piece.rows.clipped())

    def _name(self, u: int) -> str:
        return self.old.file.names[0][u]

    def _about(self, pieces: list[Piece]) -> str:
        if not pieces:
            return "a tensor that is no part of one of the first"
        rows, end = pieces[-1].rows, pieces[-1].rows.first + pieces[-1].rows.count
        right = "" if (rows.lo, rows.hi) == (rows.first, end) else f" ({rows.lo} to {rows.hi} of them right)"
        channels = f", channels from {pieces[-1].channel} on" if pieces[-1].channel else ""
        return f"rows {rows.first} to {end}{right}{channels} of {self._name(pieces[-1].tensor)}"

    # The end

    def _complete(self) -> None:
        for k, (t, u) in enumerate(zip(self.new.main.outputs, self.old.main.outputs)):
            if self.now.value(self.new.file.names[0][t]) != self.values[u]:
                raise InputError(f"output {k} of the second is {self._about(self.held(t))}, not all of {self._name(u)} as in the first")
        found, have = Counter(self.placed.values()), Counter(self.numbers)
        for p, (number, step) in enumerate(zip(self.numbers, self.steps)):
            if not found[number] and p not in self.banded:
                raise InputError(f"{step.name} of the first is missing from the second")
            if step.once and found[number] != have[number]:
                raise InputError(f"{step.name} of the first runs {found[number]} times in the second, which its effects forbid")
        read = {t for op in self.new.main.operators for t in op.inputs} | set(self.new.main.outputs)
        for q, op in enumerate(self.new.main.operators):
            if q not in self.placed and not read & set(op.outputs):
                raise InputError(f"operator {q} ({op.op}) of the second gives what nothing reads")

    def _said(self) -> SplitReading:
        places: dict[str, list[int]] = defaultdict(list)
        for p, number in enumerate(self.numbers):
            places[number].append(p)
        order = [places[number].pop(0) for number in self.placed.values() if places[number]]
        rank = {p: i for i, p in enumerate(sorted(order))}
        bands = []
        told = set(self.placed)
        for p, users in sorted(self.banded.items()):
            parts = [q for q in users if q not in told]
            told |= set(parts)
            if not parts:
                continue
            op = self.old.main.operators[p]
            of, shapes = self.old.shape(op.outputs[0]), [self.new.shape(self.new.main.operators[q].outputs[0]) for q in parts]
            axes = ["rows"] * any(height(s) != height(of) for s in shapes) + ["channels"] * any(s[-1:] != of[-1:] for s in shapes)
            again = sum(height(s) * prod(s[-1:]) for s in shapes) // max(1, prod(of[-1:])) - height(of)
            bands.append(Bands(p, op.op, len(parts), " and ".join(axes) or "rows", again))
        before, after = (sum(macs(side.main, op) for op in side.main.operators) for side in (self.old, self.new))
        return SplitReading(tuple(bands), before, after - before, len(self.steps) - len(bands), len(moves([rank[p] for p in order])))
