"""Files for sessions that take no order, and execution node by node."""

from __future__ import annotations

import random
import sys
import types

import pytest
from onnx import ModelProto, helper
from peakmem.api import load, optimize
from peakmem.model import InputError, Refused, RuntimeMissing, Schedule, UsageError, peak_of
from peakmem_onnx import child, runtime
from peakmem_onnx.orders import default_order
from peakmem_onnx.portable import numbering_of
from peakmem_onnx.runtime import counting_library

from .conftest import branches, model, needs_runtime, pypi_model, random_topological, value
from .test_models import with_if
from .test_orders import random_dag

pytestmark = needs_runtime


def confirm(check):
    assert check.failures == ()
    assert check.bitwise_identical
    assert check.details["executed_order"] == "exact"
    if counting_library() is not None:
        assert check.as_predicted
    return check


def confirm_but_for_the_layout(check, level):
    """`confirm`, but today's session arranges nodes anew at level all, by memory addresses; where it shows, it is said."""
    assert check.failures == ()
    assert check.bitwise_identical
    if counting_library() is not None:
        assert check.optimized_bytes == check.predicted_bytes
        assert check.as_predicted or (level == "all" and any("layout optimizer" in note for note in check.notes))
    return check


# -- portable --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["none", "all"])
def test_a_portable_file_reaches_its_bytes_in_a_default_session(store, tmp_path, level):
    path = store(branches())
    m = load(path, frontend="onnx", ort_level=level, deploy="portable")
    assert m.quantity == "default_session_bytes"
    result = optimize(m, time_limit=600)
    check = confirm_but_for_the_layout(result.verification, level)
    assert result.model.predicted_bytes <= m.predicted_bytes  # today's order is where the search begins
    assert not result.optimal  # nothing is known about default sessions, whatever was proved of the live peak
    assert not result.realized_optimal
    out = tmp_path / "out.onnx"
    result.model.save(out)
    again = load(out, frontend="onnx", deploy="portable")
    assert again.serialized() == out.read_bytes()
    assert again.digest == result.model.digest
    assert again.predicted_bytes == result.model.predicted_bytes
    assert [n.name for n in again.graph.nodes] == [n.name for n in result.model.graph.nodes]
    confirm_but_for_the_layout(m.verify(again), level)
    confirm(again.verify(again))
    rows = {row["name"]: row for row in result.to_json()["onnx"]["scenarios"]}
    assert rows["portable file, default session"]["measured_bytes"] == check.optimized_bytes
    assert rows["today's order, default session"]["measured_bytes"] == check.baseline_bytes
    # The recipe would run the file's order, which is not what was made.
    with pytest.raises(UsageError, match="say --deploy portable"):
        load(path, frontend="onnx", ort_level=level).verify(load(out, frontend="onnx"))


def test_a_portable_file_moves_nodes_and_nothing_else(store):
    m = load(store(branches()), frontend="onnx", ort_level="none", deploy="portable")
    new = m.apply(m.schedule(optimize(m, measure=False).ordering))
    before, after = ModelProto(), ModelProto()
    before.ParseFromString(m.serialized())
    after.ParseFromString(new.serialized())
    assert sorted(n.name for n in before.graph.node) == sorted(n.name for n in after.graph.node)
    del before.graph.node[:], after.graph.node[:]
    assert before.SerializeToString() == after.SerializeToString()


def test_the_portable_session_of_the_helper(store, tmp_path):
    import numpy as np
    import peakmem_onnx

    m = load(store(branches()), frontend="onnx", deploy="portable")
    result = optimize(m, measure=False)
    result.model.save(tmp_path / "out.onnx")
    session = peakmem_onnx.session(tmp_path / "out.onnx", check=True)
    assert session.get_session_options().enable_mem_reuse
    assert session.run(None, {"x": np.ones((1, 3, 16, 16), np.float32)})[0].shape == (1, 16, 16, 16)
    text = result.model.snippet()
    assert str(tmp_path / "out.onnx") in text
    for line in ("DisableCpuMemArena", "DisableMemPattern", "enableCpuMemArena: false", "ORT_DISABLE_ALL"):
        assert line in text
    assert "PRIORITY_BASED" not in text


@pytest.mark.parametrize("name", ["rapidocr-onnxruntime det", "silero-vad"])
def test_portable_real_models(name):
    path, shapes = pypi_model(name)
    m = load(path, frontend="onnx", ort_level="none", shape=shapes, deploy="portable")
    result = optimize(m, time_limit=600)
    confirm(result.verification)
    assert result.model.predicted_bytes <= m.predicted_bytes


@pytest.mark.parametrize("seed", range(4))
def test_portable_files_with_shapes_and_in_place_operators(store, seed):
    m = load(store(random_dag(seed)), frontend="onnx", ort_level="none", deploy="portable")
    result = optimize(m, time_limit=600)
    confirm(result.verification)
    assert result.model.predicted_bytes <= m.predicted_bytes


@pytest.mark.parametrize("taken", [0, 1])
def test_portable_bodies(store, taken):
    m = load(store(with_if()), frontend="onnx", ort_level="none", feed=(f"c={taken}",), deploy="portable")
    check = optimize(m, time_limit=600).verification
    assert check.bitwise_identical
    assert check.details["executed_order"] == "exact"
    if taken:
        confirm(check)


