"""Scratch of Arm's CMSIS-NN kernels, for cores with the DSP extension (Cortex-M4, M7, M33) and with MVE (M55, M85).

Sources: ``arm_*_get_buffer_size*`` of https://github.com/ARM-software/CMSIS-NN at 99f736a (the same as at 4ab83cc, which
TFLite Micro downloads), compiled by GCC, and who calls them: ``kernels/cmsis_nn/*.cc`` of
https://github.com/tensorflow/tflite-micro at 90b983c, built for speed, which is its default. No log of a device confirmed
them yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import fmod

from peakmem_tflite.graph import Operator, Tensor
from peakmem_tflite.scratch import REFERENCE, Conv, Inputs, Rule, at, conv, rounded_to, transpose_conv

_BLOCK = 124
"""Channels that the MVE kernel takes at a time."""


def _gathered(window: int, mve: bool) -> int:
    """Windows of 8 bits laid out for a matrix product: four on MVE, else two in 16 bits."""
    return 4 * rounded_to(window, 16) if mve else 4 * rounded_to(window, 4)


def _conv8(c: Conv, mve: bool) -> int:
    whole_input = c.channels == c.filter_channels
    if c.padding == (0, 0) and c.filter == c.dilation == (1, 1) and whole_input:
        return 0
    gathered = _gathered(c.window * c.channels, mve)
    one_row = c.input[1] == c.filter[1] == c.dilation[0] == 1 and c.stride[0] * c.channels % 4 == 0 and whole_input
    return _one_row(c, gathered) if mve and one_row else gathered


def _one_row(c: Conv, otherwise: int) -> int:
    """Inputs of one row are padded at their ends only."""
    pad, stride = c.padding[0], c.stride[0]
    odd = int(fmod((c.output[0] - 1) * stride + c.filter[0] - c.input[0], 2))  # the sign is that of the first, as in C
    right = max(1, (pad + odd + stride - 1) // stride) if pad + odd else 0
    left = max(1, (pad + stride - 1) // stride) if pad else 0
    if right + left + max(c.output[0] - right - left, 0) != c.output[0]:
        return otherwise
    first = c.filter[0] * c.channels
    before = pad * c.channels
    return max(first + before, first - c.channels + (right * c.channels if odd else before))


def _conv(mve: bool) -> Rule:
    def requests(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
        kind, c = at(inputs, 0).type, conv(op, inputs, outputs)
        if kind == "INT8":
            return [size for size in (_conv8(c, mve),) if size]
        window = c.window * c.channels
        return [(8 * rounded_to(window, 8)) if mve else 4 * window] if kind == "INT16" else []

    return requests


def _depthwise(mve: bool) -> Rule:
    def requests(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
        if at(inputs, 0).type != "INT8":
            return []
        c, packed = conv(op, inputs, outputs), at(inputs, 1).type == "INT4"
        if mve and not packed and c.channels == 1 and c.results > 1:
            # As a convolution with the filter transposed: from [1, h, w, results] to [results, h, w, 1].
            return [_conv8(replace(c, filter_channels=1), True) + c.window * c.results]
        if c.channels != c.results or at(inputs, 0).shape[0] != 1 or c.dilation != (1, 1):
            return []
        if mve:
            return [4 * _BLOCK * c.window]
        if not packed and c.filter == (3, 3) and max(c.padding) <= 1:
            return []
        return [2 * c.channels * c.window]

    return requests


def _transpose(mve: bool) -> Rule:
    def requests(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
        source, weights = at(inputs, 2), at(inputs, 1)
        if source.type != "INT8":
            return transpose_conv(op, inputs, outputs)[::-1]  # the bias is widened first
        if op.window is None:
            raise LookupError("window")
        (results, height, width, channels), stride = weights.shape, op.window.stride
        if max(stride) <= 2 and channels > 16:  # as a convolution over the spread input, with the filter reversed
            return [_gathered(width * height * channels, mve), width * height * channels * results]
        columns = ((source.shape[2] - 1) * stride[0] + max(width, stride[1])) * results
        return [4 * columns * max(height, stride[1])]

    return requests


def _average(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    return [4 * at(inputs, 0).shape[3]] if at(inputs, 0).type in ("INT8", "INT16") else []


def _full(mve: bool) -> Rule:
    def requests(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
        weights = at(inputs, 1)
        if at(inputs, 0).type != "INT8" or weights.type == "INT4":
            return []
        depth = outputs[0].shape[-1]
        if len(outputs[0].shape) > 2 and weights.shape[-1] % 4 == 0:  # as a convolution, which wants a scale for each channel
            return [8 * depth] if weights.scales <= 1 else []
        bias = inputs[2] if len(inputs) > 2 else None
        known = weights.constant and (bias is None or bias.constant)  # then the sums are kept in the tail
        return [4 * depth] if mve and not known else []

    return requests


def _matmul(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    return [4 * outputs[0].shape[-1]] if at(inputs, 0).type == "INT8" else []


def _lstm(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """Two gates and a copy of the cell state, of 16 bits; the portable kernel does floats."""
    return [at(inputs, 19).size] * (3 if at(inputs, 0).type in ("INT8", "INT16") else 4)


def _table(mve: bool) -> Mapping[str, Rule]:
    table: dict[str, Rule] = {
        **REFERENCE,
        "CONV_2D": _conv(mve),
        "DEPTHWISE_CONV_2D": _depthwise(mve),
        "TRANSPOSE_CONV": _transpose(mve),
        "FULLY_CONNECTED": _full(mve),
        "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm,
    }
    return {**table, **({"BATCH_MATMUL": _matmul} if mve else {"AVERAGE_POOL_2D": _average})}


CORES: Mapping[str, Mapping[str, Rule]] = {"cmsis-nn-dsp": _table(False), "cmsis-nn-mve": _table(True)}
