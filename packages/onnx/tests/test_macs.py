"""MACs against counts by hand."""

from __future__ import annotations

import pytest
from onnx import helper
from peakmem.api import load
from peakmem_onnx.graph import Node
from peakmem_onnx.macs import macs
from peakmem_onnx.rules import MICROSOFT, NCHWC

from .conftest import SHARED, needs_runtime


def count(op, shapes, domain="", outputs=("y",), **attributes):
    inputs = [n for n in shapes if n not in outputs]
    proto = helper.make_node(op, inputs, list(outputs), domain=domain, **attributes)
    return macs(Node(0, "n", domain, op, tuple(inputs), tuple(outputs), proto=proto), shapes)


@pytest.mark.parametrize(("domain", "op"), [("", "Conv"), (MICROSOFT, "FusedConv"), (NCHWC, "Conv"), ("", "ConvInteger")])
def test_convolution(domain, op):
    # 16 x 10 x 10 outputs, each 8 channels of 3 x 3.
    assert count(op, {"x": (1, 8, 12, 12), "w": (16, 8, 3, 3), "y": (1, 16, 10, 10)}, domain) == 1600 * 72


def test_grouped_convolution():
    assert count("Conv", {"x": (2, 8, 9), "w": (8, 1, 5), "y": (2, 8, 5)}, group=8) == 2 * 8 * 5 * 5


def test_quantized_convolution_finds_its_weights():
    shapes = {"x": (1, 4, 5, 5), "xs": (), "xz": (), "w": (6, 4, 3, 3), "y": (1, 6, 3, 3)}
    assert count("QLinearConv", shapes) == 6 * 9 * 36


def test_transposed_convolution():
    # Every one of 4 x 5 x 5 inputs is spread over 6 channels of 2 x 2.
    assert count("ConvTranspose", {"x": (1, 4, 5, 5), "w": (4, 6, 2, 2), "y": (1, 6, 10, 10)}) == 100 * 24


def test_products():
    assert count("MatMul", {"a": (3, 2, 5), "b": (3, 5, 7), "y": (3, 2, 7)}) == 3 * 2 * 7 * 5
    assert count("MatMul", {"a": (5,), "b": (5,), "y": ()}) == 5
    assert count("Gemm", {"a": (5, 2), "b": (5, 7), "y": (2, 7)}, transA=1) == 2 * 7 * 5
    assert count("FusedMatMul", {"a": (5, 2), "b": (5, 7), "y": (2, 7)}, MICROSOFT, transA=1) == 70
    assert count("MatMulNBits", {"a": (4, 64), "b": (9, 2, 16), "s": (18,), "y": (4, 9)}, MICROSOFT, K=64, N=9) == 4 * 9 * 64


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(op, gates):
    # 6 steps, batch 2, 5 inputs, 3 hidden, both directions.
    shapes = {"x": (6, 2, 5), "w": (2, gates * 3, 5), "r": (2, gates * 3, 3), "y": (6, 2, 2, 3)}
    assert count(op, shapes, hidden_size=3) == 6 * 2 * 2 * gates * 3 * (5 + 3)


def test_the_rest_is_free():
    assert count("Add", {"a": (4,), "b": (4,), "y": (4,)}) == 0
    assert count("Conv", {"x": (1, 8, 12, 12), "y": (1, 16, 10, 10)}) == 0  # the weights' shape is unknown


@needs_runtime
def test_redimnet():
    path = SHARED / "redimnet_s_random.onnx"
    if not path.exists():
        pytest.skip("the shared data folder is not there")
    assert sum(s.cost for s in load(path, frontend="onnx", ort_level="none").program.statements) == 246_696_000
