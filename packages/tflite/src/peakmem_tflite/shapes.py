"""Which shapes an operator's kernel takes for granted, by operator.

TFLite Micro checks few of them while it prepares. Each rule returns what does not fit as the rest of a sentence, or nothing; where a
rule needs a constant that is none, or options that are absent, it says nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod

from peakmem_tflite.graph import Operator, Subgraph, Tensor

Constants = Callable[[Tensor], bytes | None]
"""The bytes of a constant; None for others."""

Rule = Callable[[Operator, Sequence[Tensor], Sequence[Tensor], Constants], str]
"""Operator, the inputs that are not omitted, outputs, constants -> what does not fit."""


def unfit(subgraph: Subgraph, op: Operator, constants: Constants) -> str:
    """What does not fit about one operator of a subgraph; empty where all does, or no rule is known."""
    rule = _RULES.get(op.op)
    if op.custom or rule is None or not op.outputs or not op.inputs or op.inputs[0] < 0:
        return ""
    inputs = [subgraph.tensors[t] for t in op.inputs if t >= 0]
    try:
        return rule(op, inputs, [subgraph.tensors[t] for t in op.outputs], constants)
    except (IndexError, ZeroDivisionError, struct.error):
        return "has tensors of other ranks than its kernel takes"


def _numbers(tensor: Tensor, constants: Constants) -> tuple[int, ...] | None:
    """The values of a constant of 32-bit integers."""
    data = constants(tensor)
    if data is None or tensor.type != "INT32":
        return None
    return struct.unpack(f"<{tensor.elements}i", data[: 4 * tensor.elements])


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of an elementwise result; None where the shapes do not go together."""
    rank = max(map(len, shapes))
    filled = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for extents in zip(*filled):
        others = set(extents) - {1}
        if len(others) > 1:
            return None
        result.append(others.pop() if others else 1)
    return tuple(result)


def _weighted(x: Tensor, y: Tensor, bias: Tensor | None) -> str:
    """What all convolutions have in common: batches, and a bias for each channel."""
    if x.shape[0] != y.shape[0]:
        return f"makes {y.shape[0]} batches of {x.shape[0]}"
    if bias is not None and bias.elements != y.shape[-1]:
        return f"adds {bias.elements} biases to {y.shape[-1]} channels"
    return ""


def _bias(inputs: Sequence[Tensor], at: int) -> Tensor | None:
    return inputs[at] if len(inputs) > at else None


