"""Is one file the other with some of its operators run in bands of rows or channels? Read off both files; nothing runs.

A file is split by slices of a tensor (STRIDED_SLICE), its operators on fewer rows or with fewer output channels, and
CONCATENATION of their results. So a tensor of the split file holds a *piece* of one of the original: rows from some row
on, some of them right (the others saw the edge of the band as if it were the edge of the picture), and channels from
some channel on. Pieces follow from the files alone, operator by operator: by `splitrows` from the attributes, which must
be the original's, from weights that must be the original's, cut where channels are, and from shapes. Whatever joins to
all right rows and channels of a tensor holds its value. All other operators are numbered by what they read, as in
`structure`, and must be the original's: reading a whole value, once where they have effects.
What is not known here to keep every bit in bands is refused. Nothing is taken from the code that splits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any, TypeAlias

import numpy as np
from peakmem.frontends import Structure
from peakmem.frontends.structure import Numbering
from peakmem.frontends.structure import compare as compare_parts
from peakmem.model import InputError, moves

from peakmem_tflite.effects import pure
from peakmem_tflite.graph import PLAN_NAME, Graph, Operator
from peakmem_tflite.macs import macs
from peakmem_tflite.reader import BYTES, read
from peakmem_tflite.splitrows import NoMap, Rows, bilinear, blocks, nearest, padded, sliding, transposed, whole
from peakmem_tflite.structure import File, Unknown, compare_graphs, interfaces

_MOST_JOINED = 10
"""Inputs that a CONCATENATION of TFLite Micro may have."""

_MOST_PIECES = 64
"""Of a tensor: where channels of weights are alike, or tensors, it may stand for several. More are forgotten, which only refuses more."""

_ELEMENTWISE = frozenset(
    ["ABS", "ADD", "CAST", "CEIL", "COS", "DEQUANTIZE", "DIV", "ELU", "EQUAL", "EXP", "FLOOR", "FLOOR_DIV", "FLOOR_MOD", "GELU", "GREATER", "GREATER_EQUAL", "HARD_SWISH", "LEAKY_RELU", "LESS", "LESS_EQUAL", "LOG", "LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "LOGISTIC", "MAXIMUM", "MINIMUM", "MUL", "NEG", "NOT_EQUAL", "PRELU", "QUANTIZE", "RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "SQUARED_DIFFERENCE", "SUB", "TANH"]
)
_ALONG_CHANNELS = frozenset({"SOFTMAX", "L2_NORMALIZATION", "CONCATENATION"})
"""Each row by itself, if all channels are there."""

_COPIES = frozenset({"STRIDED_SLICE", "CONCATENATION"})
"""What cuts and joins; operators of the original may do so too."""

_POOLS = {"AVERAGE_POOL_2D", "MAX_POOL_2D"}
_PADS = {"PAD", "PADV2", "MIRROR_PAD"}


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
        Operators that run whole, and how many of them stand elsewhere among themselves.
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
            said += [f"{_ranges([b.operator for b in rows])} in {count} bands of {axes}"]
        more = f"{100 * self.extra_macs / self.macs:.2f} % more multiply-accumulates" if self.extra_macs else "no more multiply-accumulates"
        again = sum(max(0, b.rows_again) for b in self.bands)
        return (
            f"the first one split: operators {', '.join(said)}, {more}, {again} rows computed again; "
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
            found = compare_parts(first.part(k), second.part(k)).difference
            if found:
                return f"{found} (subgraph {k})"
    return ""


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a tensor of the split file holds: these rows of a tensor of the original, and its channels from ``channel`` on."""

    tensor: int
    rows: Rows
    channel: int = 0


def _height(shape: tuple[int, ...]) -> int:
    """Rows: only tensors of batch, rows, columns and channels have them."""
    return shape[1] if len(shape) == 4 else 1


