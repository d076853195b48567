"""One file for several shapes of its inputs: every shape is predicted, an arena has one region for all, replay has places for each."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from onnx import helper
from peakmem.api import load, optimize
from peakmem.model import Refused
from peakmem_onnx.capi import library_of_the_wheel
from peakmem_onnx.planned import turns
from peakmem_onnx.replaying import Places, apart, unavailable
from peakmem_onnx.runtime import counting_library

from .conftest import model, needs_runtime, pypi_model, value, weight
from .test_ways import confirm

pytestmark = needs_runtime
needs_counting = pytest.mark.skipif(counting_library() is None, reason="allocations cannot be counted here")
SHAPES = ((16, 16), (8, 24), (40, 24))


def pyramid():
    """Of open height and width; branches of unequal width meet at the end."""
    nodes = [helper.make_node("Conv", ["x", "w_in"], ["s"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    weights = [weight("w_in", 8, 3, 3, 3)]
    for i in range(3):
        weights += [weight(f"w{i}a", 8 * (i + 1), 8, 1, 1, seed=i), weight(f"w{i}b", 4, 8 * (i + 1), 1, 1, seed=i + 50)]
        nodes += [helper.make_node("Conv", ["s", f"w{i}a"], [f"a{i}"]), helper.make_node("Relu", [f"a{i}"], [f"r{i}"]),
                  helper.make_node("Conv", [f"r{i}", f"w{i}b"], [f"b{i}"])]
    nodes.append(helper.make_node("Concat", ["b0", "b1", "b2"], ["y"], axis=1))
    return model(nodes, [value("x", [1, 3, "height", "width"])], [value("y", [1, 12, "height", "width"])], weights)


def files(folder, name="x", shapes=SHAPES):
    source = np.random.default_rng(3)
    paths = []
    for k, (height, width) in enumerate(shapes):
        paths.append(str(folder / f"set{k}.npz"))
        np.savez(paths[-1], **{name: source.standard_normal((1, 3, height, width)).astype(np.float32)})
    return tuple(paths)


@needs_counting
@pytest.mark.parametrize("deploy", ["python", "portable", "arena", "replay"])
def test_every_shape_is_as_predicted(store, tmp_path, deploy):
    if deploy == "replay" and unavailable():
        pytest.skip(unavailable())
    path = store(pyramid())
    m = load(path, frontend="onnx", ort_level="basic", inputs=files(tmp_path), deploy=deploy)
    assert m.origin.feeds[0]["x"].shape == (1, 3, 40, 24)  # the largest comes first
    assert "the order is sought and proved for x=1,3,40,24" in " ".join(m.notes)
    result = optimize(m, time_limit=600)
    check = confirm(result.verification)
    rows = check.details["shapes"]
    assert [row["inputs"]["x"] for row in rows] == [[1, 3, 40, 24], [1, 3, 16, 16], [1, 3, 8, 24]]
    if deploy == "arena":  # one region for all
        assert {row["measured_bytes"] for row in rows} == {None}
    else:
        assert [row["measured_bytes"] for row in rows] == [row["predicted_bytes"] for row in rows]
    assert max(row["predicted_bytes"] for row in rows) <= result.model.predicted_bytes
    assert not any("had no place" in note for note in check.notes)
    result.model.save(tmp_path / "out.onnx")
    again = load(tmp_path / "out.onnx", frontend="onnx", inputs=files(tmp_path), deploy=deploy)
    assert again.predicted_bytes == result.model.predicted_bytes
    one = load(path, frontend="onnx", ort_level="basic", inputs=files(tmp_path)[2:], deploy=deploy)
    assert one.predicted_bytes <= m.predicted_bytes


@needs_counting
def test_a_real_detector_at_two_sizes(tmp_path):
    path, _ = pypi_model("rapidocr-onnxruntime det")
    if library_of_the_wheel() is None or unavailable():
        pytest.skip("no C interface here")
    m = load(path, frontend="onnx", inputs=files(tmp_path, shapes=((64, 96), (96, 64))), deploy="replay")
    check = confirm(m.verify(m))
    assert len(check.details["shapes"]) == 2
    assert not any("had no place" in note for note in check.notes)
    assert m.snippet().count("// shape ") == 2


def test_a_file_for_several_shapes_is_not_split(store, tmp_path):
    m = load(store(pyramid()), frontend="onnx", ort_level="basic", inputs=files(tmp_path))
    with pytest.raises(Refused, match="for several shapes is not split"):
        m.splittable()


@pytest.mark.parametrize("shapes", [2, 3, 4])
def test_every_shape_follows_every_shape(shapes):
    found = turns(shapes, 4)
    assert set(pairwise(found)) == set(product(range(shapes), repeat=2))
    assert found[: 2 * shapes] == [k for k in range(shapes) for _ in range(2)]
    assert turns(1, 4) == [0, 0, 0, 0]


def test_what_shapes_begin_with_has_places_of_its_own():
    a = Places((64, 64, 8192), (0, 64, 128), 8320, 8320, 0)
    b = Places((64, 64, 4096, 64), (64, None, 128, 0), 4224, 4224, 64)
    c = Places((128, 64), (0, 128), 192, 192, 0)
    one, two, three = apart([a, b, c])
    assert one.offsets == (8320, 8384, 128)
    assert two.offsets == (8320, None, 128, 0)
    assert three.offsets == c.offsets
    assert {p.bytes for p in (one, two, three)} == {8448}
    large = Places((4096, 64), (0, 4096), 4160, 4160, 0)
    assert apart([large, Places((4096, 128), (0, 4096), 4224, 4224, 0)])[0].offsets == (0, 4096)  # that would cost too much
    assert apart([a]) == (a,)
