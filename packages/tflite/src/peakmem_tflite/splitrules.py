"""Which part of an operator's result its bands give, by operator: what must be the original's, and which rows and channels follow.

An operator that is not here may not run in bands: reductions over rows, kernels that quantize while they run, sums over part
of the channels, and whatever nobody has looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from peakmem_tflite.graph import Operator
from peakmem_tflite.reader import BYTES
from peakmem_tflite.splitrows import NoMap, Rows, bilinear, blocks, nearest, padded, sliding, transposed, whole
from peakmem_tflite.structure import File

MOST_PIECES = 64
"""Of a tensor: where channels of weights are alike, or tensors, it may stand for several. More are forgotten, which only refuses more."""

_ELEMENTWISE = (
    "ABS", "ADD", "CAST", "CEIL", "COS", "DEQUANTIZE", "DIV", "ELU", "EQUAL", "EXP", "FLOOR", "FLOOR_DIV", "FLOOR_MOD", "GELU", "GREATER",
    "GREATER_EQUAL", "HARD_SWISH", "LEAKY_RELU", "LESS", "LESS_EQUAL", "LOG", "LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "LOGISTIC",
    "MAXIMUM", "MINIMUM", "MUL", "NEG", "NOT_EQUAL", "PRELU", "QUANTIZE", "RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "ROUND", "RSQRT",
    "SIN", "SQRT", "SQUARE", "SQUARED_DIFFERENCE", "SUB", "TANH",
)  # fmt: skip
_ALONG_CHANNELS = ("SOFTMAX", "L2_NORMALIZATION", "CONCATENATION")
"""Each row by itself, if all channels are there."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a tensor of the split file holds: these rows of a tensor of the original, and its channels from ``channel`` on."""

    tensor: int
    rows: Rows
    channel: int = 0


def height(shape: tuple[int, ...]) -> int:
    """Rows: only tensors of batch, rows, columns and channels have them."""
    return shape[1] if len(shape) == 4 else 1


class Side:
    """One of the two files: what its main subgraph holds."""

    def __init__(self, file: File) -> None:
        self.file, self.main = file, file.graph.subgraphs[0]
        self._settings: dict[int, tuple[str, ...]] = {}
        self._keys: dict[tuple[int, int], list[bytes]] = {}

    def shape(self, t: int) -> tuple[int, ...]:
        return self.main.tensors[t].shape

    def settings(self, i: int) -> tuple[str, ...]:
        """Operator, version and attributes."""
        if i not in self._settings:
            op = self.main.operators[i]
            self._settings[i] = (op.op, f"{op.custom} {op.version}", *self.file.attributes(self.file.operators[0][i], False))
        return self._settings[i]

    def options(self, i: int, kind: str) -> Any:
        """Options of an operator, decoded once as a whole by `settings`, so that they can be read."""
        self.settings(i)
        options = self.file.options(0, i)
        if type(options).__name__ != kind:
            raise NoMap(f"has no {kind}")
        return options

    def array(self, t: int) -> Any:
        """A constant by its shape, with the bytes of an element as last axis."""
        tensor = self.main.tensors[t]
        if t < 0 or not tensor.constant or tensor.type not in BYTES or self.file.tensors[0][t].position(6):
            raise NoMap("has an operand that is no plain constant")
        data = np.frombuffer(self.file.bytes(tensor.buffer), np.uint8)
        if tensor.type == "INT4":
            data = np.stack([data & 15, data >> 4], axis=-1).ravel()
        return data[: tensor.size].reshape((*tensor.shape, BYTES[tensor.type]))

    def numbers(self, t: int) -> list[int]:
        """A constant of integers."""
        kind = {"INT32": "<i4", "INT64": "<i8"}.get(self.main.tensors[t].type)
        if kind is None:
            raise NoMap("takes its sizes from no constant")
        return [int(v) for v in np.ascontiguousarray(self.array(t)).view(kind).ravel()]

    def channels(self, t: int, axis: int) -> list[bytes]:
        """What a constant holds for each channel, with its scale: all that must be alike to be the same channel."""
        if (t, axis) not in self._keys:
            shape = self.shape(t)
            at = axis % max(1, len(shape))
            rows = np.moveaxis(self.array(t), at, 0)
            head = repr((self.main.tensors[t].type, shape[:at], shape[at + 1 :]))
            self._keys[t, axis] = [f"{head} {scale} ".encode() + row.tobytes() for scale, row in zip(self._scales(t, at), rows)]
        return self._keys[t, axis]

    def _scales(self, t: int, axis: int) -> list[str]:
        """Scale and zero point of each channel."""
        count = self.shape(t)[axis]
        table = self.file.tensors[0][t].sub(4, "quantization")
        if table is None:
            return [""] * count
        (s, scales), (z, zeros) = table.vector(2, 4, "scales"), table.vector(3, 8, "zero points")
        # The channels of a tensor of rank 1 are its only axis, whatever number the file gives that.
        along, data = table.scalar(6, "i") if len(self.shape(t)) > 1 else axis, self.file.flat.data
        if table.position(4) or (scales > 1 and (along != axis or scales != count)) or (zeros > 1 and zeros != scales):
            raise NoMap("has scales along another axis than its channels")

        def entry(at: int, entries: int, size: int, c: int) -> str:
            at += size * c if entries > 1 else 0
            return data[at : at + size].hex() if entries else ""

        return [f"{entry(s, scales, 4, c)} {entry(z, zeros, 8, c)}" for c in range(count)]


