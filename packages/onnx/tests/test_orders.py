"""The runtime's two orders and its plan, replayed, against the runtime itself."""

from __future__ import annotations

import random

import pytest
from onnx import helper, numpy_helper
from peakmem.api import load
from peakmem.model import Schedule, peak_of
from peakmem_onnx.build import replay
from peakmem_onnx.deploy import order_difference
from peakmem_onnx.feeds import make_feeds, write_feeds
from peakmem_onnx.graph import read_graph
from peakmem_onnx.orders import default_order, file_order, priority_order
from peakmem_onnx.protos import name_nodes
from peakmem_onnx.rewrite import permute_level
from peakmem_onnx.runtime import ask, counting_library, scratch
from peakmem_onnx.ways import PORTABLE

from .conftest import model, needs_runtime, random_topological, value

pytestmark = needs_runtime


def random_dag(seed: int, size: int = 24):
    """Elementwise operators over earlier values, Shape and Size among them, in-place ones and aliases."""
    source = random.Random(seed)
    import numpy as np

    nodes, tensors, wholes = [], ["x"], []
    shape = numpy_helper.from_array(np.array([2, -1], np.int64), "two")
    for i in range(size):
        out = f"v{i}"
        kind = source.choice(["Relu", "Exp", "Add", "Mul", "Shape", "Size", "Sigmoid", "Identity", "Neg", "Flatten", "Softmax"])
        if kind in ("Shape", "Size"):
            nodes.append(helper.make_node(kind, [source.choice(tensors)], [out]))
            wholes.append(out)
            continue
        count = 2 if kind in ("Add", "Mul") else 1
        picked = [source.choice(tensors[-6:]) for _ in range(count)]
        nodes.append(helper.make_node(kind, picked, [out], **({"axis": 1} if kind in ("Flatten", "Softmax") else {})))
        tensors.append(out)
    read = {n for node in nodes for n in node.input}
    ends = [t for t in tensors if t not in read]
    nodes.append(helper.make_node("Concat", ends, ["y"], axis=0))
    outputs = [value("y", None)]
    for w in wholes[:2]:
        nodes.append(helper.make_node("Identity", [w], [f"{w}_out"]))
        outputs.append(value(f"{w}_out", None, 7))
    proto = model(nodes, [value("x", [4, 96])], outputs, [shape])
    name_nodes(proto)
    return proto


@pytest.mark.parametrize("seed", range(6))
def test_executed_orders_are_the_simulated_ones(seed, tmp_path):
    proto = random_dag(seed)
    graph = read_graph(proto.graph)
    permute_level(proto.graph, random_topological(graph, random.Random(seed)))
    graph = read_graph(proto.graph)
    with scratch() as folder:
        file = folder / "m.onnx"
        file.write_bytes(proto.SerializeToString())
        feeds = write_feeds(make_feeds(proto, {}, tmp_path), folder)
        steps = [{"do": "measure", "model": str(file), "level": "none", "feeds_files": feeds, "priority": priority,
                  "profile": str(folder / "p")} for priority in (True, False)]
        by_priority, by_default = ask(folder, steps)
    assert order_difference(graph, by_priority["order"], file_order) == ""
    names = [graph.nodes[v].name for v in default_order(graph)]
    assert by_default["order"] == names * 2


@pytest.mark.parametrize("seed", range(8))
def test_shape_and_size_come_first_and_the_result_is_a_fixed_point(seed):
    graph = read_graph(random_dag(seed, 40).graph)
    order = random_topological(graph, random.Random(seed + 100))
    assert priority_order(graph, order) == order
    for i, v in enumerate(order):
        if graph.nodes[v].op in ("Shape", "Size"):
            before = [order.index(u) for u in graph.predecessors[v]]
            between = order[max(before, default=-1) + 1 : i]
            assert all(graph.nodes[u].op in ("Shape", "Size") for u in between)


@pytest.mark.parametrize("seed", range(6))
def test_peaks_of_random_orders_are_the_modelled_ones(seed, store):
    m = load(store(random_dag(seed)), frontend="onnx", ort_level="none")
    source = random.Random(seed)
    for _ in range(2):
        other = m.apply(Schedule({"": random_topological(m.graph, source)}))
        check = m.verify(other)
        check.raise_for_difference()
        assert check.bitwise_identical
        if counting_library() is None:
            pytest.skip("there is no C compiler, so allocations are not counted")
        assert check.as_predicted
        # With memory reuse on and the default order.
        assert check.details["new_default_session_bytes"] == other.bytes_under(PORTABLE)
        # The Program is exact unless an operator runs in place in some orders only; then it is an upper bound.
        live = peak_of(other.program)
        assert live >= other.predicted_bytes
        if not other.whole.undecided:
            assert live == other.predicted_bytes


def test_in_place_depends_on_the_last_reader(store):
    """Two readers, either of which may come last: the replay knows, the Program charges the worse case."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("ReduceSum", ["a"], ["s"], name="sum", keepdims=1),
        helper.make_node("Add", ["r", "s"], ["y"], name="add"),
    ]
    m = load(store(model(nodes, [value("x", [1, 1024])], [value("y", None)])), frontend="onnx", ort_level="none")
    assert m.whole.undecided == ("relu",)
    index = {n.name: n.index for n in m.graph.nodes}
    peaks = {}
    for order in (("exp", "relu", "sum", "add"), ("exp", "sum", "relu", "add")):
        other = m.apply(Schedule({"": tuple(index[n] for n in order)}))
        m.verify(other).raise_for_difference()
        peaks[order[1]] = max(replay(other.graph, other.facts, lambda g: range(3)), default=0)
    assert peaks == {"relu": 2 * 4096 + 64, "sum": 4096 + 64}
