"""Whole models: executed order exact, measured peak == modelled peak, the same bits."""

from __future__ import annotations

import random
import sys

import pytest
from onnx import ModelProto, helper
from peakmem.api import load, optimize
from peakmem.frontends import Frontend, discover, get_frontend
from peakmem.model import Refused, Schedule, UsageError
from peakmem.system.sizes import human
from peakmem_onnx import protos
from peakmem_onnx.runtime import counting_library

from .conftest import (
    BOOL,
    INT32,
    INT64,
    PYPI,
    SHARED,
    branches,
    model,
    need_runtime_for,
    needs_runtime,
    pypi_model,
    random_orders,
    value,
    weight,
)

pytestmark = needs_runtime
LEVELS = ("none", "basic", "extended", "all")
FILES = sorted(path.name for path in SHARED.glob("*.onnx")) or ["(absent)"]


def confirm(m, other, *, name=""):
    check = m.verify(other)
    assert check.failures == (), name
    assert check.bitwise_identical
    assert check.details["executed_order"] == "exact"
    if counting_library() is not None:
        assert check.as_predicted, name
    return check


def try_orders(m, seed=0, count=2):
    """Random orders of the graph and its bodies."""
    source = random.Random(seed)
    for _ in range(count):
        confirm(m, m.apply(Schedule(random_orders(m.graph, source))))


@pytest.mark.parametrize("level", LEVELS)
def test_branches(store, level):
    m = load(store(branches()), frontend="onnx", ort_level=level)
    try_orders(m)
    result = optimize(m, time_limit=600)
    assert result.verification is not None
    assert result.verification.failures == ()
    assert result.live_peak_after <= result.live_peak_before
    document = result.to_json(output="out.onnx")
    assert document["runtime"]["name"] == "onnxruntime"
    assert document["runtime"]["quantity"] == "activation_bytes"
    rows = {row["name"]: row for row in document["onnx"]["scenarios"]}
    assert rows["new order, memory options off"]["modelled_bytes"] == result.model.predicted_bytes
    assert rows["portable file, default session"]["modelled_bytes"] <= rows["new file, default session"]["modelled_bytes"]


@pytest.mark.parametrize("name", FILES)
def test_shared_models(name):
    if not (SHARED / name).exists():
        pytest.skip("the shared data folder is not there")
    folded = name.startswith("light_")  # "basic" makes constants of their weights, a hundred megabytes of them, as "all" does
    for level in ("none", "all") if folded else ("none", "basic", "all"):
        try_orders(load(SHARED / name, frontend="onnx", ort_level=level), count=1)


@pytest.mark.parametrize("name", PYPI)
@pytest.mark.parametrize("level", ["none", "basic", "all"])
def test_real_models(name, level):
    path, shapes = pypi_model(name)
    m = load(path, frontend="onnx", ort_level=level, shape=shapes)
    try_orders(m, count=1)


def test_only_nodes_move(store):
    m = load(store(branches()), frontend="onnx", ort_level="all")
    other = m.apply(Schedule(random_orders(m.graph, random.Random(5))))
    before, after = ModelProto(), ModelProto()
    before.ParseFromString(m.serialized())
    after.ParseFromString(other.serialized())
    assert [n.name for n in before.graph.node] != [n.name for n in after.graph.node]
    nodes = [sorted(n.SerializeToString() for n in p.graph.node) for p in (before, after)]
    assert nodes[0] == nodes[1]
    del before.graph.node[:], after.graph.node[:]
    assert before.SerializeToString() == after.SerializeToString()


def test_a_written_file_is_taken_as_it_is(store, tmp_path):
    m = load(store(branches()), frontend="onnx", ort_level="all")
    other = m.apply(Schedule(random_orders(m.graph, random.Random(7))))
    other.save(tmp_path / "out.onnx")
    again = load(tmp_path / "out.onnx", frontend="onnx")
    assert (tmp_path / "out.onnx").read_bytes() == again.serialized() == other.serialized()
    assert again.digest == other.digest
    assert again.predicted_bytes == other.predicted_bytes
    confirm(m, again)
    with pytest.raises(UsageError, match="exists already"):
        other.save(tmp_path / "out.onnx")


def test_dimension_options_of_the_source_do_not_disturb_a_written_file(store, tmp_path):
    proto = model([helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])],
                  [value("x", ["batch", 8])], [value("y", None)])
    options = {"frontend": "onnx", "ort_level": "basic", "dim": ("batch=3",)}
    m = load(store(proto), **options)
    m.save(tmp_path / "out.onnx")
    confirm(m, load(tmp_path / "out.onnx", **options))


