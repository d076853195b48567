"""Is one file the other with some of its nodes run in bands of rows? Both files are numbered row by row; nothing is run for it.

As `peakmem.frontends.structure` names a value by the operator that computes it and by what that reads, here every *row* of a value is
named by its operator and the rows that it reads, tap by tap, padding among them. Slices and joins only carry names along. Bands are
never spoken of: a file in bands is right if its outputs have the names that they have in the original. What is not known to work
row by row is named whole. That says that rows are computed from the same rows by the same operators; in which sequence a kernel
adds floats is for a run to show.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from peakmem.frontends.structure import Numbering, Step
from peakmem.model import InputError

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.graph import Node
from peakmem_onnx.protos import import_onnx
from peakmem_onnx.rules import NCHWC
from peakmem_onnx.splitbands import EACH, PER_CHANNEL, ROWS, WINDOWS, attributes, full_pads
from peakmem_onnx.splitwrite import bands_of

_ENDS = ("pads ", "auto_pad ")
"""Attributes of a window that its bands have otherwise."""


def read_split(first: Artifact, second: Artifact) -> str:
    """What the second file is to the first, in one sentence. O(rows times taps).

    Raises
    ------
    InputError
        Where it is not the first one in bands of rows.
    """
    a, b = _Rows(first), _Rows(second)
    for k, (x, y) in enumerate(zip(first.part.outputs, second.part.outputs, strict=True)):
        if a.whole(x) != b.whole(y):
            raise InputError(f"output {k} ({y!r}) of the second is not computed from the same rows as in the first")
    if a.effects != b.effects:
        raise InputError("steps with effects run otherwise in the second")
    made = {row: (i, len(rows)) for i, rows in a.made.items() for row in rows}
    bands: Counter[int] = Counter()
    for rows in b.made.values():
        of, total = next((made[row] for row in rows if row in made), (-1, 0))
        if len(rows) < total:
            bands[of] += 1
    if not bands:
        raise InputError("the second runs no node in bands of rows")
    names = [first.graph.nodes[i].name for i in sorted(bands)]
    before, after = (sum(one.facts.costs.get(node.name, 0) for node in one.graph.nodes) for one in (first, second))
    most, least = max(bands.values()), min(bands.values())
    return (
        f"the first one split: {len(names)} nodes ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}) in "
        f"{least if least == most else f'{least} to {most}'} bands of rows, "
        + (f"{100 * (after - before) / before:.2f} % more multiply-accumulates" if after > before else "no more multiply-accumulates")
        + "; every output is computed from the same rows by the same operators, constants and attributes"
    )


class _Rows:
    """One file, its values named by rows."""

    def __init__(self, one: Artifact) -> None:
        self.one, self.bands = one, bands_of(one)
        self.values = one.facts.values[()]
        self.numbering = Numbering(one.part.given)
        self.rows: dict[str, tuple[str, ...]] = {}
        self.made: dict[int, tuple[str, ...]] = {}  # node -> rows that it computes
        self.viewed: set[str] = set()  # blocked values seen as what has rows
        self.effects: dict[str, list[str]] = {}
        self.known = {
            i.name: import_onnx().numpy_helper.to_array(i).ravel().tolist()
            for i in one.proto.graph.initializer
            if i.data_type == 7 and int(np.prod(i.dims)) <= 8 and i.data_location == 0
        }
        for node, step in zip(one.graph.nodes, one.part.steps, strict=True):
            found = self._moved(node) or self._computed(node, step)
            if found is not None:
                name = node.outputs[0]
                if len(found) != self._height(name):
                    raise InputError(f"{node.name} gives {self._height(name)} rows, not {len(found)}")
                self.rows[name] = found
                self.numbering.now[name] = self._joined(found)
                continue
            number, _ = self.numbering.run(step)
            for token in step.effects:
                self.effects.setdefault(token, []).append(number)

    def whole(self, name: str) -> str:
        return self.numbering.value(name)

    def _height(self, name: str) -> int:
        shape = self.values[name].shape if name in self.values else ()
        return shape[ROWS] if len(shape) == 4 else 0

    def of(self, name: str) -> tuple[str, ...]:
        """The rows of a value."""
        if name not in self.rows:
            self.rows[name] = tuple(f"{self.whole(name)} row {r} of {self._height(name)}" for r in range(self._height(name)))
        return self.rows[name]

    def _joined(self, rows: Sequence[str]) -> str:
        """The name of a value that has these rows: that of a whole one, if they are all of its rows."""
        number = rows[0].partition(" row ")[0]
        return number if " row " in rows[0] and tuple(rows) == tuple(f"{number} row {r} of {len(rows)}" for r in range(len(rows))) else _hash(*rows)

    def _moved(self, node: Node) -> tuple[str, ...] | None:
        """Of a slice, a join, or a view of blocks."""
        if node.domain or len(node.outputs) != 1 or not node.inputs or not self._height(node.inputs[0]) or not self._height(node.outputs[0]):
            return None
        x, y, a = node.inputs[0], node.outputs[0], attributes(node)
        blocked = x in self.bands.blocked
        if node.op == "Reshape" and blocked and self.bands.block:
            shape, block = self.values[x].shape, self.bands.block
            there = (shape[0], shape[1] // block, shape[2], shape[3] * block)
            back = (shape[0], shape[1] * block, shape[2], shape[3] // block)
            to_view = x not in self.viewed and shape[1] % block == 0 and self.values[y].shape == there
            if not to_view and not (x in self.viewed and shape[3] % block == 0 and self.values[y].shape == back):
                return None
            self.viewed |= {y} if to_view else set()
            return self.of(x)
        if blocked and any(name not in self.viewed for name in node.inputs[: None if node.op == "Concat" else 1]):
            return None
        found: tuple[str, ...] | None = None
        if node.op == "Concat" and a.get("axis") in (ROWS, ROWS - 4) and all(self._height(name) for name in node.inputs):
            found = tuple(row for name in node.inputs for row in self.of(name))
        elif node.op == "Slice":
            starts, ends, axes = (a.get(n) for n in ("starts", "ends", "axes")) if "starts" in a else (self.known.get(n) for n in (*node.inputs[1:4], "", "", "")[:3])
            steps = self.known.get(node.inputs[4]) if len(node.inputs) > 4 else [1]
            if starts and ends and axes in ([ROWS], [ROWS - 4]) and steps == [1] and 0 <= starts[0] < ends[0] <= self._height(x):
                found = self.of(x)[starts[0] : ends[0]]
        if found is not None and blocked:
            self.viewed.add(y)
        return found

    def _computed(self, node: Node, step: Step) -> tuple[str, ...] | None:
        """Of an operator that works row by row."""
        names = [name for name in node.outputs if name]
        if step.effects or step.bodies or len(names) != 1 or names[0] != node.outputs[0] or not self._height(names[0]) or self.viewed.intersection(node.inputs):
            return None
        height, a = self._height(names[0]), attributes(node)
        rows: list[str] | None = None
        if (node.domain, node.op) in WINDOWS and self._height(node.inputs[0]):
            x, y = self.values[node.inputs[0]].shape, self.values[names[0]].shape
            weights = WINDOWS[node.domain, node.op]
            kernel = a.get("kernel_shape") or list(self.bands.constants.get(node.inputs[weights] if weights > 0 else "", ())[2:])
            if len(kernel) != 2 or a.get("ceil_mode", 0) or any(self._height(name) for name in node.inputs[1:] if name in self.bands.buffer_of):
                return None
            top, left, _, right = full_pads(a, kernel, x, y)
            stride, dilation = a.get("strides", [1, 1])[0], a.get("dilations", [1, 1])[0]
            what = "\n".join((*(line for line in step.what.split("\n") if not line.startswith(_ENDS)), f"columns {left} {right}"))
            beside = [self.whole(name) for name in node.inputs[1:]]
            of = self.of(node.inputs[0])
            taps = [[stride * r - top + dilation * t for t in range(kernel[0])] for r in range(height)]
            rows = [_hash(what, *beside, "taps", *(of[i] if 0 <= i < len(of) else "padding" for i in row)) for row in taps]
        elif self._by_rows(node, a):
            operands = [self._operand(name, height) for name in node.inputs]
            if not all(operands):
                return None
            rows = [_hash(step.what, *(o[r % len(o)] for o in operands)) for r in range(height)]
        if rows is None:
            return None
        self.made[node.index] = tuple(rows)
        return tuple(rows)

    def _operand(self, name: str, height: int) -> Sequence[str]:
        """Rows of an operand of as many rows, or the one that all rows read; none where it has others."""
        if self._height(name):
            return self.of(name) if self._height(name) in (1, height) else ()
        shape = self.values[name].shape if name in self.values else self.bands.constants.get(name) if name else ()
        return [self.whole(name)] if shape is not None and (len(shape) < 2 or shape[-2] == 1) else ()

    def _by_rows(self, node: Node, a: dict[str, object]) -> bool:
        """Whether each row follows from the same rows of the operands."""
        if node.domain == NCHWC:
            return node.op in ("ReorderInput", "ReorderOutput") and not a.get("channels_last", 0)
        if node.op in PER_CHANNEL:  # along an axis other than that of channels a scale may be one for each row
            return a.get("axis", 1) == 1 and not a.get("block_size", 0) and all(len(self.bands.constants.get(name, (1, 1))) < 2 for name in node.inputs[1:] if name)
        return not node.domain and (node.op in EACH or (node.op == "Concat" and a.get("axis") in (1, -3)))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
