"""How nodes run on bands of rows, and on some of their channels: operator by operator, at the level at which ONNX Runtime runs them.

Padding is an attribute here, so a band is padded where it ends with the whole and nowhere else, and computes no row that is not
right but for those of resizing. *Which numbers* a row or a channel is computed from is the same then; whether floats are added in the
same sequence is not promised, since ONNX Runtime chooses the blocking of a sum by the number of pixels. So the run is the judge (see
`peakmem_onnx.splitwrite.judge`); sums of integers are equal by arithmetic. No summed dimension is ever cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from peakmem.frontends.splitting import Axis, RowMap
from peakmem.transform.split.maps import Free, Magnify, Same, Shrink

from peakmem_onnx.graph import Node, Value
from peakmem_onnx.protos import import_onnx
from peakmem_onnx.rules import MICROSOFT, NCHWC
from peakmem_onnx.splitmaps import Groups, PaddedRows, PaddedWindow, Several, Transposed

DIMENSION: Mapping[Axis, int] = {"rows": 2, "channels": 1}
"""Of batch, channels, rows, columns."""

ROWS = DIMENSION["rows"]

EACH = frozenset(
    {("", op) for op in (
        "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "HardSigmoid",
        "HardSwish", "LeakyRelu", "Less", "Log", "Max", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "PRelu", "Reciprocal", "Relu", "Round",
        "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu", "Where",
    )} | {(MICROSOFT, op) for op in ("Gelu", "QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QuickGelu")}
)  # fmt: skip
"""Element by element, operands broadcast from the right."""

PER_CHANNEL = frozenset({"BatchNormalization", "QuantizeLinear", "DequantizeLinear"})
"""Element by element in operand 0; the others hold a number, or one for each channel."""

OVER_CHANNELS = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
"""Along an axis that is named; other rows are not looked at where it is not theirs."""

WINDOWS: Mapping[tuple[str, str], int] = {
    ("", "Conv"): 1, (MICROSOFT, "FusedConv"): 1, ("", "ConvInteger"): 1, ("", "QLinearConv"): 3, ("", "MaxPool"): -1, ("", "AveragePool"): -1,
    (NCHWC, "Conv"): 1, (NCHWC, "MaxPool"): -1, (NCHWC, "AveragePool"): -1,
}  # fmt: skip
"""Operators with windows -> the operand that holds their weights; -1 for none."""

FOR_EACH_CHANNEL: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("", "Conv"): (1, 2), (MICROSOFT, "FusedConv"): (1, 2), ("", "ConvInteger"): (1, 3), ("", "QLinearConv"): (3, 4, 5, 8),
    ("", "InstanceNormalization"): (1, 2), ("", "BatchNormalization"): (1, 2, 3, 4), ("", "QuantizeLinear"): (1, 2), ("", "DequantizeLinear"): (1, 2),
}  # fmt: skip
"""Operands that hold an entry for each channel of the result, or one for all, along their first dimension."""

APART = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
"""Over all rows, but channel by channel."""

CUTTABLE = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})
"""Types of elements of which constants are cut: those of numpy's own."""

Told = Mapping["str | int", Any]
"""What a band's node is told instead: an attribute by its name (None: left out), or whole numbers as the operand at a place."""


@dataclass(frozen=True)
class Kernel:
    """How one node runs in bands.

    Attributes
    ----------
    map : RowMap
    banded : tuple of str
        Values it reads in bands.
    cuts : mapping of int to int
        Place among its inputs -> dimension along which that constant is cut as the result is.
    told : callable, optional
        Given first and last but one of the band's rows, first and number of the result's: what the band's node is told.
    """

    map: RowMap
    banded: tuple[str, ...]
    cuts: Mapping[int, int] = field(default_factory=dict)
    told: Callable[[tuple[int, int], tuple[int, int]], Told] | None = None