def _conv(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    x, w, y = inputs[0], inputs[1], outputs[0]
    if not len(x.shape) == len(w.shape) == len(y.shape) == 4:
        return f"takes {len(x.shape)} dimensions to {len(y.shape)} with a filter of {len(w.shape)}"
    if w.shape[3] == 0 or x.shape[-1] % w.shape[3]:
        return f"reads {x.shape[-1]} channels with a filter of {w.shape[3]}"
    if w.shape[0] != y.shape[-1]:
        return f"gives {y.shape[-1]} channels with {w.shape[0]} filters"
    return _weighted(x, y, _bias(inputs, 2))


def _depthwise(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    x, w, y = inputs[0], inputs[1], outputs[0]
    if not len(x.shape) == len(w.shape) == len(y.shape) == 4:
        return f"takes {len(x.shape)} dimensions to {len(y.shape)} with a filter of {len(w.shape)}"
    if w.shape[-1] != y.shape[-1]:
        return f"gives {y.shape[-1]} channels with a filter of {w.shape[-1]}"
    if op.window is not None and x.shape[-1] * op.window.multiplier != y.shape[-1]:
        return f"gives {y.shape[-1]} channels, {op.window.multiplier} for each of {x.shape[-1]}"
    return _weighted(x, y, _bias(inputs, 2))


def _transpose_conv(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    w, x, y = inputs[1], inputs[2], outputs[0]
    if (w.shape[0], w.shape[3]) == (y.shape[3], x.shape[3]):
        return _weighted(x, y, _bias(inputs, 3))
    return f"takes {x.shape[3]} channels to {y.shape[3]} with {w.shape[0]} filters of {w.shape[3]}"


def _pool(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    x, y = inputs[0].shape, outputs[0].shape
    if len(x) != 4 or len(y) != 4 or x[0] != y[0]:
        return f"pools {list(x)} into {list(y)}"
    return f"pools {x[3]} channels into {y[3]}" if x[3] != y[3] else ""


def _full(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    x, w, y = inputs[0], inputs[1], outputs[0]
    if len(w.shape) != 2 or x.elements * w.shape[0] != y.elements * w.shape[1]:
        shape = " x ".join(map(str, w.shape))
        return f"gives {y.elements} elements from {x.elements} with weights of {shape}"
    if y.shape[-1] != w.shape[0] and y.elements != w.shape[0]:
        return f"gives rows of {y.shape[-1]} with weights of {w.shape[0]} x {w.shape[1]}"
    bias = _bias(inputs, 2)
    return f"adds {bias.elements} biases to {w.shape[0]} channels" if bias is not None and bias.elements != w.shape[0] else ""


def _same(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    x, y = inputs[0].elements, outputs[0].elements
    return f"gives {y} elements for {x}" if x != y else ""


def _elementwise(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    shapes = [tensor.shape for tensor in inputs]
    result = _broadcast(shapes)
    if result is None or prod(result) != outputs[0].elements:
        return f"gives {list(outputs[0].shape)} from {' and '.join(str(list(shape)) for shape in shapes)}"
    return ""


def _joined(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    """Tensors that differ along one axis only, there as long as the whole."""
    whole = outputs[0].shape
    axis = op.axis + len(whole) if op.axis is not None and op.axis < 0 else op.axis
    if axis is None:
        return ""
    said = f"joins {', '.join(str(list(t.shape)) for t in inputs[:4])} to {list(whole)} along axis {op.axis}"
    if not 0 <= axis < len(whole) or any(len(t.shape) != len(whole) for t in inputs):
        return said
    rest = {t.shape[:axis] + t.shape[axis + 1 :] for t in (*inputs, outputs[0])}
    return said if len(rest) > 1 or sum(t.shape[axis] for t in inputs) != whole[axis] else ""


def _parted(whole: Tensor, parts: Sequence[Tensor], axis: Tensor, constants: Constants) -> str:
    at = _numbers(axis, constants)
    if not at:
        return ""
    k = at[0] + len(whole.shape) if at[0] < 0 else at[0]
    said = f"parts {list(whole.shape)} into {', '.join(str(list(t.shape)) for t in parts[:4])} along axis {at[0]}"
    if not 0 <= k < len(whole.shape) or any(len(t.shape) != len(whole.shape) for t in parts):
        return said
    rest = {t.shape[:k] + t.shape[k + 1 :] for t in (*parts, whole)}
    return said if len(rest) > 1 or sum(t.shape[k] for t in parts) != whole.shape[k] else ""


def _split(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    said = _parted(inputs[1], outputs, inputs[0], constants)
    return said or ("parts into tensors of different shapes" if len({t.shape for t in outputs}) > 1 else "")


def _split_v(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    return _parted(inputs[0], outputs, inputs[2], constants)


def _stacked(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    many, one = (inputs, outputs[0]) if op.op == "PACK" else (outputs, inputs[0])
    axis = op.axis + len(one.shape) if op.axis is not None and op.axis < 0 else op.axis
    if axis is None:
        return ""
    shape = one.shape[:axis] + one.shape[axis + 1 :]
    if not 0 <= axis < len(one.shape) or one.shape[axis] != len(many) or any(t.shape != shape for t in many):
        return f"has {len(many)} tensors of {list(many[0].shape)} for one of {list(one.shape)} along axis {op.axis}"
    return ""


def _transposed(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    order = _numbers(inputs[1], constants)
    x, y = inputs[0].shape, outputs[0].shape
    if order is None:
        return ""
    if sorted(order) != list(range(len(x))) or tuple(x[k] for k in order) != y:
        return f"transposes {list(x)} to {list(y)} by {list(order)}"
    return ""


def _resized(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    size = _numbers(inputs[1], constants)
    x, y = inputs[0].shape, outputs[0].shape
    if len(x) != 4 or len(y) != 4 or (x[0], x[3]) != (y[0], y[3]) or (size is not None and size != y[1:3]):
        return f"resizes {list(x)} to {list(y)}" + (f", asked for {list(size)}" if size is not None else "")
    return ""


def _batches(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    """SVDF: features by time."""
    x, features, time, y = inputs[0].shape, inputs[1].shape, inputs[2].shape, outputs[0].shape
    units, rank = features[0] // max(1, op.rank), max(1, op.rank)
    if (x[0], units) != (y[0], y[1]) or features[1] != x[1] or time[0] != features[0] or features[0] % rank:
        return f"gives {list(y)} from {list(x)} with features {list(features)}, times {list(time)} and rank {op.rank}"
    state = inputs[-1]
    if state.variable and state.elements != x[0] * time[0] * time[1]:
        return f"keeps a state of {state.elements} elements, not {x[0] * time[0] * time[1]}"
    bias = inputs[3] if len(inputs) > 4 else None
    return f"adds {bias.elements} biases to {units} channels" if bias is not None and bias.elements != units else ""


def _reduced(op: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Constants) -> str:
    axes = _numbers(inputs[1], constants)
    x, y = inputs[0].shape, outputs[0]
    if axes is None:
        return ""
    away = {k + len(x) if k < 0 else k for k in axes}
    kept = [extent for k, extent in enumerate(x) if k not in away]
    if not away <= set(range(len(x))) or prod(kept) != y.elements:
        return f"reduces {list(x)} to {list(y.shape)} over axes {list(axes)}"
    return ""


_RULES: Mapping[str, Rule] = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transpose_conv,
    "FULLY_CONNECTED": _full,
    "SVDF": _batches,
    "CONCATENATION": _joined,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "TRANSPOSE": _transposed,
    **dict.fromkeys(("PACK", "UNPACK"), _stacked),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _pool),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _resized),
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ALL"), _reduced),
    **dict.fromkeys(
        ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "PRELU", "LESS", "LESS_EQUAL", "GREATER",
         "GREATER_EQUAL", "EQUAL", "NOT_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "FLOOR_DIV", "FLOOR_MOD"),
        _elementwise,
    ),
    **dict.fromkeys(
        ("RELU", "RELU6", "LOGISTIC", "TANH", "SOFTMAX", "LOG_SOFTMAX", "QUANTIZE", "DEQUANTIZE", "CAST", "ABS", "NEG", "EXP",
         "HARD_SWISH", "ELU", "LEAKY_RELU", "L2_NORMALIZATION", "RSQRT", "SQRT", "SQUARE", "SIN", "COS", "LOG", "ROUND", "FLOOR",
         "CEIL", "LOGICAL_NOT", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "REVERSE_V2", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH"),
        _same,
    ),
}  # fmt: skip
