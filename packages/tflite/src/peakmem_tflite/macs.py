"""Multiply-accumulates of an operator: convolutions, matrix products and recurrent layers; everything else counts 0."""

from __future__ import annotations

from math import prod

from peakmem_tflite.graph import Operator, Subgraph


def macs(subgraph: Subgraph, op: Operator) -> int:
    """MACs of one execution; 0 too where the shapes are not those the operator should have."""
    tensors = subgraph.tensors
    shapes = [tensors[t].shape if t >= 0 else () for t in op.inputs]
    try:
        return _macs(op.op, shapes, tensors[op.outputs[0]].shape)
    except (IndexError, ValueError, ZeroDivisionError):
        return 0


def _macs(op: str, inputs: list[tuple[int, ...]], output: tuple[int, ...]) -> int:
    if op in ("CONV_2D", "CONV_3D"):
        return prod(output) * (prod(inputs[1]) // inputs[1][0])
    if op == "DEPTHWISE_CONV_2D":
        return prod(output) * inputs[1][1] * inputs[1][2]
    if op == "TRANSPOSE_CONV":
        return prod(inputs[2]) * prod(inputs[1][:-1])
    if op == "FULLY_CONNECTED":
        return prod(output) * inputs[1][-1]
    if op == "BATCH_MATMUL":
        rows = output[-2]
        return prod(output) * (inputs[0][-1] if inputs[0][-2] == rows else inputs[0][-2])
    if op == "SVDF":
        batch, features = inputs[0]
        return batch * inputs[1][0] * (features + inputs[2][1])
    if op == "UNIDIRECTIONAL_SEQUENCE_LSTM":
        cells, features = inputs[2]  # input to forget weights; the input gate's may be omitted
        return 4 * prod(inputs[0][:-1]) * cells * (features + inputs[6][1])
    return 0