class _Reading:
    """The walk over the split file."""

    def __init__(self, old: File, new: File) -> None:
        self.old, self.new = old, new
        self.a, self.b = old.graph.subgraphs[0], new.graph.subgraphs[0]
        part = old.part(0)
        numbers = Numbering(part.given)
        ran = [numbers.run(step) for step in part.steps]
        self.number = [number for number, _ in ran]
        self.read = [row for _, row in ran]
        self.steps = part.steps
        self.value = [numbers.value(name) for name in old.names[0]]
        self.holders: dict[str, list[int]] = defaultdict(list)
        for t, tensor in enumerate(self.a.tensors):
            if not tensor.variable:
                self.holders[self.value[t]].append(t)
        self.readers: dict[tuple[int, int], list[int]] = defaultdict(list)  # (tensor, operand) -> operators
        for p, op in enumerate(self.a.operators):
            for k, t in enumerate(op.inputs):
                if p not in self.readers[t, k]:
                    self.readers[t, k].append(p)
        self.attributes: dict[tuple[bool, int], tuple[str, ...]] = {}
        self.keys: dict[tuple[bool, int, int], list[bytes]] = {}
        self.pieces: dict[int, tuple[_Piece, ...]] = {}
        self.banded: dict[int, list[int]] = defaultdict(list)

    def reading(self) -> SplitReading:
        """Follow every operator, then see that all is there."""
        part = self.new.part(0)
        self.now = Numbering(part.given)
        known = set(self.number)
        placed: list[tuple[int, str]] = []
        for q, (op, step) in enumerate(zip(self.b.operators, part.steps)):
            number, _ = self.now.run(step)
            reason = ""
            if (number not in known or op.op in _COPIES) and pure(self.new.graph, self.b, op):
                reason = self._parts(q, op)
            if number in known:
                placed.append((q, number))
            elif op.outputs and op.outputs[0] in self.pieces:
                self._settle(op.outputs[0])
            else:
                raise InputError(f"{step.name} of the second {reason or 'is not an operator of the first'}")
        self._complete(placed)
        return self._said(placed)

    # What an operator gives

    def _parts(self, q: int, op: Operator) -> str:
        """Note the pieces that an operator's result is; the reason where it is none."""
        reason = ""
        found: dict[_Piece, None] = {}
        for way in (self._sliced, self._joined, self._in_bands):
            try:
                for piece in way(q, op):
                    found.setdefault(piece)
            except NoMap as error:
                reason = reason or str(error)
        if found:
            self.pieces[op.outputs[0]] = tuple(found)[:_MOST_PIECES]
        return reason

    def _settle(self, t: int) -> None:
        """A tensor that holds all of one of the original's has its number."""
        for piece in self.pieces[t]:
            if piece.rows == whole(piece.rows.count) and self.new.kind(0, t) == self.old.kind(0, piece.tensor):
                self.now.now[self.new.names[0][t]] = self.value[piece.tensor]

    def _held(self, t: int) -> list[_Piece]:
        """All that a tensor is known to hold."""
        value = self.now.value(self.new.names[0][t])
        of_whole = [_Piece(u, whole(_height(self.a.tensors[u].shape))) for u in self.holders.get(value, ())]
        return [*of_whole[:_MOST_PIECES], *self.pieces.get(t, ())]

    def _whole(self, t: int, u: int) -> bool:
        """Whether a tensor of the split file holds all of one of the original."""
        if t < 0 or u < 0:
            return t == u
        return self.now.value(self.new.names[0][t]) == self.value[u] and not self.a.tensors[u].variable

    def _sliced(self, q: int, op: Operator) -> Iterator[_Piece]:
        if op.op != "STRIDED_SLICE":
            return
        if len(op.inputs) != 4 or len(op.outputs) != 1 or min(op.inputs) < 0:
            raise NoMap("has not the operands of a slice")
        x, y = self.b.tensors[op.inputs[0]].shape, self.b.tensors[op.outputs[0]].shape
        options = self._options(False, q, "StridedSliceOptions")
        if options.EllipsisMask() or options.NewAxisMask() or options.ShrinkAxisMask() or options.Offset():
            raise NoMap("slices otherwise than by ranges")
        begin, end, steps = (self._numbers(False, op, k) for k in (1, 2, 3))
        if not len(begin) == len(end) == len(steps) == len(x) == len(y) or set(steps) != {1}:
            raise NoMap("slices otherwise than by ranges")
        spans = []
        for axis, extent in enumerate(x):
            lo, hi = (v + extent if v < 0 else v for v in (begin[axis], end[axis]))
            lo, hi = 0 if options.BeginMask() >> axis & 1 else lo, extent if options.EndMask() >> axis & 1 else hi
            if not 0 <= lo < hi <= extent or hi - lo != y[axis]:
                raise NoMap(f"slices {lo} to {hi} of {extent} into {y[axis]} (axis {axis})")
            if (lo, hi) != (0, extent) and axis != len(x) - 1 and not (axis == 1 and len(x) == 4):
                raise NoMap(f"slices along axis {axis}, neither rows nor channels")
            spans.append((lo, hi))
        row, channel = spans[1][0] if len(x) == 4 else 0, spans[-1][0] if spans else 0
        for piece in self._held(op.inputs[0]):
            rows = replace(piece.rows, first=piece.rows.first + row, count=_height(y))
            yield from self._made(op, _Piece(piece.tensor, rows, piece.channel + channel))

    def _joined(self, q: int, op: Operator) -> Iterator[_Piece]:
        if op.op != "CONCATENATION":
            return
        if len(op.outputs) != 1 or not op.inputs or min(op.inputs) < 0:
            raise NoMap("has not the operands of a join")
        options = self._options(False, q, "ConcatenationOptions")
        shapes = [self.b.tensors[t].shape for t in op.inputs]
        rank = len(shapes[0]) if shapes else 0
        axis = options.Axis() + rank if options.Axis() < 0 else options.Axis()
        if options.FusedActivationFunction() or not rank or (axis != rank - 1 and (rank, axis) != (4, 1)) or any(len(s) != rank for s in shapes):
            raise NoMap("joins neither rows nor channels")
        if len(op.inputs) > _MOST_JOINED:
            raise NoMap(f"joins {len(op.inputs)} tensors, more than the {_MOST_JOINED} that TFLite Micro can")
        by_rows = axis == 1 and rank == 4
        ends = dict.fromkeys(self._held(op.inputs[0]), shapes[0][-1])  # what has been joined -> its channels
        for t, shape in zip(op.inputs[1:], shapes[1:]):
            more: dict[_Piece, int] = {}
            for piece, width in ends.items():
                for other in self._held(t):
                    x, y = piece.rows, other.rows
                    if other.tensor != piece.tensor:
                        continue
                    if by_rows:
                        at = x.first + x.count
                        if (y.first, other.channel, shape[-1]) == (at, piece.channel, width) and x.hi == at == y.lo:
                            more[replace(piece, rows=replace(x, count=x.count + y.count, hi=y.hi))] = width
                    elif (y.first, y.count, other.channel) == (x.first, x.count, piece.channel + width):
                        more[replace(piece, rows=replace(x, lo=max(x.lo, y.lo), hi=min(x.hi, y.hi)))] = width + shape[-1]
            if not more:
                raise NoMap(f"joins {self._about(list(ends))} with {self._about(self._held(t))}, which is not what follows")
            ends = dict(list(more.items())[:_MOST_PIECES])
        for piece in ends:
            yield from self._made(op, piece)

    def _in_bands(self, q: int, op: Operator) -> Iterator[_Piece]:
        """An operator of the original on some of its rows, or some of its channels."""
        rule, data, needed = _RULES.get(op.op, (None, 0, 0))
        if rule is None or op.custom:
            raise NoMap(f"is not an operator of the first, and no {op.op} may run in bands")
        if len(op.outputs) != 1 or len(op.inputs) < needed or min(op.inputs[:needed], default=-1) < 0:
            raise NoMap("has not the operands that it needs")
        reason, found = "is neither an operator of the first nor part of one", False
        # The first operand of several alike may be a constant: the original is sought by any.
        for k in range(len(op.inputs)) if rule is _each else (data,):
            for piece in self._held(op.inputs[k]):
                for p in self.readers.get((piece.tensor, k), ()):
                    try:
                        for result in self._bands_of(rule, p, q, piece):
                            found = True
                            if q not in self.banded[p]:
                                self.banded[p].append(q)
                            yield result
                    except NoMap as error:
                        reason = str(error)
        if not found:
            raise NoMap(reason)

    def _bands_of(self, rule: _Rule, p: int, q: int, piece: _Piece) -> list[_Piece]:
        x, y = self.a.operators[p], self.b.operators[q]
        if self._settings(False, q) != self._settings(True, p) or len(x.inputs) != len(y.inputs):
            raise NoMap(f"has other attributes than operator {p} ({x.op}) of the first")
        if not pure(self.old.graph, self.a, x) or self.old.fenced or self.new.fenced:
            raise NoMap("may not run in bands for its effects, or for those of another")
        return [made for result in rule(self, p, q, piece) for made in self._made(y, replace(result, tensor=x.outputs[0]))]

    def _made(self, op: Operator, piece: _Piece) -> Iterator[_Piece]:
        """The piece that an operator's result is, if that is of the shape and quantization that it should have."""
        t, u = op.outputs[0], piece.tensor
        x, y = self.b.tensors[t], self.a.tensors[u]
        rank = len(y.shape)
        if len(x.shape) != rank or any(n != m for k, (n, m) in enumerate(zip(x.shape, y.shape)) if k != rank - 1 and (rank, k) != (4, 1)):
            raise NoMap(f"gives the shape {list(x.shape)}, which is not part of {list(y.shape)}")
        if _height(x.shape) != piece.rows.count:
            raise NoMap(f"gives {_height(x.shape)} rows, not the {piece.rows.count} that it computes")
        if rank and not 0 <= piece.channel <= piece.channel + x.shape[-1] <= y.shape[-1]:
            raise NoMap(f"gives channels that {self._name(u)} of the first has not")
        if self.new.form(0, t) != self.old.form(0, u) or x.variable or y.variable:
            raise NoMap(f"gives another type or quantization than {self._name(u)} of the first has")
        if x.shape[-1:] != y.shape[-1:] and y.scales > 1:
            raise NoMap("cuts channels that are quantized one by one")
        signature = self.new.tensors[0][t].ints(7, "shape signature")
        if signature and (len(signature) != len(x.shape) or any(s not in (-1, n) for s, n in zip(signature, x.shape))):
            raise NoMap("gives a tensor whose signature is of another shape")
        yield replace(piece, rows=piece.rows.clipped())

    # The files

    def _settings(self, old: bool, i: int) -> tuple[str, ...]:
        if (old, i) not in self.attributes:
            file, subgraph = (self.old, self.a) if old else (self.new, self.b)
            op = subgraph.operators[i]
            self.attributes[old, i] = (op.op, f"{op.custom} {op.version}", *file.attributes(file.operators[0][i], False))
        return self.attributes[old, i]

    def _options(self, old: bool, i: int, kind: str) -> Any:
        """Options of an operator, which `_settings` has looked through."""
        self._settings(old, i)
        options = (self.old if old else self.new).options(0, i)
        if type(options).__name__ != kind:
            raise NoMap(f"has no {kind}")
        return options

    def _array(self, old: bool, t: int) -> Any:
        """A constant by its shape, with the bytes of an element as last axis."""
        file, subgraph = (self.old, self.a) if old else (self.new, self.b)
        tensor = subgraph.tensors[t]
        if t < 0 or not tensor.constant or tensor.type not in BYTES or file.tensors[0][t].position(6):
            raise NoMap("has an operand that is no plain constant")
        data = np.frombuffer(file.bytes(tensor.buffer), np.uint8)
        if tensor.type == "INT4":
            data = np.stack([data & 15, data >> 4], axis=-1).ravel()
        return data[: tensor.size].reshape((*tensor.shape, BYTES[tensor.type]))

    def _numbers(self, old: bool, op: Operator, k: int) -> list[int]:
        """Integers of a constant operand."""
        t = op.inputs[k] if k < len(op.inputs) else -1
        kinds = {"INT32": "<i4", "INT64": "<i8"}
        tensor = (self.a if old else self.b).tensors[t]
        if t < 0 or tensor.type not in kinds:
            raise NoMap("takes its sizes from no constant")
        return [int(v) for v in np.ascontiguousarray(self._array(old, t)).view(kinds[tensor.type]).ravel()]

    def _channels(self, old: bool, t: int, axis: int) -> list[bytes]:
        """What a constant holds for each channel, with its scale: all that must be alike to be the same channel."""
        if (old, t, axis) not in self.keys:
            file, subgraph = (self.old, self.a) if old else (self.new, self.b)
            tensor, array = subgraph.tensors[t], self._array(old, t)
            axis = axis % max(1, len(tensor.shape))
            quantization = file.tensors[0][t].sub(4, "quantization")
            extents = (*tensor.shape[:axis], 0, *tensor.shape[axis + 1 :])
            head = repr((tensor.type, extents, len(tensor.shape)))
            scales: list[str] = [""] * tensor.shape[axis]
            if quantization is not None:
                if quantization.position(4):
                    raise NoMap("has weights quantized in a way of their own")
                (s, n), (z, m) = quantization.vector(2, 4, "scales"), quantization.vector(3, 8, "zero points")
                data, along = file.flat.data, quantization.scalar(6, "i")
                if (n > 1 and (along != axis or n != len(scales))) or (m > 1 and m != len(scales)):
                    raise NoMap("has scales along another axis than its channels")


                def entry(at: int, count: int, size: int, c: int) -> str:
                    """Of a vector with one entry, or one for each channel."""
                    at += size * c if count > 1 else 0
                    return data[at : at + size].hex() if count else ""

                scales = [f"{entry(s, n, 4, c)} {entry(z, m, 8, c)} {along if n > 1 else ''} {n > 1}" for c in range(len(scales))]
            rows = np.moveaxis(array, axis, 0)
            self.keys[old, t, axis] = [f"{head} {scale} ".encode() + rows[c].tobytes() for c, scale in enumerate(scales)]
        return self.keys[old, t, axis]

    def _offsets(self, p: int, q: int, operands: tuple[tuple[int, int], ...]) -> list[int]:
        """From which channels of operator p on operator q has p's weights: an operand and its axis of channels each."""
        x, y = self.a.operators[p], self.b.operators[q]
        rows: list[list[list[bytes]]] = [[], []]
        if all(k >= len(x.inputs) or self._whole(y.inputs[k], x.inputs[k]) for k, _ in operands):
            return [0]
        for k, axis in operands:
            if k < len(x.inputs) and (x.inputs[k] >= 0 or y.inputs[k] >= 0):
                if min(x.inputs[k], y.inputs[k]) < 0:
                    raise NoMap(f"has an operand more or less than operator {p} ({x.op}) of the first")
                rows[0].append(self._channels(True, x.inputs[k], axis))
                rows[1].append(self._channels(False, y.inputs[k], axis))
        (n, *beside), (m, *here) = ([len(r) for r in side] for side in rows)
        if any(v != n for v in beside) or any(v != m for v in here) or not m:
            raise NoMap("has weights and bias of different channels")
        found = [c for c in range(n - m + 1) if all(u[c : c + m] == v for u, v in zip(*rows))]
        if not found:
            raise NoMap(f"has other weights, bias or scales than operator {p} ({x.op}) of the first")
        return found

    def _name(self, u: int) -> str:
        return self.old.names[0][u]

    def _about(self, pieces: list[_Piece]) -> str:
        if not pieces:
            return "a tensor that is no part of one of the first"
        piece = pieces[-1]
        rows = piece.rows
        right = "" if (rows.lo, rows.hi) == (rows.first, rows.first + rows.count) else f" ({rows.lo} to {rows.hi} right)"
        return f"rows {rows.first} to {rows.first + rows.count}{right} of {self._name(piece.tensor)}, channels from {piece.channel} on"

    # The end

    def _complete(self, placed: list[tuple[int, str]]) -> None:
        for k, (t, u) in enumerate(zip(self.b.outputs, self.a.outputs)):
            if self.now.value(self.new.names[0][t]) != self.value[u]:
                raise InputError(f"output {k} of the second is {self._about(self._held(t))}, not all of {self._name(u)}, as in the first")
        found, have = Counter(number for _, number in placed), Counter(self.number)
        for p, (number, step) in enumerate(zip(self.number, self.steps)):
            if not found[number] and p not in self.banded:
                raise InputError(f"{step.name} of the first is missing from the second")
            if step.once and found[number] != have[number]:
                raise InputError(f"{step.name} of the first runs {found[number]} times in the second, which its effects forbid")
        read = {t for op in self.b.operators for t in op.inputs} | set(self.b.outputs)
        whole_ones = {q for q, _ in placed}
        for q, op in enumerate(self.b.operators):
            if q not in whole_ones and not read & set(op.outputs):
                raise InputError(f"operator {q} ({op.op}) of the second gives what nothing reads")

    def _said(self, placed: list[tuple[int, str]]) -> SplitReading:
        places: dict[str, list[int]] = defaultdict(list)
        for p, number in enumerate(self.number):
            places[number].append(p)
        order = [places[number].pop(0) for _, number in placed if places[number]]
        ranks = {p: i for i, p in enumerate(sorted(order))}
        bands = []
        done = {q for q, _ in placed}
        for p, users in sorted(self.banded.items()):
            parts = [q for q in users if q not in done]
            if not parts:
                continue
            done |= set(parts)
            y = self.a.tensors[self.a.operators[p].outputs[0]].shape
            shapes = [self.b.tensors[self.b.operators[q].outputs[0]].shape for q in parts]
            axes = [name for name, cut in (("rows", any(_height(s) != _height(y) for s in shapes)), ("channels", any(s[-1:] != y[-1:] for s in shapes))) if cut]
            again = sum(_height(s) * prod(s[-1:]) for s in shapes) // max(1, prod(y[-1:])) - _height(y)
            bands.append(Bands(p, self.a.operators[p].op, len(parts), " and ".join(axes) or "rows", again))
        total, now = (sum(macs(s, op) for op in s.operators) for s in (self.a, self.b))
        return SplitReading(tuple(bands), total, now - total, len(order), len(moves([ranks[p] for p in order])))