def test_the_same_input_gives_the_same_bytes(store):
    path = store(branches())
    first, second = (load(path, frontend="onnx", ort_level="all").serialized() for _ in range(2))
    assert first == second


def test_different_outputs_are_found(store):
    m = load(store(branches()), frontend="onnx", ort_level="none")
    changed = branches()
    changed.graph.initializer[0].CopyFrom(weight("w_in", 8, 3, 3, 3, seed=99))
    check = m.verify(load(store(changed, "changed.onnx"), frontend="onnx", ort_level="none"))
    assert check.bitwise_identical is False
    with pytest.raises(Refused, match="output 'y' of the new order differs from the direct session"):
        check.raise_for_difference()


def unread_outputs():
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", "indices"], kernel_shape=[2, 2]),
        helper.make_node("Conv", ["p", "w"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["y"], keepdims=0),
    ]
    return model(nodes, [value("x", [1, 8, 32, 32])], [value("y", [])], [weight("w", 16, 8, 3, 3)])


def test_blanking_unread_outputs_is_a_free_gain(store):
    path = store(unread_outputs())
    kept = load(path, frontend="onnx", ort_level="none", no_blank_unread=True)
    blanked = load(path, frontend="onnx", ort_level="none")
    assert blanked.origin.blanked == ("indices",)
    assert kept.predicted_bytes - blanked.predicted_bytes == 31 * 31 * 8 * 8 // 64 * 64
    for m in (kept, blanked):
        confirm(m, m)
    assert "1 unread output" in " ".join(blanked.notes)


def with_if():
    wide = helper.make_graph(
        [
            helper.make_node("Conv", ["a", "w1"], ["t1"]),
            helper.make_node("Conv", ["a", "w2"], ["t2"]),
            helper.make_node("ReduceSum", ["t1"], ["t3"], keepdims=1),
            helper.make_node("ReduceSum", ["t2"], ["t4"], keepdims=1),
            helper.make_node("Add", ["t3", "t4"], ["t5"]),
        ],
        "then", [], [value("t5", [1, 1, 1, 1])], [weight("w1", 32, 8, 3, 3), weight("w2", 16, 8, 3, 3)],
    )
    narrow = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["e1"]), helper.make_node("ReduceMax", ["e1"], ["e2"], keepdims=1)],
        "else", [], [value("e2", [1, 1, 1, 1])],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("If", ["c"], ["h"], then_branch=wide, else_branch=narrow),
        helper.make_node("Neg", ["h"], ["y"]),
    ]
    return model(nodes, [value("x", [1, 8, 20, 20]), value("c", [], BOOL)], [value("y", None)])


