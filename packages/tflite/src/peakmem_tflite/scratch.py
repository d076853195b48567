"""Scratch buffers that kernels request from the arena, by target.

A kernel asks for scratch while it prepares; TFLite Micro places it among the tensors, for the time of that operator
only. What is asked for depends on the kernels linked into the device. Here stand those of the portable kernels (also
those of the Python interpreter, where figures are measured) and what tables of others share; all of them are listed in
`peakmem_tflite.targets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peakmem_tflite.graph import Operator, Tensor

Inputs = list[Tensor | None]
"""Inputs of an operator, None where omitted."""

Rule = Callable[[Operator, Inputs, list[Tensor]], list[int]]
"""Operator, its inputs and its outputs -> bytes of each request, in the kernel's order."""

POINTER = 8
"""Bytes of a pointer on the host that measures; ADD_N keeps one for each input."""

ALIGNMENT = 16
"""Every tensor and every request is rounded up to this many bytes."""


def rounded_to(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def rounded(size: int) -> int:
    """Size as the arena charges it."""
    return rounded_to(size, ALIGNMENT)


def at(inputs: Inputs, i: int) -> Tensor:
    """An input that the kernel needs; `LookupError` where it is omitted."""
    tensor = inputs[i]
    if tensor is None:
        raise LookupError(i)
    return tensor


@dataclass(frozen=True)
class Conv:
    """Sizes of a convolution, width before height."""

    input: tuple[int, int]
    channels: int
    filter: tuple[int, int]
    filter_channels: int
    output: tuple[int, int]
    results: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    multiplier: int

    @property
    def window(self) -> int:
        """Elements of the filter for one channel."""
        return self.filter[0] * self.filter[1]


def conv(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> Conv:
    """Sizes of CONV_2D and DEPTHWISE_CONV_2D; `LookupError` where they are not what the kernel expects.

    The padding before the first row and column is TFLite Micro's (``ComputePaddingHeightWidth``).
    """
    x, w, y = at(inputs, 0).shape, at(inputs, 1).shape, outputs[0].shape
    if op.window is None or not len(x) == len(w) == len(y) == 4:
        raise LookupError("shapes")
    padding = [
        max(0, (y[d] - 1) * stride + (w[d] - 1) * dilation + 1 - x[d]) // 2
        for d, stride, dilation in zip((2, 1), op.window.stride, op.window.dilation)
    ]
    return Conv(
        (x[2], x[1]), x[3], (w[2], w[1]), w[3], (y[2], y[1]), y[3], op.window.stride, op.window.dilation,
        (padding[0], padding[1]), op.window.multiplier,
    )  # fmt: skip


def _reduce(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """An index over the input's dimensions, and the axes."""
    return [4 * len(at(inputs, 0).shape), 4 * at(inputs, 1).elements]


def _mean_or_sum(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """Sums of 32 bits where the input is quantized, then as for every reduction."""
    sums = [4 * outputs[0].elements] if at(inputs, 0).type in ("INT8", "INT16") else []
    return sums + _reduce(op, inputs, outputs)


def transpose_conv(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """Sums of 32 or 64 bits, and a 16-bit bias widened."""
    kind = at(inputs, 2).type
    if kind == "INT8":
        return [4 * outputs[0].elements]
    if kind == "INT16":
        bias = inputs[3] if len(inputs) > 3 else None
        return [8 * outputs[0].elements] + ([8 * bias.elements] if bias is not None and bias.type == "INT16" else [])
    return []


def _svdf(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    source = at(inputs, 0)
    filters = source.shape[0] * at(inputs, 1).shape[0]
    return [4 * filters, 4 * (filters // op.rank)] if source.type == "INT8" else [4 * filters]


def _lstm(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """The four gates, each as large as the cell state."""
    return [at(inputs, 19).size] * 4


def _add_n(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    return [POINTER * len(inputs)]


def _mirror_pad(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    return [4 * len(at(inputs, 0).shape)] * 2


def packed_weights(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """4-bit weights are unpacked to a byte each."""
    weights = at(inputs, 1)
    return [weights.elements] if weights.type == "INT4" else []


def _rfft(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """n elements of work area; the output holds n / 2 + 1 complex numbers, two elements each."""
    element = {"INT16": 2, "INT32": 4, "FLOAT32": 4}[outputs[0].type]
    return [element * max(0, outputs[0].shape[-1] - 2)]


def _detection(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    if op.detections is None:
        raise LookupError("settings")
    boxes, (most, classes) = at(inputs, 0).shape[1], op.detections
    scores = at(inputs, 1).shape[1] * at(inputs, 1).shape[2]
    kept = 4 * most * boxes
    return [
        boxes, 16 * boxes, 4 * scores, 4 * boxes, 4 * boxes, kept, kept, 4 * boxes, kept,
        4 * max(classes, most) * boxes, 4 * min(boxes, most) * boxes,
    ]  # fmt: skip


REFERENCE: Mapping[str, Rule] = {
    "MEAN": _mean_or_sum,
    "SUM": _mean_or_sum,
    "REDUCE_MAX": _reduce,
    "REDUCE_MIN": _reduce,
    "REDUCE_ALL": _reduce,
    "TRANSPOSE_CONV": transpose_conv,
    "SVDF": _svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm,
    "ADD_N": _add_n,
    "MIRROR_PAD": _mirror_pad,
    "CONV_2D": packed_weights,
    "DEPTHWISE_CONV_2D": packed_weights,
    "FULLY_CONNECTED": packed_weights,
    "SignalRfft": _rfft,
    "TFLite_Detection_PostProcess": _detection,
}