@dataclass(frozen=True)
class Known:
    """What a file holds beside its nodes.

    Attributes
    ----------
    values : mapping of str to Value
    constants : mapping of str to TensorProto
    given : frozenset of str
        Constants that a caller may replace.
    opset : int
    """

    values: Mapping[str, Value]
    constants: Mapping[str, Any]
    given: frozenset[str]
    opset: int

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a value, or of a constant; None where it is not known."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return self.values[name].shape if name in self.values else None

    def array(self, name: str) -> Any:
        """What a constant holds; None where it is not in the file, or may be replaced."""
        tensor = self.constants.get(name)
        if tensor is None or name in self.given or tensor.data_location or tensor.data_type not in CUTTABLE:
            return None
        return import_onnx().numpy_helper.to_array(tensor)

    def numbers(self, name: str) -> list[Any] | None:
        """A small constant as a list."""
        shape = self.shape(name)
        found = self.array(name) if shape is not None and len(shape) < 2 and sum(shape) <= 16 else None
        return None if found is None else found.ravel().tolist()


@dataclass(frozen=True)
class Sight:
    """One node, with what is known of its operands."""

    node: Node
    known: Known
    y: Value
    runtime: frozenset[str]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        return attributes(self.node)

    def shape(self, k: int) -> tuple[int, ...] | None:
        """Of an operand; of one that is left out, no dimensions."""
        return self.known.shape(self.name(k)) if self.name(k) else ()

    def name(self, k: int) -> str:
        return self.node.inputs[k] if k < len(self.node.inputs) else ""

    def data(self) -> tuple[int, ...] | None:
        """The shape of operand 0, where it is a value with rows and channels."""
        found = self.shape(0)
        return found if self.name(0) in self.runtime and found is not None and len(found) == 4 else None

    def cuttable(self, k: int) -> bool:
        return self.known.array(self.name(k)) is not None

    def numbers(self, k: int) -> list[Any] | None:
        return self.known.numbers(self.name(k))


def look(o: Sight, axis: Axis) -> Kernel | str:
    """How a node with one result of four dimensions runs in bands, or the rest of a sentence."""
    way = _KINDS.get((o.node.domain, o.node.op))
    return way(o, axis) if way is not None else f"has no known map of {axis}"


_ODD = "is not given what its kernel expects"