def with_loop(trips, scan):
    nodes = [
        helper.make_node("Exp", ["c0"], ["b1"]),
        helper.make_node("Relu", ["b1"], ["b2"]),
        helper.make_node("Mul", ["c0", "outer"], ["b3"]),
        helper.make_node("Add", ["b2", "b3"], ["co"]),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    outputs = [value("on", [], BOOL), value("co", [1, 1000])]
    if scan:
        nodes.append(helper.make_node("Neg", ["b3"], ["piece"]))
        outputs.append(value("piece", [1, 1000]))
    body = helper.make_graph(nodes, "body", [value("i", [], INT64), value("go", [], BOOL), value("c0", [1, 1000])], outputs)
    ends = ["l0", "ls"] if scan else ["l0"]
    outer = [
        helper.make_node("Sqrt", ["x"], ["x1"]),
        helper.make_node("Abs", ["x"], ["outer"]),
        helper.make_node("Loop", ["trips", "", "x1"], ends, body=body),
        *(helper.make_node("Neg", [n], [f"{n}_y"]) for n in ends),
    ]
    return model(outer, [value("x", [1, 1000])], [value(f"{n}_y", None) for n in ends],
                 [helper.make_tensor("trips", INT64, [], [trips])])


def with_scan(steps):
    body = helper.make_graph(
        [
            helper.make_node("Exp", ["xi"], ["b1"]),
            helper.make_node("Add", ["b1", "s"], ["so"]),
            helper.make_node("Neg", ["b1"], ["b2"]),
            helper.make_node("Mul", ["b2", "b1"], ["yo"]),
        ],
        "body", [value("s", [1000]), value("xi", [1000])], [value("so", [1000]), value("yo", [1000])],
    )
    nodes = [
        helper.make_node("Sqrt", ["x"], ["x1"]),
        helper.make_node("Scan", ["s0", "x1"], ["sf", "ys"], body=body, num_scan_inputs=1),
        helper.make_node("Neg", ["ys"], ["y"]),
        helper.make_node("Neg", ["sf"], ["z"]),
    ]
    return model(nodes, [value("x", [steps, 1000]), value("s0", [1000])], [value("y", None), value("z", None)])


@pytest.mark.parametrize("level", ["none", "all"])
@pytest.mark.parametrize("taken", [0, 1])
def test_if(store, taken, level):
    m = load(store(with_if()), frontend="onnx", ort_level=level, feed=(f"c={taken}",))
    confirm_either_branch(m, taken)


def confirm_either_branch(m, taken):
    """The model charges the larger branch; the other one takes less when it is the one that runs."""
    source = random.Random(1)
    for _ in range(2):
        other = m.apply(Schedule(random_orders(m.graph, source)))
        check = m.verify(other)
        assert check.bitwise_identical
        assert check.details["executed_order"] == "exact"
        if counting_library() is None:
            continue
        if taken:
            assert check.as_predicted
        else:
            assert check.optimized_bytes <= check.predicted_bytes


def test_bodies_are_ordered_and_the_runtime_honours_it(store):
    m = load(store(with_if()), frontend="onnx", ort_level="none", feed=("c=1",))
    (path, body) = next((p, b) for p, b in m.program.bodies() if len(b) == 5)
    names = [s.op for s in body.statements]
    bad = sorted(range(5), key=lambda v: ["Conv", "ReduceSum", "Add"].index(names[v]))
    good = [next(v for v in range(5) if names[v] == "Conv")]
    good.append(next(v for v in range(5) if body.statements[v].dependences == (good[0],) and names[v] == "ReduceSum"))
    good += [v for v in range(5) if v not in good]
    peaks = []
    for order in (bad, good):
        other = m.apply(Schedule({path: tuple(order)}))
        check = confirm(m, other)
        peaks.append(other.predicted_bytes)
        assert check.predicted_bytes == other.predicted_bytes
    assert peaks[1] < peaks[0]
    result = optimize(m, time_limit=600)
    assert result.verification is not None
    assert result.verification.failures == ()
    assert result.model.predicted_bytes <= peaks[1]


@pytest.mark.parametrize(("trips", "scan"), [(1, False), (2, False), (4, False), (1, True), (3, True)])
def test_loop(store, trips, scan):
    try_orders(load(store(with_loop(trips, scan)), frontend="onnx", ort_level="none"))


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_scan(store, steps):
    try_orders(load(store(with_scan(steps)), frontend="onnx", ort_level="none"))


def recurrent(op, hidden, direction="bidirectional"):
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op]
    ways = 2 if direction == "bidirectional" else 1
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node(op, ["h", "w", "r", "", "n"], ["y"], hidden_size=hidden, direction=direction),
    ]
    weights = [weight("w", ways, gates * hidden, 16), weight("r", ways, gates * hidden, hidden)]
    return model(nodes, [value("x", [8, 3, 16]), value("n", [3], INT32)], [value("y", None)], weights)


@pytest.mark.parametrize("hidden", [5, 16])
@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
def test_recurrent_operators_take_their_workspace_in_pieces(store, op, hidden):
    m = load(store(recurrent(op, hidden)), frontend="onnx", ort_level="none", feed=("n=8",))
    confirm(m, m)


def test_a_loop_that_does_not_run_is_exact(store):
    loop = with_loop(0, False)
    m = load(store(loop), frontend="onnx", ort_level="none")
    check = m.verify(m)
    assert check.failures == ()
    if counting_library() is not None:
        assert check.optimized_bytes <= check.predicted_bytes


@pytest.mark.parametrize("name", ["bigru.onnx", "if_then_loop.onnx"])
def test_faults_of_bodies_and_pieces_are_exact(name):
    path = SHARED.parent / "faults" / "onnx" / name
    if not path.exists():
        pytest.skip("the shared data folder is not there")
    need_runtime_for(path)  # one names version 14 of the format, which 1.21 does not know
    m = load(path, frontend="onnx", ort_level="none")
    confirm(m, m)
    if counting_library() is not None:
        assert m.predicted_bytes == {"bigru.onnx": 5632, "if_then_loop.onnx": 256}[name]


def test_a_prediction_that_is_an_upper_bound_says_so_and_the_file_is_good(store):
    m = load(store(with_if()), frontend="onnx", ort_level="none", feed=("c=0",))
    check = m.verify(m)
    assert check.failures == ()
    if counting_library() is not None:
        assert not check.as_predicted
        assert any("are an upper bound, not exact: which branch" in note for note in check.notes)


