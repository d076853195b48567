"""Is one file the other with some of its nodes run in bands? Both files are named row by row and channel by channel; nothing runs.

As `peakmem.frontends.structure` names a value by the operator that computes it and by what that reads, here every row and every
channel of a value has a name (see `peakmem_onnx.splitnames`). Slices and joins only carry names along. Bands are never spoken of: a
file in bands is right if its outputs have the names that they have in the original. What is not known to work row by row or channel
by channel is named whole. That says that rows are computed from the same rows by the same operators; in which sequence a kernel
adds floats is for a run to show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from peakmem.frontends.structure import Numbering, Step
from peakmem.model import InputError

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.graph import Node
from peakmem_onnx.splitkernels import DIMENSION, ROWS, attributes
from peakmem_onnx.splitnames import Cells, Maker, Names, Section, height, merged, rows_of, some, stacked, width
from peakmem_onnx.splitwrite import bands_of


def read_split(first: Artifact, second: Artifact) -> str:
    """What the second file is to the first, in one sentence. O(rows times taps, and channels).

    Raises
    ------
    InputError
        Where it is not the first one in bands.
    """
    names = Names()
    a, b = _Named(first, names), _Named(second, names)
    for k, (x, y) in enumerate(zip(first.part.outputs, second.part.outputs, strict=True)):
        if a.whole(x) != b.whole(y):
            raise InputError(f"output {k} ({y!r}) of the second is not computed from the same rows and channels as in the first")
    if a.effects != b.effects:
        raise InputError("steps with effects run otherwise in the second")
    made: dict[int, list[int]] = {}
    for i, cells in a.made.items():
        for row in set(rows_of(cells)):
            made.setdefault(row, []).append(i)
    bands: Counter[int] = Counter()
    axes = set()
    for cells in b.made.values():
        channels = {c for s in cells for c in s.channels}
        of = next((i for row in rows_of(cells) for i in made.get(row, ()) if any(channels.intersection(s.channels) for s in a.made[i])), None)
        if of is not None and (height(cells), width(cells)) != (height(a.made[of]), width(a.made[of])):
            bands[of] += 1
            axes.add("rows" if height(cells) != height(a.made[of]) else "channels")
    said = "every output is computed from the same rows by the same operators, constants and attributes"
    if not bands:
        return f"the first one with values cut and joined; {said}"
    done = [first.graph.nodes[i].name for i in sorted(bands)]
    before, after = (sum(one.facts.costs.get(node.name, 0) for node in one.graph.nodes) for one in (first, second))
    most, least = max(bands.values()), min(bands.values())
    return (
        f"the first one split: {len(done)} nodes ({', '.join(done[:3])}{', ...' if len(done) > 3 else ''}) in "
        f"{least if least == most else f'{least} to {most}'} bands of {' and of '.join(sorted(axes, reverse=True))}, "
        + (f"{100 * (after - before) / before:.2f} % more multiply-accumulates" if after > before else "no more multiply-accumulates")
        + f"; {said}"
    )


def in_bands(first: Artifact, second: Artifact) -> bool:
    """Whether the second file may be the first in bands: those are joined."""
    joins = [sum(node.op == "Concat" for node in one.graph.nodes) for one in (first, second)]
    return joins[1] > joins[0]


def split_numbers(first: Artifact, second: Artifact) -> tuple[dict[str, str], dict[str, str]]:
    """The number of every value of both files, where values that are joined have those that they have whole; views have none.

    Raises
    ------
    InputError
        Where what a node makes has other rows than its operator gives.
    """
    names = Names()
    a, b = _Named(first, names), _Named(second, names)
    left, right = ({name: number for name, number in one.numbering.now.items() if name not in one.viewed} for one in (a, b))
    return left, right


class _Named:
    """One file, its values named by rows and channels."""

    def __init__(self, one: Artifact, names: Names) -> None:
        self.one, self.bands, self.names = one, bands_of(one), names
        self.values = one.facts.values[()]
        self.numbering = Numbering(one.part.given)
        self.cells: dict[str, Cells] = {}
        self.made: dict[int, Cells] = {}  # node -> what it computes
        self.viewed: set[str] = set()  # blocked values seen as what has rows
        self.effects: dict[str, list[str]] = {}
        self.maker = Maker(names, self.bands.known, self.bands.buffer_of, self.of, self.whole)
        for node, step in zip(one.graph.nodes, one.part.steps, strict=True):
            found = self._moved(node) or self._computed(node, step)
            if found is None:
                number, _ = self.numbering.run(step)
                for token in step.effects:
                    self.effects.setdefault(token, []).append(number)
                continue
            name = node.outputs[0]
            shape = self._shape(name)
            if len(shape) != 4 or height(found) != shape[ROWS] or (width(found) != shape[1] and name not in self.viewed):
                raise InputError(f"{node.name} gives {height(found)} rows of {width(found)} channels, not {list(shape)}")
            self.cells[name] = found
            self.numbering.now[name] = self._joined(found)

    def whole(self, name: str) -> str:
        return self.numbering.value(name)

    def _shape(self, name: str) -> tuple[int, ...]:
        """Of a value with rows."""
        shape = self.values[name].shape if name in self.values else ()
        return shape if len(shape) == 4 and all(shape) else ()

    def of(self, name: str) -> Cells:
        """The rows and channels of a value."""
        if name not in self.cells:
            _, channels, rows, _ = self._shape(name)
            self.cells[name] = self._all(self.whole(name), rows, channels)
        return self.cells[name]

    def _all(self, number: str, rows: int, channels: int) -> Cells:
        """Those of a value that is known as a whole."""
        return (Section(tuple(self.names("row", number, r, rows) for r in range(rows)), tuple(self.names("channel", c, channels) for c in range(channels))),)

    def _joined(self, cells: Cells) -> str:
        """The name of a value that has these cells: that of a whole one, if they are all of its."""
        kind, *what = self.names.what[cells[0].rows[0]]
        if kind == "row" and cells == self._all(str(what[0]), height(cells), width(cells)):
            return str(what[0])
        return f"value {self.names('value', cells)}"

    def _moved(self, node: Node) -> Cells | None:
        """Of a slice, a join, or a view of blocks."""
        if node.domain or len(node.outputs) != 1 or not node.inputs or not self._shape(node.inputs[0]) or not self._shape(node.outputs[0]):
            return None
        x, y, a = node.inputs[0], node.outputs[0], attributes(node)
        blocked = x in self.bands.blocked
        if node.op == "Reshape" and blocked and self.bands.block:
            shape, block = self._shape(x), self.bands.block
            there = (shape[0], shape[1] // block, shape[2], shape[3] * block)
            back = (shape[0], shape[1] * block, shape[2], shape[3] // block)
            to_view = x not in self.viewed and shape[1] % block == 0 and self._shape(y) == there
            if not to_view and not (x in self.viewed and shape[3] % block == 0 and self._shape(y) == back):
                return None
            self.viewed |= {y} if to_view else set()
            return self.of(x)
        if blocked and any(name not in self.viewed for name in node.inputs[: None if node.op == "Concat" else 1]):
            return self._side_by_side(node) if node.op == "Concat" and a.get("axis") in (1, -3) and not self.viewed.intersection(node.inputs) else None
        found: Cells | None = None
        if node.op == "Concat" and a.get("axis") in (ROWS, ROWS - 4):
            found = stacked([self._held(name) for name in node.inputs]) if all(map(self._has, node.inputs)) else None
        elif node.op == "Concat" and a.get("axis") in (1, -3) and not blocked:
            found = self._side_by_side(node)
        elif node.op == "Slice":
            found = self._sliced(node, a, x, blocked)
        if found is not None and blocked:
            self.viewed.add(y)
        return found

    def _side_by_side(self, node: Node) -> Cells | None:
        """A join of channels."""
        return merged([s for name in node.inputs for s in self._held(name)]) if all(map(self._has, node.inputs)) else None

    def _has(self, name: str) -> bool:
        """Whether the rows and channels of an operand are told."""
        return bool(self._shape(name)) if name in self.bands.buffer_of else (array := self.bands.known.array(name)) is not None and array.ndim == 4

    def _held(self, name: str) -> Cells:
        return self.of(name) if name in self.bands.buffer_of else self.maker.content(self.bands.known.array(name))

    def _sliced(self, node: Node, a: dict[str, object], x: str, blocked: bool) -> Cells | None:
        known = self.bands.known
        starts, ends, axes = (a.get(n) for n in ("starts", "ends", "axes")) if "starts" in a else (known.numbers(n) if n else None for n in (*node.inputs[1:4], "", "", "")[:3])
        steps = known.numbers(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else [1]
        ranges = [n[0] for n in (starts, ends, axes) if isinstance(n, list) and len(n) == 1]
        if len(ranges) < 3 or steps != [1]:
            return None
        start, end, axis = ranges
        if axis % 4 not in DIMENSION.values() or (blocked and axis % 4 != ROWS) or not 0 <= start < end <= self._shape(x)[axis % 4]:
            return None
        return merged([Section(s.rows[start:end], s.channels) for s in self.of(x)]) if axis % 4 == ROWS else some(self.of(x), start, end)

    def _computed(self, node: Node, step: Step) -> Cells | None:
        """Of an operator that works row by row, or channel by channel."""
        names: Sequence[str] = [name for name in node.outputs if name]
        if step.effects or step.bodies or len(names) != 1 or names[0] != node.outputs[0] or not self._shape(names[0]) or self.viewed.intersection(node.inputs):
            return None
        found = self.maker.make(node, step.what, self._shape(names[0]))
        if found is not None:
            self.made[node.index] = found
        return found