@pytest.mark.parametrize("seed", range(8))
def test_orders_of_default_sessions_are_reached_again(seed):
    """An order that some numbering produces is produced by the one made for it."""
    from peakmem_onnx.graph import read_graph

    graph = read_graph(random_dag(seed, 40).graph)
    wanted = default_order(graph, random_topological(graph, random.Random(seed)))
    numbering = numbering_of(graph, wanted)
    position = {v: i for i, v in enumerate(numbering)}
    assert all(position[u] < position[v] for v, before in enumerate(graph.predecessors) for u in before)
    assert default_order(graph, numbering) == wanted


def test_an_order_that_no_default_session_runs_is_refused(store):
    m = load(store(branches()), frontend="onnx", ort_level="none", deploy="portable")
    index = {n.name: n.index for n in m.graph.nodes}
    convs = [v for v, n in enumerate(m.graph.nodes) if n.op == "Conv"]
    rest = [v for v in index.values() if v not in convs]
    inner = [v for v in convs if m.graph.predecessors[v] and m.graph.nodes[m.graph.predecessors[v][0]].op == "Relu"]
    first = [v for v in convs if v not in inner]
    order = [*first, *[v for v in rest if m.graph.nodes[v].op == "Relu"], *inner]
    order += [v for v in rest if v not in order]
    with pytest.raises(Refused, match="no numbering of the nodes is known"):
        m.apply(Schedule({"": tuple(order)}))


# -- node by node ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_any_order_runs_exactly_node_by_node(store, seed):
    m = load(store(random_dag(seed)), frontend="onnx", ort_level="none", executor="nodes")
    assert m.quantity == "node_by_node_bytes"
    assert m.whole.undecided == ()  # nothing works in place, so the Program is exact in every order
    source = random.Random(seed)
    missing = [len(p) for p in m.graph.predecessors]
    order: list[int] = []
    while len(order) < len(missing):  # any topological order, Shape and Size where they fall
        done = set(order)
        ready = [v for v, p in enumerate(m.graph.predecessors) if v not in done and done.issuperset(p)]
        order.append(source.choice(ready))
    other = m.apply(Schedule({"": tuple(order)}))
    assert [n.name for n in other.graph.nodes] == [m.graph.nodes[v].name for v in order]
    check = confirm(m.verify(other))
    assert any("a session of its own" in note for note in check.notes)
    assert peak_of(other.program) == other.predicted_bytes == check.predicted_bytes
    assert "direct_session_bytes" not in check.details


def test_node_by_node_optimum(store):
    m = load(store(branches()), frontend="onnx", ort_level="all", executor="nodes")
    result = optimize(m, time_limit=600)
    confirm(result.verification)
    assert result.optimal
    assert result.realized_bound == result.model.predicted_bytes
    names = [row["name"] for row in result.to_json()["onnx"]["scenarios"]]
    assert names == ["ONNX Runtime as it comes", "given order, node by node", "new order, node by node"]
    assert "measured node by node" in result.model.snippet()


def test_node_by_node_nothing_works_in_place(store):
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Flatten", ["b"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["y"], keepdims=0),
    ]
    path = store(model(nodes, [value("x", [1, 1024])], [value("y", [])]))
    peaks = {}
    for executor in ("ort", "nodes"):
        m = load(path, frontend="onnx", ort_level="none", executor=executor)
        confirm(m.verify(m))
        peaks[executor] = m.predicted_bytes
    assert peaks == {"ort": 4096 + 64, "nodes": 2 * 4096}


def test_node_by_node_real_model():
    path, shapes = pypi_model("magika")
    m = load(path, frontend="onnx", ort_level="basic", shape=shapes, executor="nodes")
    confirm(m.verify(m.apply(Schedule({"": random_topological(m.graph, random.Random(2))}))))


def test_bodies_do_not_run_node_by_node(store):
    with pytest.raises(InputError, match="nodes with bodies"):
        load(store(with_if()), frontend="onnx", ort_level="none", executor="nodes")
    with pytest.raises(UsageError, match="give one of them"):
        load(store(branches()), frontend="onnx", executor="nodes", deploy="portable")


def test_a_runtime_without_the_order_option_is_told_about(monkeypatch):
    class Options:
        def __setattr__(self, name, value):
            assert name != "execution_order"
            object.__setattr__(self, name, value)

    stub = types.ModuleType("onnxruntime")
    stub.SessionOptions = Options
    stub.GraphOptimizationLevel = types.SimpleNamespace(ORT_DISABLE_ALL=0)
    stub.ExecutionMode = types.SimpleNamespace(ORT_SEQUENTIAL=0)
    monkeypatch.setitem(sys.modules, "onnxruntime", stub)
    child.options_for({"level": "none"})
    with pytest.raises(RuntimeError, match="--executor nodes"):
        child.options_for({"level": "none", "priority": True})


def test_an_order_that_was_not_honoured_leads_to_the_other_executor(store, monkeypatch):
    m = load(store(branches()), frontend="onnx", ort_level="none")
    monkeypatch.setattr("peakmem_onnx.measure.order_difference", lambda *_: "ONNX Runtime ran 'b' where 'a' was due")
    check = m.verify(m)
    assert check.details["executed_order"] == "differs"
    assert any("--executor nodes runs any order" in failure for failure in check.failures)


def test_a_release_without_workspaces_is_refused(monkeypatch):
    monkeypatch.setattr(runtime, "runtime_version", lambda: "1.20.1")
    with pytest.raises(RuntimeMissing, match=r"onnxruntime 1\.20\.1 is too old.* 1\.21 or newer"):
        runtime.require_runtime()
