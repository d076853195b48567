"""Files whose declared shapes keep default sessions from keeping dead storages."""

from __future__ import annotations

import numpy as np
import peakmem
import peakmem_onnx
import pytest
from onnx import helper
from peakmem.api import load, optimize
from peakmem_onnx.replaying import unavailable
from peakmem_onnx.runtime import counting_library
from peakmem_onnx.ways import PORTABLE

from .conftest import SHARED, model, needs_runtime, value, weight
from .test_ways import confirm

pytestmark = [needs_runtime, pytest.mark.skipif(counting_library() is None, reason="allocations cannot be counted here")]


def tides():
    """A storage of a shape that comes back much later: kept in between, it lies under the peak of the middle."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"]),  # 16 channels
        helper.make_node("Conv", ["a", "w2"], ["b"]),  # 4
        helper.make_node("Conv", ["b", "w3"], ["c"]),  # 20
        helper.make_node("Relu", ["c"], ["r"]),  # in place
        helper.make_node("Conv", ["r", "w4"], ["d"]),  # 4
        helper.make_node("Conv", ["d", "w1b"], ["e"]),  # 16 again
        helper.make_node("ReduceMean", ["e"], ["y"], keepdims=0),
    ]
    shapes = {"w1": (16, 3), "w2": (4, 16), "w3": (20, 4), "w4": (4, 20), "w1b": (16, 4)}
    weights = [weight(name, *shape, 1, 1, seed=k) for k, (name, shape) in enumerate(shapes.items())]
    return model(nodes, [value("x", [1, 3, 32, 32])], [value("y", [])], weights)


@pytest.mark.parametrize("deploy", ["portable", "replay"])
def test_no_dead_storage_is_kept(store, tmp_path, deploy):
    if deploy == "replay" and unavailable():
        pytest.skip(unavailable())
    path = store(tides())
    m = load(path, frontend="onnx", ort_level="none", deploy=deploy)
    result = optimize(m, time_limit=600)
    check = confirm(result.verification)
    assert any("declared shapes are named by storage" in note for note in result.notes)
    unit = 32 * 32 * 4
    assert m.bytes_under(PORTABLE, m.executed) == (16 + 4 + 20) * unit
    assert result.model.bytes_under(PORTABLE, result.model.executed) == (20 + 4) * unit
    assert check.optimized_bytes == result.model.predicted_bytes < m.predicted_bytes
    result.model.save(tmp_path / "out.onnx")
    again = load(tmp_path / "out.onnx", frontend="onnx", deploy=deploy)
    assert again.serialized() == (tmp_path / "out.onnx").read_bytes()
    assert again.origin.feeds[0]["x"].shape == (1, 3, 32, 32)  # which the file itself no longer declares
    assert again.predicted_bytes == result.model.predicted_bytes
    told = peakmem.verify(m, again)
    assert told.failures == ()
    assert told.structure.startswith("the same")
    assert load(tmp_path / "out.onnx", frontend="onnx", deploy=deploy, shape=("x=1,3,8,8",)).origin.feeds[0]["x"].shape == (1, 3, 8, 8)


def test_any_session_runs_it_with_the_same_bits(store, tmp_path):
    import onnxruntime

    path = store(tides())
    optimize(load(path, frontend="onnx", ort_level="none", deploy="portable"), measure=False).model.save(tmp_path / "out.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    one, two = (onnxruntime.InferenceSession(str(p), options).run(None, {"x": x})[0] for p in (path, tmp_path / "out.onnx"))
    assert one.tobytes() == two.tobytes()
    again = peakmem_onnx.session(tmp_path / "out.onnx", check=True).run(None, {"x": x})[0]
    assert again.tobytes() == one.tobytes()


def test_where_it_does_not_pay_shapes_stay(store):
    proto = model([helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])], [value("x", [4, 4])], [value("y", [4, 4])])
    m = load(store(proto), frontend="onnx", ort_level="none", deploy="portable")
    result = optimize(m, measure=False)
    assert "shapes" not in result.model.origin.recipe
    assert [d.dim_value for d in result.model.proto.graph.input[0].type.tensor_type.shape.dim] == [4, 4]


def test_a_shared_model_reaches_what_the_recipe_takes():
    if not (SHARED / "nas_like.onnx").exists():
        pytest.skip("the shared data folder is not there")
    m = load(SHARED / "nas_like.onnx", frontend="onnx", ort_level="basic", deploy="portable")
    result = optimize(m, time_limit=600)
    confirm(result.verification)
    assert result.model.predicted_bytes < 0.65 * m.predicted_bytes
