"""Multiply-accumulates of one node, from the shapes of what it reads and writes.

Convolutions, transposed convolutions, matrix products and recurrent layers are counted, with their fused, quantized
and blocked (NCHWc) variants; everything else costs 0. A blocked convolution is counted with the channels it really
computes, padded to the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from peakmem_onnx.graph import Node
from peakmem_onnx.rules import MICROSOFT, NCHWC

Shapes = Mapping[str, tuple[int, ...]]
NHWC = "com.ms.internal.nhwc"


def macs(node: Node, shapes: Shapes) -> int:
    """MACs of one execution.

    Parameters
    ----------
    node : Node
    shapes : mapping of str to tuple of int
        Of its inputs (weights included) and outputs; where one that matters is missing, the answer is 0.
    """
    rule = _RULES.get((node.domain, node.op))
    if rule is None:
        return 0
    try:
        return rule(node, shapes)
    except (KeyError, IndexError, ValueError):
        return 0


def _attribute(node: Node, name: str, default: Any) -> Any:
    for a in node.proto.attribute:
        if a.name == name:
            return a.s.decode() if a.type == 3 else (a.i if a.type == 2 else (a.f if a.type == 1 else list(a.ints)))
    return default


def _conv(weight: int = 1) -> Callable[[Node, Shapes], int]:
    def rule(node: Node, shapes: Shapes) -> int:
        # Weights are (out, in / group, *kernel): each output element takes the product of all but the first.
        return prod(shapes[node.outputs[0]]) * prod(shapes[node.inputs[weight]][1:])

    return rule


def _conv_transpose(node: Node, shapes: Shapes) -> int:
    # Weights are (in, out / group, *kernel): each input element is spread over the product of all but the first.
    return prod(shapes[node.inputs[0]]) * prod(shapes[node.inputs[1]][1:])


def _matmul(a: int = 0) -> Callable[[Node, Shapes], int]:
    def rule(node: Node, shapes: Shapes) -> int:
        left = shapes[node.inputs[a]]
        inner = left[-1]
        if _attribute(node, "transA", 0) and len(left) > 1:
            inner = left[0] if _attribute(node, "transBatchA", 0) else left[-2]
        return prod(shapes[node.outputs[0]]) * inner

    return rule


def _gemm(a: int = 0) -> Callable[[Node, Shapes], int]:
    def rule(node: Node, shapes: Shapes) -> int:
        left = shapes[node.inputs[a]]
        inner = left[0] if _attribute(node, "transA", 0) else left[1]
        return prod(shapes[node.outputs[0]]) * inner

    return rule


def _matmul_nbits(node: Node, shapes: Shapes) -> int:
    return prod(shapes[node.outputs[0]]) * int(_attribute(node, "K", 0))


def _recurrent(gates: int) -> Callable[[Node, Shapes], int]:
    def rule(node: Node, shapes: Shapes) -> int:
        # X is (steps, batch, inputs) or with layout 1 (batch, steps, inputs); W is (directions, gates * hidden, inputs).
        steps, batch, inputs = shapes[node.inputs[0]]
        directions, rows = shapes[node.inputs[1]][:2]
        if node.domain == MICROSOFT:  # DynamicQuantizeLSTM keeps W as (directions, inputs, gates * hidden)
            rows = shapes[node.inputs[1]][2]
        hidden = rows // gates
        return steps * batch * directions * gates * hidden * (inputs + hidden)

    return rule


_RULES: dict[tuple[str, str], Callable[[Node, Shapes], int]] = {
    ("", "Conv"): _conv(),
    ("", "ConvInteger"): _conv(),
    ("", "QLinearConv"): _conv(3),
    ("", "ConvTranspose"): _conv_transpose,
    ("", "MatMul"): _matmul(),
    ("", "MatMulInteger"): _matmul(),
    ("", "QLinearMatMul"): _matmul(),
    ("", "Gemm"): _gemm(),
    ("", "RNN"): _recurrent(1),
    ("", "GRU"): _recurrent(3),
    ("", "LSTM"): _recurrent(4),
    (NCHWC, "Conv"): _conv(),
    (MICROSOFT, "FusedConv"): _conv(),
    (MICROSOFT, "NhwcFusedConv"): _conv(),
    (MICROSOFT, "QLinearConv"): _conv(3),
    (MICROSOFT, "FusedMatMul"): _matmul(),
    (MICROSOFT, "TransposeMatMul"): _matmul(),
    (MICROSOFT, "FusedGemm"): _gemm(),
    (MICROSOFT, "QGemm"): _gemm(),
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul(),
    (MICROSOFT, "DynamicQuantizeMatMul"): _matmul(),
    (MICROSOFT, "MatMulNBits"): _matmul_nbits,
    (MICROSOFT, "DynamicQuantizeLSTM"): _recurrent(4),
    (NHWC, "Conv"): _conv(),
    (NHWC, "QLinearConv"): _conv(3),
}