def tiled(times):
    """A small weight made large by operators that the optimizer computes beforehand."""
    nodes = [
        helper.make_node("Tile", ["small", "times"], ["large"]),
        helper.make_node("Add", ["x", "large"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    weights = [weight("small", 1, 4, 1, 1), helper.make_tensor("times", INT64, [4], [1, 1, times, times])]
    return model(nodes, [value("x", [1, 4, times, times])], [value("y", None)], weights)


def test_constants_that_grow_are_told_with_the_better_level(store):
    path = store(tiled(64))
    folded = load(path, frontend="onnx", ort_level="all")
    assert folded.weight_bytes >= 4 * 64 * 64 * 4
    (note,) = (note for note in folded.notes if "of constants out of" in note)
    plain = load(path, frontend="onnx", ort_level="none")
    assert plain.weight_bytes == 4 * 4 + 4 * 8
    assert f"at --ort-level none {human(plain.weight_bytes + plain.predicted_bytes)}" in note
    assert not any("of constants out of" in note for note in plain.notes)
    kept = load(store(branches(), "kept.onnx"), frontend="onnx", ort_level="basic")
    assert not any("of constants out of" in note for note in kept.notes)


def test_rapidocr_det_reaches_its_certified_optimum():
    path, shapes = pypi_model("rapidocr-onnxruntime det")
    result = optimize(load(path, frontend="onnx", ort_level="all", shape=shapes), time_limit=600)
    check = result.verification
    assert check is not None
    assert check.failures == ()
    assert (check.baseline_bytes, check.optimized_bytes) in ((11_673_600, 9_830_400), (None, None))
    assert (result.source.predicted_bytes, result.model.predicted_bytes) == (11_673_600, 9_830_400)
    assert result.optimal
    assert result.lower_bound == 9_830_400


def test_session_helper(store, tmp_path):
    import numpy as np
    import peakmem_onnx

    m = load(store(branches()), frontend="onnx", ort_level="all")
    path = tmp_path / "out.onnx"
    m.apply(Schedule(random_orders(m.graph, random.Random(3)))).save(path)
    feeds = {"x": np.ones((1, 3, 16, 16), np.float32)}
    session = peakmem_onnx.session(path, check=True)
    expected = session.run(None, feeds)[0]
    scope: dict = {}
    exec(load(path, frontend="onnx").snippet(), scope)
    assert scope["session"].run(None, feeds)[0].tobytes() == expected.tobytes()
    # A file whose order ONNX Runtime does not run as written: Shape runs before what stands in front of it.
    nodes = [helper.make_node("Exp", ["x"], ["a"], name="exp"), helper.make_node("Shape", ["x"], ["s"], name="shape")]
    bad = model(nodes, [value("x", [2, 2])], [value("a", None), value("s", None, INT64)])
    protos.write_marker(bad, {"threads": 1})
    with pytest.raises(Refused, match="ran 'shape' where 'exp' was due"):
        peakmem_onnx.session(store(bad, "bad.onnx"), check=True)


def test_frontend_is_found():
    assert "onnx" in discover()
    assert isinstance(get_frontend("onnx"), Frontend)


def test_listing_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys; from peakmem.frontends import get_frontend; f = get_frontend('onnx'); f.runtimes(); "
        "f.sniff(__import__('pathlib').Path('a.bin'), b''); "
        "print([m for m in ('numpy', 'onnx', 'onnxruntime', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_a_compiler_the_peak_is_labelled_unmeasured(store, monkeypatch):
    m = load(store(branches()), frontend="onnx", ort_level="none")
    monkeypatch.setattr("peakmem_onnx.measure.counting_library", lambda: None)
    check = m.verify(m)
    assert not check.as_predicted
    assert check.optimized_bytes is None
    assert any("allocations were not counted" in note for note in check.notes)
    if check.details["arena_statistics"]["the new order"] is None:
        pytest.skip("this release of ONNX Runtime tells no arena statistics")
    assert any("ONNX Runtime's own arena statistics" in note for note in check.notes)
    assert check.details["arena_statistics"]["the new order"] > m.predicted_bytes  # weights and padding included




def test_the_environment_moves_nothing(monkeypatch):
    """The layout optimizer goes by addresses, which variables of the caller would move; that other processes may differ is said."""
    path = SHARED / "nas_like.onnx"
    if not path.exists():
        pytest.skip("the shared data folder is not there")
    found = []
    for padding in ("", "x" * 30, "x" * 5000):
        monkeypatch.setenv("PEAKMEM_TEST_PADDING", padding)
        monkeypatch.setenv("OMP_NUM_THREADS", "2" if padding else "1")
        model = load(path, frontend="onnx")
        found.append((model.program.digest, model.predicted_bytes))
        assert any("layout optimizer" in note for note in model.notes)
    if sys.platform.startswith("linux"):
        assert len(set(found)) == 1
