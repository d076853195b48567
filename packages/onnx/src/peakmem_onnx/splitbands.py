"""An ONNX graph as splitting sees it: which nodes run on bands of rows, at the level at which ONNX Runtime runs them.

Padding is an attribute here, so a band is padded where it ends with the whole and nowhere else, and computes no row that is not
right: rows of a result are those whose windows lie in the band. *Which numbers* a row is computed from is the same then; whether
floats are added in the same sequence is not promised, since ONNX Runtime chooses the blocking of a sum by the number of pixels. So
the run is the judge (see `splitwrite.judge`); sums of integers are equal by arithmetic.

Blocked values (those of the domain ``com.microsoft.nchwc``, and what is made of them) hold so many channels of a pixel side by side, and
blocks of channels one behind the other. Slice and Concat do not know that, but seen as batch, blocks, rows, and columns times channels of
a block they have rows as others have: so they are viewed, by Reshape, where they are cut and joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from peakmem.frontends.splitting import Axis, RowMap, Rows, Rule, Splittable
from peakmem.model import Buffer, Program
from peakmem.transform.split.maps import Same

from peakmem_onnx.build import build_program
from peakmem_onnx.facts import Facts
from peakmem_onnx.graph import Graph, Node, Value, charge
from peakmem_onnx.rules import MICROSOFT, NCHWC

ROWS = 2
"""The axis of rows: batch, channels, rows, columns."""

EACH = frozenset(
    {"Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul", "Neg", "PRelu", "Relu",
     "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu"}
)  # fmt: skip
"""Element by element, operands broadcast from the right."""

PER_CHANNEL = frozenset({"BatchNormalization", "QuantizeLinear", "DequantizeLinear"})
"""Element by element in operand 0; the others hold a number, or one for each channel."""

WINDOWS: Mapping[tuple[str, str], int] = {
    ("", "Conv"): 1, (MICROSOFT, "FusedConv"): 1, ("", "ConvInteger"): 1, ("", "QLinearConv"): 3, ("", "MaxPool"): -1, ("", "AveragePool"): -1,
    (NCHWC, "Conv"): 1, (NCHWC, "MaxPool"): -1, (NCHWC, "AveragePool"): -1,
}  # fmt: skip
"""Operators with windows -> the operand that holds their weights; -1 for none."""


@dataclass(frozen=True)
class PaddedWindow(RowMap):
    """A window that moves, with rows of padding that a band has only where it ends with the whole.

    Attributes
    ----------
    extent, reach, stride, top, bottom : int
        Rows of the whole input, of the window (dilation counted), by which it moves, and of padding.
    """

    extent: int
    reach: int
    stride: int
    top: int
    bottom: int

    @property
    def slack(self) -> int:  # type: ignore[override]
        return self.stride

    @property
    def whole(self) -> int:
        """Rows of the whole result."""
        return (self.extent + self.top + self.bottom - self.reach) // self.stride + 1

    def padding(self, start: int, end: int) -> tuple[int, int]:
        """Rows of padding of a band."""
        return self.top if start == 0 else 0, self.bottom if end == self.extent else 0

    def need(self, low: int, high: int) -> tuple[int, int]:
        first, last = self.stride * low - self.top, self.stride * (high - 1) - self.top + self.reach
        # What reads only padding is given a row all the same.
        return max(0, min(first, self.extent - 1)), max(1, min(last, self.extent))

    def output(self, rows: Rows) -> Rows | None:
        top, bottom = self.padding(rows.start, rows.end)
        start, off = divmod(rows.start + self.top - top, self.stride)
        count = (rows.count + top + bottom - self.reach) // self.stride + 1
        low = 0 if rows.low == 0 else -(-(rows.low + self.top) // self.stride)
        high = self.whole if rows.high == self.extent else (rows.high + self.top - self.reach) // self.stride + 1
        low, high = max(low, start), min(high, start + count)
        if off or count < 1 or start + count > self.whole or low >= high:
            return None
        return Rows(start, count, low, high)


class OnnxBands(Splittable):
    """The top level of a graph, for splitting.

    Its program has a buffer for every value, those that run in place or are views among them, and for the graph's inputs, which take
    nothing since they belong to the caller; rows that are cut out of them do take room.

    Parameters
    ----------
    graph : Graph
    facts : Facts
    constants : mapping of str to tuple of int
        Shapes of initializers.
    opset : int
    block : int
        Channels of a block; 0 where that is not known.
    """

    cut = "Slice"
    join = "Concat"
    most_joined = 1 << 16
    overhead = 0

    def __init__(self, graph: Graph, facts: Facts, constants: Mapping[str, tuple[int, ...]], opset: int, block: int = 0) -> None:
        self.graph = graph
        self.constants = constants
        self.opset = opset
        self.block = block
        self.values = facts.values[()]
        made = build_program(graph, facts, sharing=False).program
        given = [name for name in graph.inputs if name in self.values and any(name in node.inputs for node in graph.nodes)]
        place = {name: len(made.buffers) + k for k, name in enumerate(given)}
        statements = [
            replace(s, reads=(*s.reads, *(place[name] for name in dict.fromkeys(node.reads) if name in place)))
            for s, node in zip(made.statements, graph.nodes, strict=True)
        ]
        self.program = Program((*made.buffers, *(Buffer(name, 0, "input") for name in given)), tuple(statements), made.name)
        self.buffer_of = {b.name: k for k, b in enumerate(self.program.buffers)}
        self._rules: dict[int, Rule | str] = {}

    def value(self, buffer: int) -> Value:
        return self.values[self.program.buffers[buffer].name]

    @cached_property
    def blocked(self) -> frozenset[str]:
        """Values in the layout of blocks of channels."""
        found: set[str] = set()
        for node in self.graph.nodes:
            if node.op != "ReorderOutput" and (node.domain == NCHWC or found.intersection(node.inputs)):
                found.update(node.outputs)
        return frozenset(found)

    def extent(self, buffer: int, axis: Axis) -> int:
        name = self.program.buffers[buffer].name
        shape = self.values[name].shape if name in self.values else ()
        return shape[ROWS] if axis == "rows" and len(shape) == 4 else 0

    def view(self, name: str) -> tuple[int, ...] | None:
        """The shape by which a blocked value has rows; None for another value."""
        if name not in self.blocked:
            return None
        n, c, h, w = self.values[name].shape
        return n, c // self.block, h, w * self.block

    def size(self, buffer: int, axis: Axis, count: int) -> int:
        value = self.value(buffer)
        return charge(value.size // value.shape[ROWS] * count)

    def rule(self, statement: int, axis: Axis) -> Rule | str:
        if axis != "rows":
            return f"{self.graph.nodes[statement].name} is split by rows only"
        if statement not in self._rules:
            node = self.graph.nodes[statement]
            found = self._look(node)
            self._rules[statement] = found if isinstance(found, Rule) else f"{node.name} ({node.op}) {found}"
        return self._rules[statement]

    def window(self, statement: int) -> PaddedWindow | None:
        """The map of a node whose padding a band must be told."""
        rule = self.rule(statement, "rows")
        return rule.map if isinstance(rule, Rule) and isinstance(rule.map, PaddedWindow) else None

    def price(
        self, statement: int, axis: Axis, reads: Mapping[int, tuple[int, int]], count: int
    ) -> tuple[int, int]:
        """By the share of rows: workspace is measured once the split is written."""
        s = self.program.statements[statement]
        whole = self.extent(s.writes[0], axis)
        return charge(-(-s.workspace * count // whole)), s.cost * count // whole

    def _look(self, node: Node) -> Rule | str:
        names = [name for name in node.outputs if name]
        statement = self.program.statements[node.index]
        if len(names) != 1 or node.outputs[0] != names[0] or node.bodies or not statement.pure:
            return "is not known to run in bands of rows"
        y = self.values[names[0]]
        runtime = [name for name in dict.fromkeys(node.inputs) if name in self.buffer_of]
        blocked = self.blocked.intersection((*runtime, *names))
        if blocked and not self._known(node, blocked):
            return "works on blocks of channels in a way that is not known; choose a lower --ort-level"
        if not y.size or len(y.shape) != 4:
            return "gives a result without rows"
        if (node.domain, node.op) in WINDOWS:
            return self._window(node, y, WINDOWS[node.domain, node.op])
        way: Callable[[Node, Value], Rule | str] | None = None
        if node.domain == NCHWC and node.op in ("ReorderInput", "ReorderOutput") and not attributes(node).get("channels_last", 0):
            way = self._each
        elif not node.domain:
            way = self._each if node.op in EACH else {"Concat": self._concat, **dict.fromkeys(PER_CHANNEL, self._per_channel)}.get(node.op)
        return way(node, y) if way is not None else "has no known map of rows"

    def _known(self, node: Node, blocked: frozenset[str]) -> bool:
        """Whether the layout of blocks of what a node touches is known; broadcasts within blocks are not."""
        shapes = [self.values[name].shape for name in blocked]
        alike = node.domain == NCHWC or node.op == "Concat" or {self._shape(name) for name in node.inputs} == {self.values[node.outputs[0]].shape}
        return alike and self.block > 0 and self.opset >= 5 and all(len(shape) == 4 and shape[1] % self.block == 0 for shape in shapes)

    def _shape(self, name: str) -> tuple[int, ...] | None:
        """Of a value, or of a constant as far as it is known."""
        return self.values[name].shape if name in self.values else self.constants.get(name)

    def _window(self, node: Node, y: Value, weights: int) -> Rule | str:
        x = self.values.get(node.inputs[0])
        if x is None or node.inputs[0] not in self.buffer_of or len(x.shape) != 4:
            return "is not given what its kernel expects"
        a = attributes(node)
        kernel = a.get("kernel_shape")
        if kernel is None and weights > 0:
            kernel = list((self._shape(node.inputs[weights]) or ())[2:])
        if not kernel or len(kernel) != 2 or a.get("ceil_mode", 0) or a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
            return "has a window that is not known"
        pads = full_pads(a, kernel, x.shape, y.shape)
        stride, dilation = a.get("strides", [1, 1])[0], a.get("dilations", [1, 1])[0]
        rule = PaddedWindow(x.shape[ROWS], (kernel[0] - 1) * dilation + 1, stride, pads[0], pads[2])
        if min(pads) < 0 or stride < 1 or rule.whole != y.shape[ROWS]:
            return "has a result of other rows than its window gives"
        if any(name in self.buffer_of for name in node.inputs[1:]):
            return "reads another value, whose rows are not those of its data"
        return Rule(rule, (self.buffer_of[node.inputs[0]],))

    def _each(self, node: Node, y: Value) -> Rule | str:
        banded = []
        for name in node.inputs:
            shape = self._shape(name) if name else ()
            if shape is None or len(shape) > 4:
                return "has an operand of unknown shape"
            rows = shape[-2] if len(shape) >= 2 else 1
            if rows == 1:
                continue
            if name not in self.buffer_of or len(shape) != 4 or rows != y.shape[ROWS]:
                return "has an operand with rows that cannot be cut"
            banded.append(self.buffer_of[name])
        return Rule(Same(), tuple(dict.fromkeys(banded))) if banded else "has no operand with rows"

    def _per_channel(self, node: Node, y: Value) -> Rule | str:
        name = node.inputs[0]
        if name not in self.buffer_of or self.values[name].shape != y.shape or attributes(node).get("block_size", 0):
            return "is not given what its kernel expects"
        for other in node.inputs[1:]:
            shape = self._shape(other) if other else ()
            if shape is None or len(shape) > 1 or other in self.buffer_of or (shape and node.op != "BatchNormalization" and attributes(node).get("axis", 1) != 1):
                return "has scales that are not one for each channel"
        return Rule(Same(), (self.buffer_of[name],))

    def _concat(self, node: Node, y: Value) -> Rule | str:
        if attributes(node).get("axis") not in (1, -3):
            return "joins along another axis than channels"
        if any(name not in self.buffer_of for name in node.inputs):
            return "joins constants"
        return Rule(Same(), tuple(dict.fromkeys(self.buffer_of[name] for name in node.inputs)))


def attributes(node: Node) -> dict[str, Any]:
    """Numbers and texts among a node's attributes."""
    found: dict[str, Any] = {}
    for a in node.proto.attribute:
        found[a.name] = {1: a.f, 2: a.i, 3: a.s.decode("utf-8", "replace"), 7: list(a.ints)}.get(a.type)
    return found


def full_pads(a: Mapping[str, Any], kernel: list[int], x: tuple[int, ...], y: tuple[int, ...]) -> list[int]:
    """Top, left, bottom and right padding, also where a node leaves it to the runtime."""
    mode = a.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        return list(a.get("pads", [0] * 4)) if mode == "NOTSET" else [0] * 4
    ends = []
    for k in range(2):
        stride, dilation = a.get("strides", [1, 1])[k], a.get("dilations", [1, 1])[k]
        total = max((y[2 + k] - 1) * stride + (kernel[k] - 1) * dilation + 1 - x[2 + k], 0)
        less = total // 2
        ends.append((less, total - less) if mode == "SAME_UPPER" else (total - less, less))
    return [ends[0][0], ends[1][0], ends[0][1], ends[1][1]]
