"""A TFLite model as splitting sees it: which operators run on bands of rows or channels, and what their bands cost.

Only what is known to keep every bit is allowed. That a kernel computes a row of a band as it computes that row of the
whole was compared for each operator here, bit for bit; whatever is not listed is refused: reductions over rows, softmax
along them, kernels that quantize as they run, resizing by factors whose steps depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from peakmem.frontends.splitting import Axis, RowMap, Rule, Split, Splittable
from peakmem.model import Overlay, Program
from peakmem.transform.split.maps import Free, Magnify, Pad, Same, Scatter, Shrink, Window

from peakmem_tflite.build import buffer_names
from peakmem_tflite.enlarge import operator_tables
from peakmem_tflite.flatbuffer import Flat, Table
from peakmem_tflite.graph import Graph, Operator, Subgraph, Tensor
from peakmem_tflite.macs import macs
from peakmem_tflite.overlays import Permit, kernel_permits
from peakmem_tflite.scratch import rounded
from peakmem_tflite.targets import Target, requests

TYPES = frozenset({"FLOAT32", "INT8", "INT16"})
"""Element types that the operators below, STRIDED_SLICE and CONCATENATION are known to keep."""

POINTWISE = frozenset(
    {"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "PRELU", "RELU", "RELU6", "RELU_N1_TO_1",
     "RELU_0_TO_1", "LEAKY_RELU", "ELU", "LOGISTIC", "TANH", "HARD_SWISH", "QUANTIZE", "DEQUANTIZE", "ABS", "NEG",
     "SQUARE", "SQRT", "RSQRT", "EXP", "LOG", "SIN", "COS", "FLOOR", "CEIL", "ROUND"}
)  # fmt: skip
"""Element by element, operands broadcast from the right."""

OVER_CHANNELS = frozenset({"SOFTMAX", "L2_NORMALIZATION"})
CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D")
POOLS = ("AVERAGE_POOL_2D", "MAX_POOL_2D")
_SAME = 0  # padding


@dataclass(frozen=True)
class Kernel:
    """How one operator runs in bands.

    Attributes
    ----------
    map : RowMap
    banded : tuple of int
        Tensors it reads in bands.
    cuts : dict of int to int
        Place among its inputs -> dimension along which that constant is cut as the output's rows are.
    shape : tuple of int, or None
        Place of a constant that tells the output's shape, and the element that counts its rows.
    """

    map: RowMap
    banded: tuple[int, ...]
    cuts: Mapping[int, int] = field(default_factory=dict)
    shape: tuple[int, int] | None = None


class TfliteBands(Splittable):
    """The main subgraph of a model, for splitting."""

    cut = "STRIDED_SLICE"
    join = "CONCATENATION"
    most_joined = 10
    overhead = 224  # of the arena's tail on 32-bit devices: an operator, its tensors and their part of the planner's lists

    def __init__(
        self, graph: Graph, program: Program, kernels: Target, joined: Callable[[Split], Program] | None = None, permitted: Permit | None = None
    ) -> None:
        """``joined``: what a split makes, where bands may lie in their join. ``permitted``: what may lie on dying inputs."""
        self.joined, self.in_place = joined, joined is not None
        self.permitted = permitted
        self.graph = graph
        self.program = program
        self.kernels = kernels
        self.main: Subgraph = graph.subgraphs[0]
        index = {name: t for t, name in enumerate(buffer_names(graph, 0))}
        self.tensor_of = [index[b.name] for b in self.program.buffers]
        self.buffer_of = {t: b for b, t in enumerate(self.tensor_of)}
        self.strict = isinstance(kernels, str) and kernels.startswith("esp-nn")
        self._kernels: dict[tuple[int, Axis], Kernel | str] = {}
        self._prices: dict[object, tuple[int, int]] = {}

    @cached_property
    def tables(self) -> list[Table]:
        return operator_tables(self.graph)

    @cached_property
    def tensor_tables(self) -> list[Table]:
        return Flat(self.graph.data, "model").root().children(2, "subgraph")[0].children(0, "tensor")

    @cached_property
    def _buffers(self) -> list[Table]:
        return Flat(self.graph.data, "model").root().children(4, "buffer")

    def data(self, tensor: int) -> bytes:
        """What a constant holds."""
        at, count = self._buffers[self.main.tensors[tensor].buffer].vector(0, 1, "buffer")
        return self.graph.data[at : at + count]

    def in_memory(self, split: Split) -> Program:
        if self.joined is not None:
            return self.joined(split)
        made = split.program
        statements = tuple(replace(s, overlay=self._overlay(split, k)) for k, s in enumerate(made.statements))
        return replace(made, statements=statements) if any(s.overlay for s in statements) else made

    def _overlay(self, split: Split, k: int) -> Overlay | None:
        """What one step of a split program may write on its inputs, as `peakmem_tflite.overlays` will find in the file."""
        step, buffers = split.steps[k], split.program.buffers
        if self.permitted is None or step.statement < 0 or len(step.writes) != 1 or buffers[step.writes[0]].kind == "input":
            return None
        op, original = self.main.operators[step.statement], self.program.statements[step.statement]
        size = buffers[step.writes[0]].size
        found = [
            b for old, b in zip(original.reads, step.reads)
            if buffers[b].kind == "intermediate" and not buffers[b].pinned and buffers[b].size == size
            and kernel_permits(self.main, op, self.tensor_of[old], op.outputs[0], self.permitted.foreign)
        ]  # fmt: skip
        return Overlay(step.writes[0], tuple(dict.fromkeys(found))) if found else None

    def extent(self, buffer: int, axis: Axis) -> int:
        return self._extents[axis][buffer]

    @cached_property
    def _extents(self) -> dict[Axis, list[int]]:
        shapes = [self.main.tensors[t].shape for t in self.tensor_of]
        axes: tuple[Axis, Axis] = ("rows", "channels")
        return {axis: [0 if (d := dimension(s, axis)) is None else s[d] for s in shapes] for axis in axes}

    def size(self, buffer: int, axis: Axis, count: int) -> int:
        return rounded(self.main.tensors[self.tensor_of[buffer]].size // self._extents[axis][buffer] * count)

    def rule(self, statement: int, axis: Axis) -> Rule | str:
        kernel = self.kernel(statement, axis)
        if isinstance(kernel, str):
            return kernel
        return Rule(kernel.map, tuple(self.buffer_of[t] for t in kernel.banded))

    def price(
        self, statement: int, axis: Axis, reads: Mapping[int, tuple[int, int]], count: int
    ) -> tuple[int, int]:
        key = (statement, axis, tuple((b, n) for b, (_, n) in reads.items()), count)
        found = self._prices.get(key)
        if found is None:
            kernel = self.kernel(statement, axis)
            assert not isinstance(kernel, str)
            op = self.main.operators[statement]
            given = {self.tensor_of[b]: n for b, (_, n) in reads.items()}
            tensors: list[Tensor] = []
            for place, t in enumerate((*op.inputs, *op.outputs)):
                tensor = self.main.tensors[t]
                if place >= len(op.inputs):
                    tensor = resized(tensor, axis, count)
                elif t in given:
                    tensor = resized(tensor, axis, given[t])
                elif place in kernel.cuts:
                    tensor = along(tensor, kernel.cuts[place], count)
                tensors.append(tensor)
            here = replace(
                op,
                inputs=tuple(i if t >= 0 else -1 for i, t in enumerate(op.inputs)),
                outputs=tuple(range(len(op.inputs), len(tensors))),
            )
            small = replace(self.main, tensors=tuple(tensors))
            found = sum(requests(self.kernels, 0, small, here)), macs(small, here)
            self._prices[key] = found
        return found

    # -- which operators --------------------------------------------------------------------------------------

    def kernel(self, i: int, axis: Axis) -> Kernel | str:
        """How an operator runs in bands, or a sentence."""
        if (i, axis) not in self._kernels:
            found = self._look(i, axis)
            op = self.main.operators[i].op
            self._kernels[i, axis] = found if isinstance(found, Kernel) else f"operator {i} ({op}) {found}"
        return self._kernels[i, axis]

    def _look(self, i: int, axis: Axis) -> Kernel | str:
        op, main = self.main.operators[i], self.main
        if op.custom or len(op.outputs) != 1 or not self.program.statements[i].pure or op.op not in _KINDS:
            return f"has no known map of {axis}"
        y = main.tensors[op.outputs[0]]
        runtime = [main.tensors[t] for t in op.inputs if t >= 0 and not main.tensors[t].constant]
        if op.outputs[0] not in self.buffer_of or any(t.variable for t in (*runtime, y)):
            return "works on what the arena does not hold"
        if any(t.type not in TYPES for t in (*runtime, y)):
            return f"works on elements of type {next(t.type for t in (*runtime, y) if t.type not in TYPES)}"
        if not y.size or dimension(y.shape, axis) is None:
            return f"gives a result without {axis}"
        options = self.tables[i].sub(4, "options")
        return _KINDS[op.op](self, op, y, axis, options)

    def _window(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        x, w = self._operand(op, 0), self._constant(op, 1)
        if x is None or w is None or options is None or op.window is None or not len(x.shape) == len(w.shape) == 4:
            return "is not given what its kernel expects"
        if (x.type, w.type) not in (("FLOAT32", "FLOAT32"), ("INT8", "INT8"), ("INT8", "INT4"), ("INT16", "INT8")) or x.type != y.type:
            return "computes with other types than it is given"
        depthwise = op.op == "DEPTHWISE_CONV_2D"
        if axis == "channels":
            multiplier = y.shape[3] // x.shape[3] if depthwise and x.shape[3] else 0
            if depthwise and (multiplier < 1 or multiplier * x.shape[3] != y.shape[3]):
                return "has no whole number of results for each channel"
            return self._filters(op, 3 if depthwise else 0, Magnify(x.shape[3], multiplier) if depthwise else Free(),
                                 (op.inputs[0],) if depthwise else ())  # fmt: skip
        stride, spread = op.window.stride[1], op.window.dilation[1]
        rule = Window(x.shape[1], (w.shape[1] - 1) * spread + 1, stride, options.scalar(0, "b") == _SAME, self.strict)
        return self._checked(rule, x, y, (op.inputs[0],))

    def _filters(self, op: Operator, dimension_: int, rule: RowMap, banded: tuple[int, ...]) -> Kernel | str:
        """Weights and bias cut by output channel."""
        cuts = {1: dimension_}
        if len(op.inputs) > 2 and op.inputs[2] >= 0:
            cuts[2] = 0
        for place in cuts:
            if not self._cuttable(op, place, cuts[place]):
                return "has weights that cannot be cut, or scales along another axis than its channels"
        return Kernel(rule, banded, cuts)

    def _checked(self, rule: Window, x: Tensor, y: Tensor, banded: tuple[int, ...]) -> Kernel | str:
        if rule.stride < 1 or rule.reach < 1 or rule.geometry(x.shape[1])[0] != y.shape[1]:
            return "has a result of other rows than its window gives"
        return Kernel(rule, banded)

    def _pool(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        x = self._operand(op, 0)
        if x is None or options is None or len(x.shape) != 4 or x.type != y.type:
            return "is not given what its kernel expects"
        if axis == "channels":
            return Kernel(Same(), (op.inputs[0],))
        rule = Window(x.shape[1], options.scalar(4, "i"), options.scalar(2, "i"), options.scalar(0, "b") == _SAME, self.strict)
        return self._checked(rule, x, y, (op.inputs[0],))

    def _pointwise(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        d = dimension(y.shape, axis)
        assert d is not None
        behind, count = len(y.shape) - d, y.shape[d]
        banded: list[int] = []
        cuts: dict[int, int] = {}
        for place, t in enumerate(op.inputs):
            if t < 0:
                return "omits an operand"
            tensor = self.main.tensors[t]
            own = tensor.shape[-behind] if len(tensor.shape) >= behind else 1
            if own == 1:
                continue  # broadcast: given whole
            if own != count or len(tensor.shape) > len(y.shape):
                return f"has an operand of other {axis}"
            if tensor.constant:
                if not self._cuttable(op, place, len(tensor.shape) - behind):
                    return "has a constant that cannot be cut"
                cuts[place] = len(tensor.shape) - behind
            elif len(tensor.shape) != len(y.shape):
                return "has operands of several ranks"
            else:
                banded.append(t)
        if not banded:
            return f"has no operand with {axis}"
        return Kernel(Same(), tuple(dict.fromkeys(banded)), cuts)

    def _over_channels(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        x = self._operand(op, 0)
        if axis == "channels" or x is None or x.shape != y.shape:
            return "works along its channels"
        return Kernel(Same(), (op.inputs[0],))

    def _concatenation(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        if options is None or axis == "channels" or options.scalar(0, "i") not in (3, -1):
            return f"joins along its {axis}" if axis == "channels" else "joins along another axis than channels"
        cuts = {}
        banded = []
        for place, t in enumerate(op.inputs):
            tensor = self.main.tensors[t]
            if len(tensor.shape) != 4 or tensor.shape[1] != y.shape[1]:
                return "joins what has other rows"
            if not tensor.constant:
                banded.append(t)
            elif self._cuttable(op, place, 1):
                cuts[place] = 1
            else:
                return "has a constant that cannot be cut"
        if not banded:
            return "joins constants"
        return Kernel(Same(), tuple(dict.fromkeys(banded)), cuts)

    def _pad(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        x, amounts = self._operand(op, 0), self._numbers(op, 1)
        d = dimension(y.shape, axis)
        if x is None or amounts is None or d is None or len(amounts) != 2 * len(y.shape) or len(x.shape) != len(y.shape):
            return "is not given what its kernel expects"
        top, bottom = amounts[2 * d], amounts[2 * d + 1]
        if min(top, bottom) < 0 or x.shape[d] + top + bottom != y.shape[d]:
            return "pads by other amounts than its result has"
        if axis == "channels":
            return Kernel(Same(), (op.inputs[0],)) if not top and not bottom else "pads channels"
        return Kernel(Pad(x.shape[1], top, bottom), (op.inputs[0],))

    def _resize(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        if axis == "channels":
            return "is split by rows only"
        x, size = self._operand(op, 0), self._numbers(op, 1)
        blend = op.op == "RESIZE_BILINEAR"
        if x is None or size is None or len(size) != 2 or len(x.shape) != 4 or size[0] != y.shape[1]:
            return "is not given what its kernel expects"
        slots = (2, 3) if blend else (0, 1)
        corners, half = (options.scalar(s, "B") if options is not None else 0 for s in slots)
        if corners:
            return "aligns corners, so its steps depend on the number of rows"
        h, out = x.shape[1], y.shape[1]
        if out % h == 0:
            f = out // h
            if blend and f & (f - 1):
                return f"resizes by {f}, which is no power of two"
            if not blend and not _whole_steps(h, f, bool(half)):
                return f"resizes by {f}, whose steps are rounded"
            return Kernel(Magnify(h, f, blend), (op.inputs[0],), shape=(1, 0))
        if h % out == 0:
            return Kernel(Shrink(h, h // out, blend), (op.inputs[0],), shape=(1, 0))
        return f"resizes {h} rows to {out}, which is no whole factor"

    def _transposed(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        shape, w, x = self._numbers(op, 0), self._constant(op, 1), self._operand(op, 2)
        if axis == "channels":
            return "is split by rows only"
        if shape is None or w is None or x is None or options is None or op.window is None or shape != y.shape or len(w.shape) != 4:
            return "is not given what its kernel expects"
        if (x.type, w.type) not in (("FLOAT32", "FLOAT32"), ("INT8", "INT8"), ("INT16", "INT8")) or x.type != y.type:
            return "computes with other types than it is given"
        rule = Scatter(x.shape[1], w.shape[1], op.window.stride[1], options.scalar(0, "b") == _SAME)
        if rule.stride < 1 or rule.geometry(x.shape[1])[0] != y.shape[1]:
            return "has a result of other rows than its window gives"
        return Kernel(rule, (op.inputs[2],), shape=(0, 1))

    def _blocks(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        x = self._operand(op, 0)
        block = options.scalar(0, "i") if options is not None else 0
        if axis == "channels" or x is None or block < 1 or len(x.shape) != 4:
            return "moves channels to rows"
        up = op.op == "DEPTH_TO_SPACE"
        if y.shape[1] != (x.shape[1] * block if up else x.shape[1] // block) or (not up and x.shape[1] % block):
            return "has a result of other rows than its blocks give"
        return Kernel(Magnify(x.shape[1], block) if up else Shrink(x.shape[1], block), (op.inputs[0],))

    def _full(self, op: Operator, y: Tensor, axis: Axis, options: Table | None) -> Kernel | str:
        x, w = self._operand(op, 0), self._constant(op, 1)
        if axis == "rows" or x is None or w is None or len(w.shape) != 2 or y.shape[-1] != w.shape[0]:
            return "computes each result from all rows"
        if (x.type, w.type) not in (("FLOAT32", "FLOAT32"), ("INT8", "INT8"), ("INT16", "INT8")) or x.type != y.type:
            return "computes with other types than it is given"
        if options is not None and options.scalar(1, "b"):
            return "has shuffled weights"
        # Kernels may multiply otherwise by one scale than by one for each channel.
        return self._filters(op, 0, Free(least=2 if w.scales > 1 else 1), ())

    def _operand(self, op: Operator, place: int) -> Tensor | None:
        """An operand computed as the model runs."""
        t = op.inputs[place] if place < len(op.inputs) else -1
        return self.main.tensors[t] if t in self.buffer_of and not self.main.tensors[t].constant else None

    def _constant(self, op: Operator, place: int) -> Tensor | None:
        t = op.inputs[place] if place < len(op.inputs) else -1
        return self.main.tensors[t] if t >= 0 and self.main.tensors[t].constant else None

    def _cuttable(self, op: Operator, place: int, d: int) -> bool:
        """Whether an operand is a constant of whole bytes, densely stored in the file, with one scale or one for each entry
        of the dimension that it is to be cut along; of a single dimension, whatever number the file gives it (biases of
        depthwise convolutions often have that of the weights)."""
        tensor = self._constant(op, place)
        if tensor is None or tensor.type == "INT4" or self.graph.external:
            return False
        table = self.tensor_tables[op.inputs[place]]
        quantization = table.sub(4, "quantization")
        scales = quantization.vector(2, 4, "scale")[1] if quantization is not None else 0
        along = quantization.scalar(6, "i") if quantization is not None else 0
        return not table.target(6) and (scales <= 1 or ((along == d or len(tensor.shape) == 1) and scales == tensor.shape[d]))

    def _numbers(self, op: Operator, place: int) -> tuple[int, ...] | None:
        """A constant of whole numbers."""
        tensor = self._constant(op, place)
        width = {"INT32": 4, "INT64": 8}.get(tensor.type, 0) if tensor is not None else 0
        if not width or self.graph.external:
            return None
        data = self.data(op.inputs[place])
        return tuple(int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width))


_KINDS = {
    **dict.fromkeys(CONVOLUTIONS, TfliteBands._window),
    **dict.fromkeys(POOLS, TfliteBands._pool),
    **dict.fromkeys(POINTWISE, TfliteBands._pointwise),
    **dict.fromkeys(OVER_CHANNELS, TfliteBands._over_channels),
    **dict.fromkeys(("PAD", "PADV2"), TfliteBands._pad),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), TfliteBands._resize),
    **dict.fromkeys(("DEPTH_TO_SPACE", "SPACE_TO_DEPTH"), TfliteBands._blocks),
    "CONCATENATION": TfliteBands._concatenation,
    "TRANSPOSE_CONV": TfliteBands._transposed,
    "FULLY_CONNECTED": TfliteBands._full,
}


def dimension(shape: tuple[int, ...], axis: Axis) -> int | None:
    """The dimension of rows (of an image) or of channels; None where there is none."""
    if axis == "rows":
        return 1 if len(shape) == 4 else None
    return len(shape) - 1 if 2 <= len(shape) <= 4 else None


def along(tensor: Tensor, d: int, count: int) -> Tensor:
    """A tensor like this one with so many entries along a dimension."""
    whole = tensor.shape[d]
    shape = (*tensor.shape[:d], count, *tensor.shape[d + 1 :])
    return replace(tensor, shape=shape, size=tensor.size // whole * count if whole else 0)


def resized(tensor: Tensor, axis: Axis, count: int) -> Tensor:
    d = dimension(tensor.shape, axis)
    assert d is not None
    return along(tensor, d, count)


def _whole_steps(rows: int, factor: int, half: bool) -> bool:
    """Whether the kernel, which multiplies by the rounded inverse of the factor, finds row ``y div factor`` for every ``y``."""
    import numpy as np

    y = np.arange(rows * factor, dtype=np.float32) + np.float32(0.5 if half else 0.0)
    found = np.floor(y * (np.float32(1.0) / np.float32(factor)))
    return bool((found == np.arange(rows * factor) // factor).all())