# Operators in bands: (reading, operator of the original, of the split file, piece that its data are) -> pieces of its result, whose tensor
# is set by the caller.

_Rule: TypeAlias = Callable[[_Reading, int, int, _Piece], Iterator[_Piece]]


@dataclass(frozen=True)
class _Pair:
    """An operator of the original, one of the split file, and the data that they read."""

    x: Operator
    y: Operator
    whole: tuple[int, ...]
    here: tuple[int, ...]
    of: tuple[int, ...]
    result: tuple[int, ...]
    all_channels: bool


def _pair(r: _Reading, p: int, q: int, piece: _Piece, operand: int = 0) -> _Pair:
    x, y = r.a.operators[p], r.b.operators[q]
    shape, here = r.a.tensors[x.inputs[operand]].shape, r.b.tensors[y.inputs[operand]].shape
    of, result = r.a.tensors[x.outputs[0]].shape, r.b.tensors[y.outputs[0]].shape
    return _Pair(x, y, shape, here, of, result, piece.channel == 0 and here[-1:] == shape[-1:])


def _plain(r: _Reading, pair: _Pair, weights: int, data: int = 0) -> None:
    """Floats with weights of fewer bits are quantized while they run, by scales of all rows."""
    kinds = r.a.tensors[pair.x.inputs[data]].type, r.a.tensors[pair.x.inputs[weights]].type
    if kinds[0].startswith("FLOAT") and kinds[0] != kinds[1]:
        raise NoMap("quantizes its data by what all rows hold")


