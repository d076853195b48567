"""Names of the rows and channels of values, for telling whether two files compute the same row by row and channel by channel.

Every cell of a value, a row of a channel, is named by what it is computed from: a name of its row and one of its channel, which say
together by which operator, attributes and constants, and from which cells. What treats all channels alike has the channels' names in
what it makes; what treats all rows alike, the rows'. Names are numbers, handed out once for each different thing named, so that equal
names are equal things; both files must be named by one `Names`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

import numpy as np

from peakmem_onnx.graph import Node
from peakmem_onnx.rules import NCHWC
from peakmem_onnx.splitkernels import (
    APART,
    EACH,
    FOR_EACH_CHANNEL,
    OVER_CHANNELS,
    PER_CHANNEL,
    ROWS,
    WINDOWS,
    Known,
    attributes,
    full_pads,
    pads_of,
    scales_of,
    window_of,
)

ALL = "all channels"


class Names:
    """One number for each thing named."""

    def __init__(self) -> None:
        self.number: dict[Hashable, int] = {}
        self.what: list[tuple[Hashable, ...]] = []

    def __call__(self, *what: Hashable) -> int:
        found = self.number.setdefault(what, len(self.number))
        if found == len(self.what):
            self.what.append(what)
        return found


@dataclass(frozen=True)
class Section:
    """Neighbouring channels whose rows have the same names."""

    rows: tuple[int, ...]
    channels: tuple[int, ...]


Cells = tuple[Section, ...]
"""A value: its channels, section by section."""


def merged(sections: Sequence[Section]) -> Cells:
    """Sections side by side, with neighbours of the same rows made one: equal cells are equal sections."""
    found: list[Section] = []
    for one in sections:
        if found and found[-1].rows == one.rows:
            found[-1] = Section(one.rows, found[-1].channels + one.channels)
        elif one.channels:
            found.append(one)
    return tuple(found)


def height(cells: Cells) -> int:
    return len(cells[0].rows)


def width(cells: Cells) -> int:
    return sum(len(s.channels) for s in cells)


def some(cells: Cells, first: int, last: int) -> Cells:
    """Channels from the first to the last but one."""
    found, at = [], 0
    for s in cells:
        found.append(Section(s.rows, s.channels[max(0, first - at) : max(0, last - at)]))
        at += len(s.channels)
    return merged(found)


def stacked(values: Sequence[Cells]) -> Cells | None:
    """Values with the same channels, one below the other; None where their channels are not the same."""
    cells = [_split_at(value, {edge for other in values for edge in _edges(other)}) for value in values]
    if len({tuple(s.channels for s in one) for one in cells}) > 1:
        return None
    return merged([Section(tuple(r for one in cells for r in one[k].rows), s.channels) for k, s in enumerate(cells[0])])


def _edges(cells: Cells) -> list[int]:
    at, found = 0, []
    for s in cells:
        at += len(s.channels)
        found.append(at)
    return found


def _split_at(cells: Cells, edges: set[int]) -> Cells:
    """The same cells in sections that end there, unmerged."""
    found, at = [], 0
    for s in cells:
        here = [0, *sorted(e - at for e in edges if 0 < e - at < len(s.channels)), len(s.channels)]
        found += [Section(s.rows, s.channels[a:b]) for a, b in pairwise(here)]
        at += len(s.channels)
    return tuple(found)


@dataclass(frozen=True)
class Maker:
    """Names what one node makes, from the names of what it reads.

    Attributes
    ----------
    names : Names
    known : Known
    runtime : container of str
        Values that are no constants.
    of : callable
        The cells of a value of four dimensions.
    whole : callable
        The name of all of a value or constant.
    lists : dict
        Entries of constants that were read.
    """

    names: Names
    known: Known
    runtime: Container[str]
    of: Callable[[str], Cells]
    whole: Callable[[str], str]
    lists: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def make(self, node: Node, what: str, y: tuple[int, ...]) -> Cells | None:
        """The cells of its result, of shape ``y``; None where it is not known to work row by row or channel by channel."""
        a, kind = attributes(node), (node.domain, node.op)
        if kind in WINDOWS:
            return self._window(node, a, what, y)
        if kind in EACH:
            return self._each(node.inputs, what, y)
        if self._data(node) is None:
            return None
        if node.domain == NCHWC:
            return self._alike(node, what, range(y[ROWS]), y) if node.op in ("ReorderInput", "ReorderOutput") and not a.get("channels_last", 0) else None
        if node.domain:
            return None
        if node.op in PER_CHANNEL:
            return self._per_channel(node, a, what, y)
        if node.op == "Pad":
            return self._pad(node, a, what, y)
        if node.op in ("Resize", "Upsample"):
            return self._resize(node, a, what, y)
        if node.op == "ConvTranspose":
            return self._transposed(node, a, what, y)
        along = a.get("axis", -1) % 4 if node.op in OVER_CHANNELS and self.known.opset >= 13 else 0
        if node.op in (*APART, "InstanceNormalization") or along == ROWS:
            rows = [self.names(_without(what), "of all rows", r) for r in range(y[ROWS])]
            return self._entered(node, [Section(tuple(self.names(row, s.rows) for row in rows), s.channels) for s in self.of(node.inputs[0])])
        if along == 1:
            return self._alike(node, what, range(y[ROWS]), y)
        if along:
            return self._apart(self.of(node.inputs[0]), (what,), [[("row", r)] for r in range(y[ROWS])])
        if node.op in ("DepthToSpace", "SpaceToDepth"):
            size = a.get("blocksize", 0)
            up = node.op == "DepthToSpace"
            return self._alike(node, what, [r // size if up else range(r * size, (r + 1) * size) for r in range(y[ROWS])], y, [r % size if up else 0 for r in range(y[ROWS])])
        return None

    def _data(self, node: Node) -> tuple[int, ...] | None:
        shape = self.known.shape(node.inputs[0]) if node.inputs and node.inputs[0] in self.runtime else None
        return shape if shape is not None and len(shape) == 4 and all(shape) else None

    def _section(self, what: tuple[Hashable, ...], sections: Sequence[tuple[int, ...]], taps: Sequence[Sequence[tuple[Hashable, int]]]) -> tuple[int, ...]:
        """Names of rows that are made of others: taps, of a row each, say in which way and of which (-1: of none)."""
        return tuple(self.names(*what, *((way, *((rows[i] for rows in sections) if i >= 0 else ())) for way, i in row)) for row in taps)

    def _apart(self, x: Cells, what: tuple[Hashable, ...], taps: Sequence[Sequence[tuple[Hashable, int]]]) -> Cells:
        """Each channel is made of itself."""
        return merged([Section(self._section(what, [s.rows], taps), s.channels) for s in x])

    def _alike(self, node: Node, what: str, rows: Sequence[Any], y: tuple[int, ...], ways: Sequence[int] = ()) -> Cells | None:
        """Each row is made of all channels of one row, or of some."""
        operands = node.inputs[1:]
        if any(self.known.shape(name) is not None and len(self.known.shape(name) or ()) == 4 and name in self.runtime for name in operands):
            return None
        x = self.of(node.inputs[0])
        taps = [[("tap", i) for i in ([row] if isinstance(row, int) else row)] for row in rows]
        if any(not 0 <= i < height(x) for row in taps for _, i in row):
            return None
        beside = tuple(self.whole(name) for name in operands)
        channels = tuple(s.channels for s in x)
        made = self._section((what, ALL, channels, beside), [s.rows for s in x], taps)
        if ways:
            made = tuple(self.names("phase", way, row) for way, row in zip(ways, made))
        return (Section(made, tuple(self.names("channel", c, y[1]) for c in range(y[1]))),)

    # -- windows -------------------------------------------------------------------------------------------------

    def _window(self, node: Node, a: Mapping[str, Any], what: str, y: tuple[int, ...]) -> Cells | None:
        x, kernel = self._data(node), window_of(node, a, self.known)
        if x is None or kernel is None or any(name in self.runtime for name in node.inputs[1:]):
            return None
        top, left, bottom, right = full_pads(a, kernel, x, y)
        stride, dilation = a.get("strides", [1, 1])[0], a.get("dilations", [1, 1])[0]
        # Where padding does not count, it does not matter how much of it there is behind.
        counted = bool(a.get("count_include_pad", 0))
        columns = ("columns", left, right if counted or WINDOWS[node.domain, node.op] > 0 else -1, y[3])

        def tap(i: int) -> tuple[Hashable, int]:
            if 0 <= i < x[ROWS]:
                return "row", i
            return ("beyond" if counted and i >= x[ROWS] + bottom else "padding"), -1

        taps = [[tap(stride * r - top + dilation * t) for t in range(kernel[0])] for r in range(y[ROWS])]
        plain = _without(what, "pads", "auto_pad", "ceil_mode", "group")
        cells = self.of(node.inputs[0])
        if node.domain == NCHWC:
            operands = tuple(self.whole(name) for name in node.inputs[1:])
            rows = self._section((plain, a.get("group", 1), columns, operands, tuple(s.channels for s in cells)), [s.rows for s in cells], taps)
            return (Section(rows, tuple(self.names("channel", c, y[1]) for c in range(y[1]))),)
        if WINDOWS[node.domain, node.op] < 0:
            return self._apart(cells, (plain, columns), taps)
        return self._convolved(node, a.get("group", 1), (plain, columns), taps, cells, self._entries(node, y[1]))

    def _convolved(
        self, node: Node, groups: int, what: tuple[Hashable, ...], taps: Sequence[Sequence[tuple[Hashable, int]]], x: Cells, entries: Sequence[int] | None
    ) -> Cells | None:
        """Channels are made of those of their group, each with weights of its own."""
        if entries is None or groups < 1 or width(x) % groups or len(entries) % groups:
            return None
        each, gives = width(x) // groups, len(entries) // groups
        beside = tuple(self.whole(name) for k, name in enumerate(node.inputs) if k and k not in FOR_EACH_CHANNEL.get((node.domain, node.op), (1, 2)))
        found: list[Section] = []
        made: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
        starts = [0, *_edges(x)]
        for g in range(groups):
            here = [(s.rows, s.channels[max(0, g * each - at) : max(0, (g + 1) * each - at)]) for s, at in zip(x, starts) if at < (g + 1) * each and g * each < at + len(s.channels)]
            rows = tuple(r for r, _ in here)
            if rows not in made:
                made[rows] = self._section((*what, beside), rows, taps)
            group = self.names("group", *(c for _, c in here))
            found.append(Section(made[rows], tuple(self.names("weights", group, e) for e in entries[g * gives : (g + 1) * gives])))
        return merged(found)

    def _transposed(self, node: Node, a: Mapping[str, Any], what: str, y: tuple[int, ...]) -> Cells | None:
        x, w = self._data(node), self.known.shape(node.inputs[1])
        if x is None or w is None or len(w) != 4 or node.inputs[1] in self.runtime or a.get("auto_pad", "NOTSET") != "NOTSET" or a.get("output_shape"):
            return None
        top, left, _, right = a.get("pads", [0] * 4)
        stride, dilation = a.get("strides", [1, 1])[0], a.get("dilations", [1, 1])[0]
        adds = [[(t, r + top - dilation * t) for t in range(w[2])] for r in range(y[ROWS])]
        # A row is the sum of what those rows add to it that are there.
        taps = [[(t, i // stride) for t, i in row if i % stride == 0 and 0 <= i // stride < x[ROWS]] for row in adds]
        plain = _without(what, "pads", "auto_pad", "output_padding", "group")
        columns = ("columns", left, right, y[3])
        groups = a.get("group", 1)
        array = self.known.array(node.inputs[1])
        bias = self._listed(node.inputs[2], y[1]) if len(node.inputs) > 2 and node.inputs[2] else [0] * y[1]
        if array is None or groups != 1:  # then by rows only
            operands = tuple(self.whole(name) for name in node.inputs[1:])
            cells = self.of(node.inputs[0])
            rows = self._section((plain, groups, columns, operands, tuple(s.channels for s in cells)), [s.rows for s in cells], taps)
            return (Section(rows, tuple(self.names("channel", c, y[1]) for c in range(y[1]))),)
        entries = [self.names("entry", _digest(array[:, c]), bias[c]) for c in range(array.shape[1])]
        return self._convolved(node, 1, (plain, columns), taps, self.of(node.inputs[0]), entries) if len(entries) == y[1] else None

    # -- constants -----------------------------------------------------------------------------------------------

    def _listed(self, name: str, count: int) -> list[int]:
        """Names of the entries that an operand holds for each channel."""
        if (name, count) not in self.lists:
            self.lists[name, count] = self._read(name, count)
        return self.lists[name, count]

    def _read(self, name: str, count: int) -> list[int]:
        array = self.known.array(name)
        if array is None:
            return [self.names("entry", self.whole(name), c, count) for c in range(count)]
        if array.size == 1 and array.ndim < 2:
            return [self.names("entry", _digest(array.reshape(()))) for _ in range(count)]
        return [self.names("entry", _digest(array[c])) for c in range(array.shape[0])]

    def _entries(self, node: Node, count: int) -> list[int] | None:
        """For each channel of the result the entries of all operands that have one for each; None where one has others."""
        places = [k for k in FOR_EACH_CHANNEL[node.domain, node.op] if k < len(node.inputs) and node.inputs[k]]
        columns = [self._listed(node.inputs[k], count) for k in places]
        if any(len(column) != count for column in columns):
            return None
        return [self.names("entries", tuple(places), *row) for row in zip(*columns)] if columns else [self.names("entries")] * count

    def _entered(self, node: Node, cells: Sequence[Section]) -> Cells | None:
        """Channels are those of the data, each with entries of its own."""
        total = sum(len(s.channels) for s in cells)
        entries = self._entries(node, total) if (node.domain, node.op) in FOR_EACH_CHANNEL else [self.names("entries")] * total
        if entries is None:
            return None
        left = iter(entries)
        return merged([Section(s.rows, tuple(self.names("each", c, next(left)) for c in s.channels)) for s in cells])

    def _per_channel(self, node: Node, a: Mapping[str, Any], what: str, y: tuple[int, ...]) -> Cells | None:
        # Along another axis than that of channels a scale may be one for each row.
        shapes = [self.known.shape(name) for name in node.inputs[1:] if name]
        if (node.op != "BatchNormalization" and a.get("axis", 1) not in (1, -3)) or a.get("block_size", 0) or any(s is None or len(s) > 1 for s in shapes):
            return None
        if any(name in self.runtime for name in node.inputs[1:]) or self._data(node) != y:
            return None
        taps = [[("row", r)] for r in range(y[ROWS])]
        return self._entered(node, self._apart(self.of(node.inputs[0]), (what,), taps))

    # -- element by element --------------------------------------------------------------------------------------

    def _each(self, inputs: Sequence[str], what: str, y: tuple[int, ...]) -> Cells | None:
        operands = [self._operand(name) for name in inputs]
        found: list[Cells] = []
        for one in operands:
            if one is None or width(one) not in (1, y[1]) or height(one) not in (1, y[ROWS]):
                return None
            sections = one if width(one) == y[1] else (Section(one[0].rows, one[0].channels * y[1]),)
            found.append(tuple(Section(s.rows if len(s.rows) == y[ROWS] else s.rows * y[ROWS], s.channels) for s in sections))
        edges = {edge for one in found for edge in _edges(one)}
        columns = [_split_at(one, edges) for one in found]
        made = []
        for together in zip(*columns):
            rows = tuple(self.names(what, *row) for row in zip(*(s.rows for s in together)))
            made.append(Section(rows, tuple(self.names("each", *c) for c in zip(*(s.channels for s in together)))))
        return merged(made)

    def _operand(self, name: str) -> Cells | None:
        """An operand seen from the right; None where its rows or channels are not told."""
        none = self.names("none")
        if not name:
            return (Section((none,), (none,)),)
        shape = self.known.shape(name)
        if shape is None or len(shape) > 4 or not all(shape):
            return None
        if name in self.runtime and len(shape) == 4:
            return self.of(name)
        if len(shape) < 2:
            return (Section((self.names("whole", self.whole(name)),), (none,)),)
        array = None if name in self.runtime else self.known.array(name)
        if array is not None:
            return self.constant(array)
        # What cannot be cut: by its name.
        rows, channels = shape[-2], shape[-3] if len(shape) > 2 else 1
        if rows == 1:
            return (Section((none,), tuple(self.names("constant", self.whole(name), c) for c in range(channels))),)
        return (Section(tuple(self.names("constant", self.whole(name), r) for r in range(rows)), (none,)),) if channels == 1 else None

    def constant(self, array: Any) -> Cells:
        """A constant by what it holds, from the right, for all rows where it has one."""
        array = array.reshape((1,) * (3 - array.ndim) + array.shape)
        if array.shape[-2] > 1:
            return self.content(array)
        return (Section((self.names("none"),), tuple(self.names("constant", _digest(array[..., c, 0, :])) for c in range(array.shape[-3]))),)

    def content(self, array: Any) -> Cells:
        """A constant by what it holds, row by row, its channels apart."""
        rows, channels = range(array.shape[-2]), range(array.shape[-3])
        return merged([Section(tuple(self.names("constant", _digest(array[..., c, r, :])) for r in rows), (self.names("none"),)) for c in channels])

    # -- rows that move ------------------------------------------------------------------------------------------

    def _pad(self, node: Node, a: Mapping[str, Any], what: str, y: tuple[int, ...]) -> Cells | None:
        x, amounts, mode = self._data(node), pads_of(node, a, self.known), a.get("mode", "constant")
        if x is None or amounts is None or min(amounts) < 0 or amounts[0] or amounts[1] or amounts[4] or amounts[5] or mode not in ("constant", "edge", "reflect"):
            return None
        value = self.whole(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else "zero"
        plain = (_without(what, "pads"), value, "columns", amounts[3], amounts[7])

        def tap(i: int) -> tuple[Hashable, int]:
            if not 0 <= i < x[ROWS]:
                if mode == "constant":
                    return "padding", -1
                i = max(0, min(i, x[ROWS] - 1)) if mode == "edge" else -i if i < 0 else 2 * (x[ROWS] - 1) - i
            return "row", i

        taps = [[tap(r - amounts[2])] for r in range(y[ROWS])]
        return self._apart(self.of(node.inputs[0]), plain, taps) if all(i < x[ROWS] for row in taps for _, i in row) else None

    def _resize(self, node: Node, a: Mapping[str, Any], what: str, y: tuple[int, ...]) -> Cells | None:
        x, told = self._data(node), scales_of(node, a, self.known)
        later = self.known.opset > 10
        mode, way = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel" if later else "asymmetric")
        if x is None or told is None or x[:2] != y[:2] or y[ROWS] % x[ROWS] or way not in ("half_pixel", "pytorch_half_pixel", "asymmetric"):
            return None
        if a.get("antialias", 0) or a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            return None
        factor = y[ROWS] // x[ROWS]
        scales, sizes, axes = told
        # Coordinates of rows are exact for these factors, whole or not they are the same from any row on.
        if (scales and ROWS in axes and scales[axes.index(ROWS)] != factor) or not (mode == "nearest" or (mode == "linear" and factor.bit_count() == 1)):
            return None
        columns = tuple(n for n, k in zip(scales or sizes, axes) if k != ROWS)
        plain = (_without(what), "columns", bool(scales), columns, x[3], y[3])
        rounding = a.get("nearest_mode", "round_prefer_floor" if later else "floor")
        last = x[ROWS] - 1
        taps: list[list[tuple[Hashable, int]]] = []
        for r in range(y[ROWS]):
            at = Fraction(r, factor) if way == "asymmetric" or factor == 1 else (r + Fraction(1, 2)) / factor - Fraction(1, 2)
            if mode == "nearest":
                taps.append([("row", max(0, min(_nearest(at, rounding), last)))])
                continue
            at = max(Fraction(0), min(at, Fraction(last)))
            low = floor(at)
            taps.append([("low", low), ("high", min(low + 1, last)), ((at - low).as_integer_ratio(), -1)])
        return self._apart(self.of(node.inputs[0]), plain, taps)


def _nearest(at: Fraction, rounding: str) -> int:
    if rounding == "floor":
        return floor(at)
    if rounding == "ceil":
        return -floor(-at)
    low = floor(at)
    return low + (at - low > Fraction(1, 2) or (at - low == Fraction(1, 2) and rounding == "round_prefer_ceil"))


def _without(what: str, *names: str) -> str:
    """A node's operator and attributes but for some."""
    return "\n".join(line for line in what.split("\n") if not line.startswith(tuple(f"{name} " for name in names)))


def _digest(array: Any) -> str:
    array = np.ascontiguousarray(array)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def rows_of(cells: Cells) -> Iterator[int]:
    """All names of rows."""
    for s in cells:
        yield from s.rows
