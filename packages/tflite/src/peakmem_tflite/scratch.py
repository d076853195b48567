"""Scratch buffers that kernels request from the arena, by target.

A kernel asks for scratch while it prepares; TFLite Micro places it among the tensors, for the time of that operator
only. What is asked for depends on the kernels linked into the device, so there is a table per target: ``reference``
are the portable kernels (also those of the Python interpreter, where the figures are measured). Device kernels
(CMSIS-NN, ESP-NN) ask for more, for convolutions above all; their tables are to be added to `TABLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from peakmem_tflite.graph import Operator, Subgraph, Tensor

Inputs = list[Tensor | None]
"""Inputs of an operator, None where omitted."""

Rule = Callable[[Operator, Inputs, list[Tensor]], list[int]]
"""Operator, its inputs and its outputs -> bytes of each request, in the kernel's order."""

POINTER = 8
"""Bytes of a pointer on the host that measures; ADD_N keeps one for each input."""

ALIGNMENT = 16
"""Every tensor and every request is rounded up to this many bytes."""


def rounded(size: int) -> int:
    """Size as the arena charges it."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _at(inputs: Inputs, i: int) -> Tensor:
    """An input that the kernel needs; `LookupError` where it is omitted."""
    tensor = inputs[i]
    if tensor is None:
        raise LookupError(i)
    return tensor


def _reduce(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """An index over the input's dimensions, and the axes."""
    return [4 * len(_at(inputs, 0).shape), 4 * _at(inputs, 1).elements]


def _mean_or_sum(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """Sums of 32 bits where the input is quantized, then as for every reduction."""
    sums = [4 * outputs[0].elements] if _at(inputs, 0).type in ("INT8", "INT16") else []
    return sums + _reduce(op, inputs, outputs)


def _transpose_conv(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """Sums of 32 or 64 bits, and a 16-bit bias widened."""
    kind = _at(inputs, 2).type
    if kind == "INT8":
        return [4 * outputs[0].elements]
    if kind == "INT16":
        bias = inputs[3] if len(inputs) > 3 else None
        return [8 * outputs[0].elements] + ([8 * bias.elements] if bias is not None and bias.type == "INT16" else [])
    return []


def _svdf(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    source = _at(inputs, 0)
    filters = source.shape[0] * _at(inputs, 1).shape[0]
    return [4 * filters, 4 * (filters // op.rank)] if source.type == "INT8" else [4 * filters]


def _lstm(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """The four gates, each as large as the cell state."""
    return [_at(inputs, 19).size] * 4


def _add_n(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    return [POINTER * len(inputs)]


def _mirror_pad(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    return [4 * len(_at(inputs, 0).shape)] * 2


def _packed_weights(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """4-bit weights are unpacked to a byte each."""
    weights = _at(inputs, 1)
    return [weights.elements] if weights.type == "INT4" else []


def _rfft(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """n elements of work area; the output holds n / 2 + 1 complex numbers, two elements each."""
    element = {"INT16": 2, "INT32": 4, "FLOAT32": 4}[outputs[0].type]
    return [element * max(0, outputs[0].shape[-1] - 2)]


def _detection(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    if op.detections is None:
        raise LookupError("settings")
    boxes, (most, classes) = _at(inputs, 0).shape[1], op.detections
    scores = _at(inputs, 1).shape[1] * _at(inputs, 1).shape[2]
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
    "TRANSPOSE_CONV": _transpose_conv,
    "SVDF": _svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm,
    "ADD_N": _add_n,
    "MIRROR_PAD": _mirror_pad,
    "CONV_2D": _packed_weights,
    "DEPTHWISE_CONV_2D": _packed_weights,
    "FULLY_CONNECTED": _packed_weights,
    "SignalRfft": _rfft,
    "TFLite_Detection_PostProcess": _detection,
}

TABLES: Mapping[str, Mapping[str, Rule]] = {"reference": REFERENCE}

def requests(target: str, subgraph: Subgraph, op: Operator) -> tuple[int, ...]:
    """Bytes of each scratch request of one operator, rounded, in the order in which the kernel asks.

    An operator whose inputs are not what its kernel expects gets none: the kernel refuses to prepare it.
    """
    rule = TABLES[target].get(op.op)
    if rule is None:
        return ()
    inputs = [subgraph.tensors[t] if t >= 0 else None for t in op.inputs]
    try:
        return tuple(rounded(size) for size in rule(op, inputs, [subgraph.tensors[t] for t in op.outputs]))
    except LookupError:
        return ()