def _rank4(pair: _Pair) -> None:
    if not len(pair.whole) == len(pair.here) == len(pair.of) == len(pair.result) == 4:
        raise NoMap("has no rows")


def _checked(pair: _Pair, rows: Rows) -> Rows:
    if rows.total != _height(pair.of):
        raise NoMap(f"has a whole of {_height(pair.of)} rows that should have {rows.total}")
    return rows


def _width(pair: _Pair, channels: int, of: int) -> None:
    if pair.result[-1] != channels or pair.of[-1] != of:
        raise NoMap(f"gives {pair.result[-1]} channels, not the {channels} that it computes")


def _conv(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    pair = _pair(r, p, q, piece)
    _rank4(pair)
    _plain(r, pair, 1)
    options = r._options(True, p, "Conv2DOptions")
    weights = r.a.tensors[pair.x.inputs[1]].shape
    offsets = r._offsets(p, q, ((1, 0), (2, -1)))
    if not pair.all_channels:
        raise NoMap("sums over some of its channels only")
    cut = pair.result[-1] != pair.of[-1]
    if cut and weights[3] != pair.whole[3]:
        raise NoMap("is a convolution in groups, which cannot be cut by channels")
    rows = _checked(pair, sliding(piece.rows, kernel=weights[1], stride=options.StrideH(), dilation=options.DilationHFactor(), same=_same(options)))
    _width(pair, r.b.tensors[pair.y.inputs[1]].shape[0], weights[0])
    yield from (_Piece(-1, rows, c) for c in offsets)


def _depthwise(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    pair = _pair(r, p, q, piece)
    _rank4(pair)
    _plain(r, pair, 1)
    options = r._options(True, p, "DepthwiseConv2DOptions")
    weights, times = r.a.tensors[pair.x.inputs[1]].shape, options.DepthMultiplier()
    if pair.whole[3] * times != pair.of[3] or pair.here[3] * times != pair.result[3]:
        raise NoMap("gives other channels than its data have")
    if piece.channel * times not in r._offsets(p, q, ((1, 3), (2, -1))):
        raise NoMap("has the weights of other channels than its data are")
    rows = sliding(piece.rows, kernel=weights[1], stride=options.StrideH(), dilation=options.DilationHFactor(), same=_same(options))
    _width(pair, r.b.tensors[pair.y.inputs[1]].shape[3], weights[3])
    yield _Piece(-1, _checked(pair, rows), piece.channel * times)


def _pool(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    pair = _pair(r, p, q, piece)
    _rank4(pair)
    options = r._options(True, p, "Pool2DOptions")
    _width(pair, pair.here[3], pair.whole[3])
    yield _Piece(-1, _checked(pair, sliding(piece.rows, kernel=options.FilterHeight(), stride=options.StrideH(), dilation=1, same=_same(options))), piece.channel)


def _same(options: Any) -> bool:
    if options.Padding() not in (0, 1):
        raise NoMap("pads in a way that is not known")
    return bool(options.Padding() == 0)


def _matrix(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    """FULLY_CONNECTED: by output channels, and by rows where it keeps the axes."""
    pair = _pair(r, p, q, piece)
    _plain(r, pair, 1)
    options = r._options(True, p, "FullyConnectedOptions")
    offsets = r._offsets(p, q, ((1, 0), (2, -1)))
    by_rows = options.KeepNumDims() and len(pair.whole) == len(pair.of) == 4
    if not pair.all_channels or (not by_rows and piece.rows != whole(_height(pair.whole))):
        raise NoMap("sums over some of its data only")
    if options.WeightsFormat() and pair.result != pair.of:
        raise NoMap("has weights in a format that cannot be cut")
    weights, here = r.a.tensors[pair.x.inputs[1]].shape, r.b.tensors[pair.y.inputs[1]].shape
    if len(weights) != 2 or len(here) != 2 or (by_rows and pair.whole[3] != weights[1]):
        raise NoMap("has no matrix of weights")
    _width(pair, here[0], weights[0])
    rows = piece.rows if by_rows else whole(_height(pair.of))
    yield from (_Piece(-1, _checked(pair, rows), c) for c in offsets)


def _transpose_conv(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    pair = _pair(r, p, q, piece, 2)
    _rank4(pair)
    _plain(r, pair, 1, 2)
    options = r._options(True, p, "TransposeConvOptions")
    if r._numbers(True, pair.x, 0) != list(pair.of) or r._numbers(False, pair.y, 0) != list(pair.result):
        raise NoMap("is told another shape than its result has")
    offsets = r._offsets(p, q, ((1, 0), (3, -1)))
    if not pair.all_channels:
        raise NoMap("sums over some of its channels only")
    weights = r.a.tensors[pair.x.inputs[1]].shape
    rows = transposed(piece.rows, kernel=weights[1], stride=options.StrideH(), same=_same(options), count=pair.result[1], total=pair.of[1])
    _width(pair, r.b.tensors[pair.y.inputs[1]].shape[0], weights[0])
    yield from (_Piece(-1, rows, c) for c in offsets)


def _pad(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    pair = _pair(r, p, q, piece)
    _rank4(pair)
    if not all(r._whole(t, u) for t, u in zip(pair.y.inputs[2:], pair.x.inputs[2:])):
        raise NoMap("pads with another value")
    a, b = ([(v[i], v[i + 1]) for i in range(0, len(v), 2)] for v in (r._numbers(True, pair.x, 1), r._numbers(False, pair.y, 1)))
    if len(a) != 4 or len(b) != 4 or (a[0], *a[2:]) != (b[0], *b[2:]):
        raise NoMap("pads otherwise than the first")
    if not pair.all_channels and any(a[3]):
        raise NoMap("pads some of its channels only")
    mirror = None
    if pair.x.op == "MIRROR_PAD":
        mirror = {0: 1, 1: 0}.get(r._options(True, p, "MirrorPadOptions").Mode())
        if mirror is None:
            raise NoMap("mirrors in a way that is not known")
    _width(pair, pair.here[3] + sum(a[3]), pair.whole[3] + sum(a[3]))
    yield _Piece(-1, _checked(pair, padded(piece.rows, top=a[1][0], bottom=a[1][1], here=b[1], mirror=mirror)), piece.channel)


def _blocks(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    pair = _pair(r, p, q, piece)
    _rank4(pair)
    up = pair.x.op == "DEPTH_TO_SPACE"
    size = r._options(True, p, "DepthToSpaceOptions" if up else "SpaceToDepthOptions").BlockSize()
    if not pair.all_channels:
        raise NoMap("has some of its channels only")
    _width(pair, pair.of[3], pair.of[3])
    yield _Piece(-1, _checked(pair, blocks(piece.rows, **{"up" if up else "down": size})))


def _resize(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    pair = _pair(r, p, q, piece)
    _rank4(pair)
    smooth = pair.x.op == "RESIZE_BILINEAR"
    options = r._options(True, p, "ResizeBilinearOptions" if smooth else "ResizeNearestNeighborOptions")
    if options.AlignCorners():
        raise NoMap("aligns corners, so that its factor depends on the number of rows")
    if r._numbers(True, pair.x, 1) != list(pair.of[1:3]) or r._numbers(False, pair.y, 1) != list(pair.result[1:3]):
        raise NoMap("is told another size than its result has")
    if not pair.all_channels:
        raise NoMap("has some of its channels only")
    _width(pair, pair.of[3], pair.of[3])
    way = bilinear if smooth else nearest
    yield _Piece(-1, way(piece.rows, count=pair.result[1], total=pair.of[1], half_pixel=bool(options.HalfPixelCenters())))


@dataclass(frozen=True)
class _Operands:
    """What the operands seen so far say of a result: its rows and channels; None before one says it."""

    rows: Rows | None
    channels: tuple[int, int] | None
    right: tuple[int, int]


def _each(r: _Reading, p: int, q: int, piece: _Piece) -> Iterator[_Piece]:
    """Element by element, broadcast from the right; and what needs all channels of a row, joins of channels among them."""
    x, y = r.a.operators[p], r.b.operators[q]
    of, result = r.a.tensors[x.outputs[0]].shape, r.b.tensors[y.outputs[0]].shape
    height = _height(of)
    together = x.op in _ALONG_CHANNELS
    if x.op == "CONCATENATION":
        axis = r._options(True, p, "ConcatenationOptions").Axis()
        if len(of) != 4 or axis not in (3, -1):
            raise NoMap("joins otherwise than by channels")
    if x.op == "SOFTMAX" and not of:
        raise NoMap("has no channels")
    states = [_Operands(None, None, (0, height))]
    constants = []
    for t, u in zip(y.inputs, x.inputs):
        if t < 0 or u < 0:
            raise NoMap("has no operand where one should be")
        shape, here = r.a.tensors[u].shape, r.b.tensors[t].shape
        by_rows = len(of) == 4 and height > 1 and len(shape) >= 3 and shape[-3] == height
        by_channels = not together and bool(of) and of[-1] > 1 and shape[-1:] == of[-1:]
        if r.b.tensors[t].constant:
            constants.append((t, u, by_rows, by_channels))
            continue
        more: dict[_Operands, None] = {}
        for held in r._held(t):
            if held.tensor != u:
                continue
            rows = held.rows
            if by_rows and len(shape) != 4:
                if here != shape:
                    continue
                rows = whole(height)
            if not by_rows and rows != whole(rows.count):
                continue
            if not by_channels and (held.channel or here[-1:] != shape[-1:]):
                continue
            at, wide = (rows if by_rows else None), ((held.channel, here[-1]) if by_channels else None)
            for s in states:
                if (s.rows and at and (s.rows.first, s.rows.count) != (at.first, at.count)) or (s.channels and wide and s.channels != wide):
                    continue
                right = (max(s.right[0], at.lo), min(s.right[1], at.hi)) if at else s.right
                more[_Operands(s.rows or at, s.channels or wide, right)] = None
        states = list(more)[:_MOST_PIECES]
    if not states:
        raise NoMap(f"reads operands that are not the same part of those of operator {p} ({x.op}) of the first")
    found = False
    for s in states:
        rows = replace(s.rows, lo=s.right[0], hi=s.right[1]) if s.rows else whole(height)
        channel, wide_as = s.channels or (0, of[-1] if of else 1)
        if any(not _cut(r, t, u, rows if by_rows else None, (channel, wide_as) if by_channels else None) for t, u, by_rows, by_channels in constants):
            continue
        if result[-1:] != ((wide_as,) if of else ()):
            continue
        found = True
        yield _Piece(-1, rows, channel)
    if not found:
        raise NoMap(f"has a constant that is not the part of that of operator {p} ({x.op}) of the first which its rows and channels need")


def _cut(r: _Reading, t: int, u: int, rows: Rows | None, channels: tuple[int, int] | None) -> bool:
    """Whether a constant is the rows and channels of another. Axes count from the right, as broadcasting does."""
    if r._whole(t, u):
        return (rows is None or rows == whole(rows.total)) and (channels is None or channels[1] == r.a.tensors[u].shape[-1])
    a, b = r.a.tensors[u], r.b.tensors[t]
    if not a.constant or r.old.form(0, u) != r.new.form(0, t) or len(a.shape) != len(b.shape) or a.scales > 1:
        return False
    old, new = r._array(True, u), r._array(False, t)
    if rows is not None:
        if new.shape[-4] != rows.count or not 0 <= rows.first <= rows.first + rows.count <= old.shape[-4]:
            return False
        old = old[..., rows.first : rows.first + rows.count, :, :, :]
    if channels is not None:
        old = old[..., channels[0] : sum(channels), :]
    return bool(np.array_equal(old, new))


_RULES: dict[str, tuple[_Rule, int, int]] = {
    **dict.fromkeys(_ELEMENTWISE | _ALONG_CHANNELS, (_each, 0, 1)),
    **dict.fromkeys(_POOLS, (_pool, 0, 1)),
    **dict.fromkeys(_PADS, (_pad, 0, 2)),
    "CONV_2D": (_conv, 0, 2),
    "DEPTHWISE_CONV_2D": (_depthwise, 0, 2),
    "FULLY_CONNECTED": (_matrix, 0, 2),
    "TRANSPOSE_CONV": (_transpose_conv, 2, 3),
    "DEPTH_TO_SPACE": (_blocks, 0, 1),
    "SPACE_TO_DEPTH": (_blocks, 0, 1),
    "RESIZE_BILINEAR": (_resize, 0, 2),
    "RESIZE_NEAREST_NEIGHBOR": (_resize, 0, 2),
}
"""Operator -> its rule, the operand that is its data, how many operands it needs."""