def _window(o: Sight, axis: Axis) -> Kernel | str:
    weights = WINDOWS[o.node.domain, o.node.op]
    x, y, a = o.data(), o.y.shape, o.attributes
    if x is None:
        return _ODD
    kernel, ceil = window_of(o.node, a, o.known), a.get("ceil_mode", 0)
    if kernel is None or a.get("auto_pad", "NOTSET") not in ("NOTSET", *(() if ceil else ("VALID", "SAME_UPPER", "SAME_LOWER"))):
        return "has a window that is not known"
    if any(name in o.runtime for name in o.node.inputs[1:]):
        return "reads another value, whose rows are not those of its data"
    if axis == "channels":
        return _filters(o, weights) if weights > 0 else Kernel(Same(), (o.name(0),))
    pads = full_pads(a, kernel, x, y)
    stride, dilation = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    if min(pads) < 0 or min(stride) < 1:
        return "has a window that is not known"
    reach = [(kernel[k] - 1) * dilation[k] + 1 for k in (0, 1)]
    over = [y[2 + k] - (x[2 + k] + pads[k] + pads[2 + k] - reach[k]) // stride[k] - 1 for k in (0, 1)]
    counted = bool(a.get("count_include_pad", 0))
    if not all(0 <= n <= ceil for n in over) or (counted and over[1]):
        return "has a result of other rows than its window gives"
    if not counted:  # padding does not count, so a window that stands out of it is one that has more of it
        for k in (0, 1):
            pads[2 + k] += over[k] and (y[2 + k] - 1) * stride[k] + reach[k] - x[2 + k] - pads[k] - pads[2 + k]
        over = [0, 0]
    rule = PaddedWindow(x[ROWS], reach[0], stride[0], pads[0], pads[2], over[0])

    def told(given: tuple[int, int], made: tuple[int, int]) -> Told:
        top, bottom = rule.padding(*given)
        last = bool(rule.over) and given[1] == rule.extent
        return {"pads": [top, pads[1], bottom, pads[3]], "auto_pad": None, "ceil_mode": 1 if last else None}

    return Kernel(rule, (o.name(0),), told=told)


def _filters(o: Sight, weights: int) -> Kernel | str:
    """A convolution by output channels, those of whole groups where it has groups."""
    if o.node.domain == NCHWC:
        return "has weights in blocks"
    cuts = _entries(o)
    x, w, groups = o.data(), o.shape(weights), o.attributes.get("group", 1)
    if isinstance(cuts, str) or x is None or not w or w[0] != o.y.shape[1] or weights not in cuts:
        return cuts if isinstance(cuts, str) else _ODD
    if groups == 1:
        return Kernel(Free(), (), cuts)
    if groups < 1 or x[1] % groups or w[0] % groups:
        return _ODD
    rule = Groups(x[1] // groups, w[0] // groups)
    return Kernel(rule, (o.name(0),), cuts, lambda given, made: {"group": made[1] // rule.given})


def _entries(o: Sight) -> dict[int, int] | str:
    """Constants with an entry for each channel of the result, which are cut with them."""
    cuts = {}
    for k in FOR_EACH_CHANNEL[o.node.domain, o.node.op]:
        shape = o.shape(k)
        if not o.name(k) or shape in ((), (1,)):
            continue
        if not shape or shape[0] != o.y.shape[1] or not o.cuttable(k):
            return "has weights that cannot be cut"
        cuts[k] = 0
    return cuts


def _each(o: Sight, axis: Axis) -> Kernel | str:
    """Element by element."""
    dimension = DIMENSION[axis]
    behind, extent = 4 - dimension, o.y.shape[dimension]
    banded, cuts, least = [], {}, 1
    for k, name in enumerate(o.node.inputs):
        shape = o.shape(k)
        if shape is None or len(shape) > 4:
            return "has an operand of unknown shape"
        if len(shape) < behind or shape[-behind] == 1:
            continue
        if name in o.runtime and len(shape) == 4 and shape[dimension] == extent:
            banded.append(name)
        elif shape[-behind] == extent and o.cuttable(k):
            cuts[k] = len(shape) - behind
            # One row of a constant looks like one for all rows.
            least = 2 if axis == "rows" else least
        else:
            return f"has an operand with {axis} that cannot be cut"
    if not banded:
        return f"has no operand with {axis}"
    return Kernel(Same() if least == 1 else Several(), tuple(dict.fromkeys(banded)), cuts)


def _per_channel(o: Sight, axis: Axis) -> Kernel | str:
    if o.data() != o.y.shape or o.attributes.get("block_size", 0):
        return _ODD
    for k in range(1, len(o.node.inputs)):
        shape = o.shape(k)
        if shape is None or len(shape) > 1 or o.name(k) in o.runtime or (shape and o.node.op != "BatchNormalization" and o.attributes.get("axis", 1) not in (1, -3)):
            return "has scales that are not one for each channel"
    cuts = _entries(o) if axis == "channels" else {}
    return cuts if isinstance(cuts, str) else Kernel(Same(), (o.name(0),), cuts)


def _apart(o: Sight, axis: Axis) -> Kernel | str:
    """Over all rows, but each channel by itself."""
    if axis == "rows":
        return "looks at all rows"
    cuts = _entries(o) if o.node.op == "InstanceNormalization" else {}
    return cuts if isinstance(cuts, str) else Kernel(Same(), (o.name(0),), cuts) if o.data() else _ODD


def _over_channels(o: Sight, axis: Axis) -> Kernel | str:
    along = o.attributes.get("axis", -1)
    if o.data() is None or o.known.opset < 13 or along % 4 in (0, DIMENSION[axis]):
        return f"works along its {axis}"
    return Kernel(Same(), (o.name(0),))


def _concat(o: Sight, axis: Axis) -> Kernel | str:
    if axis == "channels" or o.attributes.get("axis") not in (1, -3):
        return f"joins along its {axis}" if axis == "channels" else "joins along another axis than channels"
    if not all(name in o.runtime or o.cuttable(k) for k, name in enumerate(o.node.inputs)):
        return "joins a constant that cannot be cut"
    banded = tuple(dict.fromkeys(name for name in o.node.inputs if name in o.runtime))
    return Kernel(Same(), banded, {k: ROWS for k, name in enumerate(o.node.inputs) if name not in o.runtime}) if banded else "joins constants"


def _pad(o: Sight, axis: Axis) -> Kernel | str:
    x, y = o.data(), o.y.shape
    amounts = pads_of(o.node, o.attributes, o.known)
    mode = o.attributes.get("mode", "constant")
    if x is None or amounts is None or min(amounts) < 0 or mode not in ("constant", "edge", "reflect"):
        return "pads in a way that is not known"
    if axis == "channels":
        return "pads channels" if amounts[1] or amounts[5] else Kernel(Same(), (o.name(0),))
    top, bottom = amounts[2], amounts[6]
    if y[ROWS] != x[ROWS] + top + bottom or (mode == "reflect" and max(top, bottom) >= x[ROWS]):
        return "pads by other amounts than its result has"
    rule = PaddedRows(x[ROWS], top, bottom, mode == "reflect")
    named = o.numbers(3) if o.name(3) else None

    def told(given: tuple[int, int], made: tuple[int, int]) -> Told:
        here = [*amounts[:2], top if given[0] == 0 else 0, *amounts[3:6], bottom if given[1] == rule.extent else 0, amounts[7]]
        if o.known.opset < 11:
            return {"pads": here}
        return {1: here if named is None else [here[side + k % 4] for side in (0, 4) for k in named]}

    return Kernel(rule, (o.name(0),), told=told)


def _resize(o: Sight, axis: Axis) -> Kernel | str:
    x, y, a = o.data(), o.y.shape, o.attributes
    told = scales_of(o.node, a, o.known)
    mode, way = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel" if o.known.opset > 10 else "asymmetric")
    if x is None or told is None or mode not in ("nearest", "linear") or way not in ("half_pixel", "pytorch_half_pixel", "asymmetric"):
        return "resizes in a way that is not known"
    if x[:2] != y[:2] or a.get("antialias", 0) or a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "resizes in a way that is not known"
    if axis == "channels":
        return "is split by rows only"
    scales, sizes, named = told
    factor = y[ROWS] // x[ROWS]
    place = named.index(ROWS) if ROWS in named else -1
    if factor * x[ROWS] != y[ROWS] or (scales and place >= 0 and scales[place] != factor):
        return "resizes by what is no whole factor"
    if mode == "linear" and factor & (factor - 1):
        return f"resizes by {factor}, which is no power of two"
    rounding = a.get("nearest_mode", "round_prefer_floor" if o.known.opset > 10 else "floor")
    own = mode == "nearest" and (way, rounding) in {("asymmetric", "floor"), *(("half_pixel", r) for r in ("round_prefer_floor", "round_prefer_ceil"))}

    def resized(given: tuple[int, int], made: tuple[int, int]) -> Told:
        return {3: [made[1] if k == place else n for k, n in enumerate(sizes)]} if sizes else {}

    return Kernel(Magnify(x[ROWS], factor, blend=factor > 1 and not own), (o.name(0),), told=resized)


def _transposed(o: Sight, axis: Axis) -> Kernel | str:
    x, w, y, a = o.data(), o.shape(1), o.y.shape, o.attributes
    if x is None or not w or len(w) != 4 or a.get("auto_pad", "NOTSET") != "NOTSET" or a.get("output_shape"):
        return "pads in a way that is not known"
    if axis == "channels":
        bias = o.shape(2)
        if a.get("group", 1) != 1 or w[1] != y[1] or not o.cuttable(1) or (bias and not o.cuttable(2)):
            return "has weights that cannot be cut"
        return Kernel(Free(), (), {1: 1, **({2: 0} if bias else {})})
    pads, more = a.get("pads", [0] * 4), a.get("output_padding", [0, 0])
    stride, reach = a.get("strides", [1, 1])[0], (w[2] - 1) * a.get("dilations", [1, 1])[0] + 1
    rule = Transposed(x[ROWS], reach, stride, pads[0], y[ROWS])
    if min(pads) < 0 or reach < stride or y[ROWS] != stride * (x[ROWS] - 1) + reach + more[0] - pads[0] - pads[2]:
        return "has a result of other rows than its window gives"
    if any(name in o.runtime for name in o.node.inputs[1:]):
        return "reads weights that are computed"

    def told(given: tuple[int, int], made: tuple[int, int]) -> Told:
        start, end = given
        last = end == rule.extent
        top = made[0] + rule.top - stride * start
        bottom = pads[2] if last else stride * (end - start - 1) + reach - top - made[1]
        return {"pads": [top, pads[1], bottom, pads[3]], "output_padding": [more[0] if last else 0, more[1]]}

    return Kernel(rule, (o.name(0),), told=told)


def _blocks(o: Sight, axis: Axis) -> Kernel | str:
    x, y, block = o.data(), o.y.shape, o.attributes.get("blocksize", 0)
    if axis == "channels":
        return "moves channels to rows"
    if x is None or block < 1 or max(x[ROWS], y[ROWS]) != block * min(x[ROWS], y[ROWS]):
        return _ODD
    return Kernel((Magnify if o.node.op == "DepthToSpace" else Shrink)(x[ROWS], block), (o.name(0),))


def _reordered(o: Sight, axis: Axis) -> Kernel | str:
    """To blocks of channels, and back."""
    if axis == "channels" or o.attributes.get("channels_last", 0) or o.data() is None:
        return f"has no known map of {axis}"
    return Kernel(Same(), (o.name(0),))


_KINDS: Mapping[tuple[str, str], Callable[[Sight, Axis], Kernel | str]] = {
    **dict.fromkeys(EACH, _each),
    **dict.fromkeys(WINDOWS, _window),
    **{("", op): _per_channel for op in PER_CHANNEL},
    **{("", op): _over_channels for op in OVER_CHANNELS},
    **{("", op): _apart for op in (*APART, "InstanceNormalization")},
    **{("", op): _blocks for op in ("DepthToSpace", "SpaceToDepth")},
    **{(NCHWC, op): _reordered for op in ("ReorderInput", "ReorderOutput")},
    ("", "Concat"): _concat,
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
    ("", "Upsample"): _resize,
    ("", "ConvTranspose"): _transposed,
}


# -- what a node says, whoever asks ------------------------------------------------------------------------------------


def attributes(node: Node) -> dict[str, Any]:
    """Numbers and texts among a node's attributes."""
    found: dict[str, Any] = {}
    for a in node.proto.attribute:
        found[a.name] = {1: a.f, 2: a.i, 3: a.s.decode("utf-8", "replace"), 6: list(a.floats), 7: list(a.ints)}.get(a.type)
    return found


def window_of(node: Node, a: Mapping[str, Any], known: Known) -> list[int] | None:
    """Rows and columns of a window, as told or as its weights have them."""
    weights = WINDOWS[node.domain, node.op]
    kernel = a.get("kernel_shape") or (list((known.shape(node.inputs[weights]) or ())[2:]) if weights > 0 else [])
    return kernel if len(kernel) == 2 else None


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


def pads_of(node: Node, a: Mapping[str, Any], known: Known) -> list[int] | None:
    """Amounts that a Pad adds before and after each of four axes; None where they are not known."""
    if known.opset < 11:
        found = a.get("pads")
        return found if found and len(found) == 8 else None
    amounts = known.numbers(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = [0, 1, 2, 3]
    if len(node.inputs) > 3 and node.inputs[3]:
        axes = [k % 4 for k in known.numbers(node.inputs[3]) or ()]
    if not amounts or len(amounts) != 2 * len(axes) or len(set(axes)) < len(axes):
        return None
    full = [0] * 8
    for k, axis in enumerate(axes):
        full[axis], full[4 + axis] = amounts[k], amounts[len(axes) + k]
    return full


def scales_of(node: Node, a: Mapping[str, Any], known: Known) -> tuple[list[float], list[int], list[int]] | None:
    """Scales or sizes that a Resize is told, and the axes that they are of; None where they are not known."""
    axes = [k % 4 for k in a.get("axes") or (0, 1, 2, 3)]
    operand = {"Upsample": 1}.get(node.op, 1 if known.opset < 11 else 2)
    if node.op == "Upsample" and known.opset < 9:
        scales = a.get("scales")
    else:
        scales = known.numbers(node.inputs[operand]) if len(node.inputs) > operand and node.inputs[operand] else []
    sizes = known.numbers(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else []
    if scales is None or sizes is None or bool(scales) == bool(sizes) or len(scales or sizes) != len(axes):
        return None
    return scales, sizes, axes
