"""An ONNX graph as splitting sees it: its top level, whose nodes run in bands as `peakmem_onnx.splitkernels` tells.

Blocked values (those of the domain ``com.microsoft.nchwc``, and what is made of them) hold so many channels of a pixel side by side, and
blocks of channels one behind the other. Slice and Concat do not know that, but seen as batch, blocks, rows, and columns times channels of
a block they have rows as others have: so they are viewed, by Reshape, where they are cut and joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from peakmem.frontends.splitting import Axis, Rule, Splittable
from peakmem.model import Buffer, Program

from peakmem_onnx.build import build_program
from peakmem_onnx.facts import Facts
from peakmem_onnx.graph import Graph, Node, Value, charge
from peakmem_onnx.rules import NCHWC
from peakmem_onnx.splitkernels import DIMENSION, Kernel, Known, Sight, look


class OnnxBands(Splittable):
    """The top level of a graph, for splitting.

    Its program has a buffer for every value, those that run in place or are views among them, and for the graph's inputs, which take
    nothing since they belong to the caller; rows that are cut out of them do take room.

    Parameters
    ----------
    graph : Graph
    facts : Facts
    known : Known
    block : int
        Channels of a block; 0 where that is not known.
    """

    cut = "Slice"
    join = "Concat"
    most_joined = 1 << 16
    overhead = 0

    def __init__(self, graph: Graph, facts: Facts, known: Known, block: int = 0) -> None:
        self.graph = graph
        self.known = known
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
        self._kernels: dict[tuple[int, Axis], Kernel | str] = {}

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
        return shape[DIMENSION[axis]] if len(shape) == 4 and (axis == "rows" or name not in self.blocked) else 0

    def view(self, name: str) -> tuple[int, ...] | None:
        """The shape by which a blocked value has rows; None for another value."""
        if name not in self.blocked:
            return None
        n, c, h, w = self.values[name].shape
        return n, c // self.block, h, w * self.block

    def size(self, buffer: int, axis: Axis, count: int) -> int:
        value = self.value(buffer)
        return charge(value.size // value.shape[DIMENSION[axis]] * count)

    def rule(self, statement: int, axis: Axis) -> Rule | str:
        kernel = self.kernel(statement, axis)
        return kernel if isinstance(kernel, str) else Rule(kernel.map, tuple(self.buffer_of[name] for name in kernel.banded))

    def kernel(self, statement: int, axis: Axis) -> Kernel | str:
        """How a node runs in bands, or a sentence."""
        if (statement, axis) not in self._kernels:
            node = self.graph.nodes[statement]
            found = self._look(node, axis)
            self._kernels[statement, axis] = f"{node.name} ({node.op}) {found}" if isinstance(found, str) else found
        return self._kernels[statement, axis]

    def bar(self, statement: int, axis: Axis, why: str) -> None:
        self._kernels[statement, axis] = f"{self.graph.nodes[statement].name} ({self.graph.nodes[statement].op}) gives other bits in bands"

    def price(
        self, statement: int, axis: Axis, reads: Mapping[int, tuple[int, int]], count: int
    ) -> tuple[int, int]:
        """By the share of rows or channels: workspace is measured once the split is written."""
        s = self.program.statements[statement]
        whole = self.extent(s.writes[0], axis)
        # What is laid out of data that is read whole is as large for some of the channels.
        return charge(-(-s.workspace * count // whole) if reads else s.workspace), s.cost * count // whole

    def _look(self, node: Node, axis: Axis) -> Kernel | str:
        names = [name for name in node.outputs if name]
        if len(names) != 1 or node.outputs[0] != names[0] or node.bodies or not self.program.statements[node.index].pure:
            return f"is not known to run in bands of {axis}"
        y = self.values[names[0]]
        runtime = frozenset(name for name in node.inputs if name in self.buffer_of)
        blocked = self.blocked.intersection((*runtime, *names))
        if blocked and (axis == "channels" or not self._known(node, blocked)):
            return "works on blocks of channels in a way that is not known; choose a lower --ort-level"
        if not y.size or len(y.shape) != 4:
            return f"gives a result without {axis}"
        return look(Sight(node, self.known, y, runtime), axis)

    def _known(self, node: Node, blocked: frozenset[str]) -> bool:
        """Whether the layout of blocks of what a node touches is known; broadcasts within blocks are not."""
        shapes = [self.values[name].shape for name in blocked]
        alike = node.domain == NCHWC or node.op == "Concat" or {self.known.shape(name) for name in node.inputs if name} == {self.values[node.outputs[0]].shape}
        return alike and self.block > 0 and self.known.opset >= 5 and all(len(shape) == 4 and shape[1] % self.block == 0 for shape in shapes)