class Sides(ABC):
    """Both files, and which tensors of the split one hold what."""

    def __init__(self, old: File, new: File) -> None:
        self.old, self.new = Side(old), Side(new)

    @abstractmethod
    def held(self, t: int) -> list[Piece]:
        """All that a tensor of the split file is known to hold."""

    @abstractmethod
    def same(self, t: int, u: int) -> bool:
        """Whether a tensor of the split file holds all of one of the original."""


@dataclass(frozen=True)
class Pair:
    """An operator of the original, one of the split file that may be it on a part, and a piece that the latter's data are.

    Attributes
    ----------
    files : Sides
    p, q : int
    x, y : Operator
        Of the original, of the split file.
    piece : Piece
    shape, here : tuple of int
        Of the data.
    of, result : tuple of int
        Of the result.
    """

    files: Sides
    p: int
    q: int
    x: Operator
    y: Operator
    piece: Piece
    shape: tuple[int, ...]
    here: tuple[int, ...]
    of: tuple[int, ...]
    result: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"operator {self.p} ({self.x.op}) of the first"

    @property
    def all_channels(self) -> bool:
        return self.piece.channel == 0 and self.here[-1:] == self.shape[-1:]

    def options(self, kind: str) -> Any:
        """Of both, since they are equal."""
        return self.files.old.options(self.p, kind)

    def offsets(self, *operands: tuple[int, int]) -> list[int]:
        """From which channels of the original on the weights are: operands and the axis of their channels. The last, a bias, may be left out."""
        pairs = [(self.y.inputs[k], self.x.inputs[k], axis) for k, axis in operands if k < len(self.x.inputs)]
        if all(self.files.same(t, u) for t, u, _ in pairs):
            return [0]
        pairs = [row for row in pairs if row[:2] != (-1, -1)]
        if any(min(t, u) < 0 for t, u, _ in pairs):
            raise NoMap(f"has an operand more or less than {self.name}")
        parts, wholes = [self.files.new.channels(t, axis) for t, _, axis in pairs], [self.files.old.channels(u, axis) for _, u, axis in pairs]
        m, n = len(parts[0]), len(wholes[0])
        if not m or any(len(row) != m for row in parts) or any(len(row) != n for row in wholes):
            raise NoMap("has weights and bias of different channels")
        found = [c for c in range(n - m + 1) if all(row[c : c + m] == part for part, row in zip(parts, wholes))]
        if not found:
            raise NoMap(f"has other weights, bias or scales than {self.name}")
        return found

    def weights(self, k: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the weights, of the original and here; floats with weights of fewer bits are quantized by scales of all rows."""
        old = self.files.old
        u, data = self.x.inputs[k], old.main.tensors[self.x.inputs[2 if self.x.op == "TRANSPOSE_CONV" else 0]]
        if data.type.startswith("FLOAT") and old.main.tensors[u].type != data.type:
            raise NoMap("quantizes its data by what all rows hold")
        a, b = old.shape(u), self.files.new.shape(self.y.inputs[k])
        rank = 2 if self.x.op == "FULLY_CONNECTED" else 4
        if len(a) != rank or len(b) != rank:
            raise NoMap(f"has no weights of {rank} axes")
        return a, b

    def gives(self, channels: int, of: int) -> None:
        if (self.result[-1], self.of[-1]) != (channels, of):
            raise NoMap(f"gives {self.result[-1]} channels, not the {channels} that it computes")

    def rows(self, rows: Rows) -> Rows:
        """Rows by a map, if the original has the rows that the map computes for it."""
        if not len(self.shape) == len(self.here) == len(self.of) == len(self.result) == 4:
            raise NoMap("has no rows")
        if rows.total != self.of[1]:
            raise NoMap(f"has a whole of {self.of[1]} rows that should have {rows.total}")
        return rows

    def every_channel(self) -> None:
        if not self.all_channels:
            raise NoMap("needs all channels of its data, and has some")


def pair(files: Sides, p: int, q: int, piece: Piece, operand: int) -> Pair:
    """An operator of the original and one of the split file whose data are ``piece``."""
    x, y = files.old.main.operators[p], files.new.main.operators[q]
    shapes = (files.old.shape(x.inputs[operand]), files.new.shape(y.inputs[operand]), files.old.shape(x.outputs[0]), files.new.shape(y.outputs[0]))
    return Pair(files, p, q, x, y, piece, *shapes)


Found: TypeAlias = Iterator[tuple[Rows, int]]
"""Rows of the result, and its first channel; more than one where weights are alike."""


def _sliding(o: Pair, kernel: int, options: Any, dilation: int) -> Rows:
    return o.rows(sliding(o.piece.rows, kernel=kernel, stride=options.StrideH(), dilation=dilation, same=_same(options)))


def _same(options: Any) -> bool:
    if options.Padding() not in (0, 1):
        raise NoMap("pads in a way that is not known")
    return bool(options.Padding() == 0)


def _conv(o: Pair) -> Found:
    options, (a, b) = o.options("Conv2DOptions"), o.weights()
    offsets = o.offsets((1, 0), (2, -1))
    o.every_channel()
    o.gives(b[0], a[0])
    if o.result[-1] != o.of[-1] and a[3] != o.shape[-1]:
        raise NoMap("is a convolution in groups, which cannot be cut by channels")
    rows = _sliding(o, a[1], options, options.DilationHFactor())
    yield from ((rows, c) for c in offsets)


def _depthwise(o: Pair) -> Found:
    options, (a, b) = o.options("DepthwiseConv2DOptions"), o.weights()
    times = options.DepthMultiplier()
    if (o.shape[-1] * times, o.here[-1] * times) != (a[3], b[3]):
        raise NoMap("gives other channels than its data have")
    o.gives(b[3], a[3])
    channel = o.piece.channel * times
    if channel not in o.offsets((1, 3), (2, -1)):
        raise NoMap("has the weights of other channels than its data are")
    yield _sliding(o, a[1], options, options.DilationHFactor()), channel


def _pool(o: Pair) -> Found:
    options = o.options("Pool2DOptions")
    o.gives(o.here[-1], o.shape[-1])
    yield _sliding(o, options.FilterHeight(), options, 1), o.piece.channel


def _matrix(o: Pair) -> Found:
    """FULLY_CONNECTED: by output channels, and by rows where it keeps the axes."""
    options, (a, b) = o.options("FullyConnectedOptions"), o.weights()
    offsets = o.offsets((1, 0), (2, -1))
    o.every_channel()
    o.gives(b[0], a[0])
    if options.WeightsFormat() and o.result[-1] != o.of[-1]:
        raise NoMap("has weights in a format that cannot be cut")
    if (o.files.old.main.tensors[o.x.inputs[1]].scales > 1) != (o.files.new.main.tensors[o.y.inputs[1]].scales > 1):
        raise NoMap("has one scale where the first has one for each channel, for which kernels may multiply otherwise")
    if options.KeepNumDims() and len(o.shape) == len(o.of) == 4 and o.shape[3] == a[1]:
        rows = o.rows(o.piece.rows)
    elif o.piece.rows == whole(height(o.shape)):
        rows = whole(height(o.of))
    else:
        raise NoMap("sums over some of its data only")
    yield from ((rows, c) for c in offsets)


def _transpose_conv(o: Pair) -> Found:
    options, (a, b) = o.options("TransposeConvOptions"), o.weights()
    _told(o, 0, o.of, o.result)
    offsets = o.offsets((1, 0), (3, -1))
    o.every_channel()
    o.gives(b[0], a[0])
    rows = o.rows(
        transposed(o.piece.rows, kernel=a[1], stride=options.StrideH(), same=_same(options), count=height(o.result), total=height(o.of))
    )
    yield from ((rows, c) for c in offsets)


def _told(o: Pair, k: int, of: tuple[int, ...], result: tuple[int, ...]) -> None:
    """An operand holds the size of the result."""
    if tuple(o.files.old.numbers(o.x.inputs[k])) != of or tuple(o.files.new.numbers(o.y.inputs[k])) != result:
        raise NoMap("is told another size than its result has")


def _pad(o: Pair) -> Found:
    if not all(o.files.same(t, u) for t, u in zip(o.y.inputs[2:], o.x.inputs[2:])):
        raise NoMap("pads with another value")
    a, b = o.files.old.numbers(o.x.inputs[1]), o.files.new.numbers(o.y.inputs[1])
    if len(a) != 8 or a[:2] + a[4:] != b[:2] + b[4:]:
        raise NoMap(f"pads otherwise than {o.name}")
    if any(a[6:]):
        o.every_channel()
    mirror = None
    if o.x.op == "MIRROR_PAD":
        mirror = {0: 1, 1: 0}.get(o.options("MirrorPadOptions").Mode())
        if mirror is None:
            raise NoMap("mirrors in a way that is not known")
    o.gives(o.here[-1] + sum(a[6:]), o.shape[-1] + sum(a[6:]))
    yield o.rows(padded(o.piece.rows, top=a[2], bottom=a[3], here=(b[2], b[3]), mirror=mirror)), o.piece.channel


def _blocks(o: Pair) -> Found:
    up = o.x.op == "DEPTH_TO_SPACE"
    size = o.options("DepthToSpaceOptions" if up else "SpaceToDepthOptions").BlockSize()
    o.every_channel()
    o.gives(o.of[-1], o.of[-1])
    yield o.rows(blocks(o.piece.rows, **{"up" if up else "down": size})), 0


def _resize(o: Pair) -> Found:
    smooth = o.x.op == "RESIZE_BILINEAR"
    options = o.options("ResizeBilinearOptions" if smooth else "ResizeNearestNeighborOptions")
    if options.AlignCorners():
        raise NoMap("aligns corners, so that its factor depends on the number of rows")
    _told(o, 1, o.of[1:3], o.result[1:3])
    o.every_channel()
    o.gives(o.of[-1], o.of[-1])
    way = bilinear if smooth else nearest
    yield o.rows(way(o.piece.rows, count=height(o.result), total=height(o.of), half_pixel=bool(options.HalfPixelCenters()))), 0


@dataclass(frozen=True)
class _Seen:
    """What operands say of a result: its rows and channels (None before one says it), and which rows are right."""

    rows: Rows | None
    channels: tuple[int, int] | None
    right: tuple[int, int]

    def joined(self, rows: Rows | None, channels: tuple[int, int] | None) -> _Seen | None:
        """With one more operand; None if it is of another part."""
        if self.rows and rows and (self.rows.first, self.rows.count) != (rows.first, rows.count):
            return None
        if self.channels and channels and self.channels != channels:
            return None
        right = (max(self.right[0], rows.lo), min(self.right[1], rows.hi)) if rows else self.right
        return _Seen(self.rows or rows, self.channels or channels, right)


def _each(o: Pair) -> Found:
    """Element by element, broadcast from the right; and what needs all channels of a row, joins of channels among them."""
    files, of, total = o.files, o.of, height(o.of)
    together = o.x.op in _ALONG_CHANNELS
    if not of or (o.x.op == "CONCATENATION" and (len(of) != 4 or o.options("ConcatenationOptions").Axis() not in (3, -1))):
        raise NoMap("joins otherwise than by channels")
    states = [_Seen(None, None, (0, total))]
    constants = []
    for t, u in zip(o.y.inputs, o.x.inputs):
        if min(t, u) < 0:
            raise NoMap("has no operand where one should be")
        shape, here = files.old.shape(u), files.new.shape(t)
        by_rows = len(of) == 4 and total > 1 and len(shape) >= 3 and shape[-3] == total
        by_channels = not together and of[-1] > 1 and shape[-1:] == of[-1:]
        if files.new.main.tensors[t].constant:
            constants.append((t, u, by_rows, by_channels))
            continue
        parts = []
        for piece in files.held(t):
            rows = piece.rows if len(shape) == 4 else whole(total if by_rows else 1)
            if piece.tensor == u and (by_rows or rows == whole(rows.count)) and (by_channels or (piece.channel, here[-1:]) == (0, shape[-1:])):
                parts.append((rows if by_rows else None, (piece.channel, here[-1]) if by_channels else None))
        more = (state.joined(*part) for part in parts for state in states)
        states = list(dict.fromkeys(state for state in more if state))[:MOST_PIECES]
    if not states:
        raise NoMap(f"reads operands that are not the same part of those of {o.name}")
    reason, found = "", False
    for state in states:
        rows = replace(state.rows, lo=state.right[0], hi=state.right[1]) if state.rows else whole(total)
        channels = state.channels or (0, of[-1])
        if o.result[-1:] != channels[1:]:
            reason = f"gives {o.result[-1]} channels, not the {channels[1]} that it computes"
        elif all(_cut(files, t, u, rows if r else None, channels if c else None) for t, u, r, c in constants):
            found = True
            yield rows, channels[0]
        else:
            reason = f"has a constant that is not the part of that of {o.name} which its rows and channels need"
    if not found:
        raise NoMap(reason)


def _cut(files: Sides, t: int, u: int, rows: Rows | None, channels: tuple[int, int] | None) -> bool:
    """Whether a constant is the rows and channels of another. Axes count from the right, as broadcasting does."""
    a, b = files.old.main.tensors[u], files.new.main.tensors[t]
    if (rows is None or rows == whole(rows.total)) and (channels is None or channels == (0, a.shape[-1])) and files.same(t, u):
        return True
    if not a.constant or files.old.file.form(0, u) != files.new.file.form(0, t) or len(a.shape) != len(b.shape) or a.scales > 1:
        return False
    array = files.old.array(u)
    if rows is not None:
        if not 0 <= rows.first <= rows.first + rows.count <= rows.total:
            return False
        array = array[..., rows.first : rows.first + rows.count, :, :, :]
    if channels is not None:
        array = array[..., channels[0] : sum(channels), :]
    return bool(np.array_equal(array, files.new.array(t)))


@dataclass(frozen=True)
class Rule:
    """How an operator runs in bands.

    Attributes
    ----------
    results : callable
        Yields rows and first channel of what a pair gives; raises `NoMap`.
    data : int
        The operand that is cut; -1 for any.
    needed : int
        How many operands must be there.
    """

    results: Callable[[Pair], Found]
    data: int = 0
    needed: int = 1


RULES: dict[str, Rule] = {
    **dict.fromkeys((*_ELEMENTWISE, *_ALONG_CHANNELS), Rule(_each, -1)),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), Rule(_pool)),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), Rule(_pad, needed=2)),
    **dict.fromkeys(("DEPTH_TO_SPACE", "SPACE_TO_DEPTH"), Rule(_blocks)),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), Rule(_resize, needed=2)),
    "CONV_2D": Rule(_conv, needed=2),
    "DEPTHWISE_CONV_2D": Rule(_depthwise, needed=2),
    "FULLY_CONNECTED": Rule(_matrix, needed=2),
    "TRANSPOSE_CONV": Rule(_transpose_conv, 2, 3),
}
"""By operator."""
