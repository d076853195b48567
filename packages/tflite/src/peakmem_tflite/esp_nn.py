"""Scratch of Espressif's ESP-NN kernels on an ESP32-S3, by release.

Sources: ``esp_nn_get_conv_scratch_size_esp32s3``, ``esp_nn_get_depthwise_conv_scratch_size_esp32s3`` and
``esp_nn_get_softmax_scratch_size_esp32s3`` of https://github.com/espressif/esp-nn (v1.1.2; 79d59ae, which is 1.2.1; 5f0a807,
which is 1.2.3), and who calls them: ``kernels/esp_nn/*.cc`` of https://github.com/espressif/esp-tflite-micro. Only inputs of
8 bits take these kernels. Release 1.2.2 asks for what 1.2.1 does. ``esp-nn-newer`` stands for later sources of the same
functions, which copy no filter of 1x1 convolutions any more; releases 1.2.4 to 1.5.0 differ from it and from one another in
convolutions of 3x3, so that only a log of the device tells its scratch there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from peakmem_tflite.graph import Operator, Tensor
from peakmem_tflite.scratch import REFERENCE, Conv, Inputs, Rule, at, conv, packed_weights, rounded_to

Size = Callable[[Conv], int]


def _pointwise(c: Conv) -> bool:
    return c.filter == c.stride == (1, 1) and c.padding == (0, 0)


def _transposed(c: Conv) -> int:
    """Eight positions at a time, two bytes each; fewer are left as they are."""
    return 16 * rounded_to(c.channels, 8) if c.input[0] * c.input[1] >= 8 else 0


def _copied_pointwise(c: Conv, slack: int) -> int:
    """The filter, and the input where its channels must be filled up."""
    channels = rounded_to(c.channels, 8)
    input_copy = c.input[0] * c.input[1] * channels if c.channels % 8 else 0
    return input_copy + channels * c.results + _transposed(c) + slack


def _padded_input(c: Conv) -> int:
    if c.padding == (0, 0):
        return 0
    return (c.input[0] + 2 * c.padding[0]) * (c.input[1] + 2 * c.padding[1]) * c.channels


def _overhang(c: Conv) -> tuple[int, int]:
    """Columns and rows that the last windows need beyond the input, as these kernels count them: below 0 with dilation."""
    wide, high = (o * s + f - 1 - i for o, s, f, i in zip(c.output, c.stride, c.filter, c.input))
    return wide, high


def _conv_112(c: Conv) -> int:
    if _pointwise(c):
        return _copied_pointwise(c, 32)
    return _padded_input(c) + c.window * rounded_to(c.channels, 16) * c.results + 32 + 4 * c.results


def _conv_12(slack: int) -> Size:
    def size(c: Conv) -> int:
        if _pointwise(c):
            return _copied_pointwise(c, slack)
        row, window = c.filter[0] * c.channels, c.window * c.channels
        if row < 16 <= window:  # the whole window as one vector
            vector = rounded_to(window, 16)
            return 4 * c.results + 16 + c.results * vector + 16 + vector + slack
        filters = c.window * rounded_to(c.channels, 16) * c.results + rounded_to(row, 16) * c.filter[1] * c.results
        wide, high = (max(0, n) for n in _overhang(c))
        beyond = (c.input[0] + wide) * (c.input[1] + high) * c.channels if wide or high else 0
        return _padded_input(c) + filters + beyond + slack + 4 * c.results

    return size


def _conv_newer(c: Conv) -> int:
    if c.filter == (3, 3) and c.channels % 16 == 0 and c.channels >= 16 and c.results >= 16:
        window = 9 * c.channels
        return window + c.results * window + 4 * c.results + 32
    if _pointwise(c):
        panel = 24 * c.channels + 16 * 1024 + 64 if c.channels * c.results > 24 * 1024 else 0
        return max(_transposed(c) + 64, 24 * c.channels + 8 * c.results + 64, panel)
    row, window = c.filter[0] * c.channels, c.window * c.channels
    if row < 16 <= window:
        return _conv_12(64)(c)
    wide, high = (
        max(0, (o - 1) * s + f - p - i) for o, s, f, p, i in zip(c.output, c.stride, c.filter, c.padding, c.input)
    )
    padded = (c.input[0] + c.padding[0] + wide) * (c.input[1] + c.padding[1] + high) * c.channels
    copied = max(rounded_to(row, 16) * c.filter[1], window) * c.results
    return (padded if wide or high or c.padding != (0, 0) else 0) + copied + 64 + 4 * c.results


def _wide_input(c: Conv, gap: int) -> int:
    """Filter and input in 16 bits."""
    return 2 * (c.window * c.channels * c.multiplier + c.input[0] * c.input[1] * c.channels) + gap


def _depthwise_112(c: Conv) -> int:
    if c.multiplier == 1 and c.channels % 8 == 0 and c.filter == (3, 3):
        if c.channels % 16:
            return _wide_input(c, 16)
        wide, high = (2 * p for p in c.padding) if c.padding != (0, 0) else _overhang(c)
        padded = (c.input[0] + wide) * (c.input[1] + high) * c.channels if wide or high else 0
        return 9 * c.channels + padded + 16
    return _wide_input(c, 16) if c.multiplier % 4 == 0 else 32


def _depthwise_12(c: Conv) -> int:
    if c.multiplier == 1 and c.channels % 8 == 0 and c.filter == (3, 3):
        wide, high = (2 * p for p in c.padding) if c.padding != (0, 0) else _overhang(c)
        if c.channels % 16 == 0:
            padded = (c.input[0] + wide) * (c.input[1] + high) * c.channels if wide or high else 0
            if padded > 40 * 1024:  # as many rows as the filter has
                padded = (c.input[0] + wide) * 3 * c.channels
            return 9 * c.channels + padded + 16
        if c.channels < 12:
            return _wide_input(c, 32)
        channels = rounded_to(c.channels, 16)
        wide, high = (2 * p + max(0, o) for p, o in zip(c.padding, _overhang(c)))
        padded = (c.input[0] + wide) * (c.input[1] + high) * channels
        return 9 * channels + padded + c.output[0] * c.output[1] * channels + 64
    if c.multiplier == 1 and c.channels % 8 == 0:
        whole = _wide_input(c, 0)
        rows = 2 * (c.window + c.input[0] * c.filter[1]) * c.channels
        return (whole if whole <= 48 * 1024 else rows) + 32
    if c.multiplier == 1 and c.channels > 3:
        channels = rounded_to(c.channels, 8)
        before_output = rounded_to(rounded_to(2 * c.window * channels, 16) + 2 * c.input[0] * c.input[1] * channels, 16)
        return rounded_to(before_output + c.output[0] * c.output[1] * channels, 16) + 12 * channels + 16
    return _wide_input(c, 32) if c.multiplier % 4 == 0 else 32


def _softmax(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
    """The kernel takes the second dimension for the width, whatever the rank."""
    return [4 * at(inputs, 0).shape[1]] if at(inputs, 0).type == outputs[0].type == "INT8" else []


def _table(size: Size, depthwise: Size) -> Mapping[str, Rule]:
    def rule(of: Size) -> Rule:
        def requests(op: Operator, inputs: Inputs, outputs: list[Tensor]) -> list[int]:
            own = [of(conv(op, inputs, outputs))] if at(inputs, 0).type == "INT8" else []
            return packed_weights(op, inputs, outputs) + own

        return requests

    return {**REFERENCE, "CONV_2D": rule(size), "DEPTHWISE_CONV_2D": rule(depthwise), "SOFTMAX": _softmax}


RELEASES: Mapping[str, Mapping[str, Rule]] = {
    "esp-nn-1.1.2": _table(_conv_112, _depthwise_112),
    "esp-nn-1.2.1": _table(_conv_12(32), _depthwise_12),
    "esp-nn-1.2.3": _table(_conv_12(64), _depthwise_12),
    "esp-nn-newer": _table(_conv_newer, _depthwise_12),
}
