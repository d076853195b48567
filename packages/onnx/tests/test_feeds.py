"""Inputs of the user's own, inputs of any element type, suggestions for what is open, levels."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from peakmem.api import load
from peakmem.model import InputError, UsageError
from peakmem_onnx import totals
from peakmem_onnx.guesses import usual_size
from peakmem_onnx.replaying import unavailable
from peakmem_onnx.runtime import counting_library

from .conftest import FLOAT, INT64, branches, model, need_runtime_for, needs_runtime, pypi_model, value, weight
from .test_ways import confirm

pytestmark = needs_runtime


def lookup(kind=INT64):
    """Rows of a table, chosen by numbers: random ones would do, but not any."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("Mul", ["rows", "x"], ["y"])]
    return model(nodes, [value("ids", ["n"], kind), value("x", ["n", 4])], [value("y", ["n", 4])], [weight("table", 100, 4)])


def arrays(path, **named):
    np.savez(path, **named)
    return str(path)


def test_inputs_from_a_file_fix_the_shapes_and_are_run(store, tmp_path):
    first = {"ids": np.array([7, 99, 3]), "x": np.ones((3, 4), np.float32)}
    second = {"ids": np.array([50, 51, 52])}
    files = (arrays(tmp_path / "a.npz", **first), arrays(tmp_path / "b.npz", **second))
    m = load(store(lookup()), frontend="onnx", inputs=files)
    one, two = m.origin.feeds
    assert np.array_equal(one["ids"], first["ids"])
    assert np.array_equal(two["ids"], second["ids"])
    assert np.array_equal(two["x"], first["x"])  # what a set leaves out is as in the first
    assert np.array_equal(m.origin.contrast["ids"], first["ids"])  # an index must stay one
    assert not np.array_equal(m.origin.contrast["x"], first["x"])
    confirm(m.verify(m))


def test_inputs_that_do_not_fit_are_told_in_a_sentence(store, tmp_path):
    path = store(lookup())
    x = np.ones((3, 4), np.float32)

    def refused(match, *files, **more):
        with pytest.raises(UsageError, match=match) as caught:
            load(path, frontend="onnx", inputs=files, **more)
        assert "\n" not in str(caught.value)

    refused(r"has no input 'z' \(--inputs, set 0\); its inputs are ids, x", arrays(tmp_path / "z.npz", z=x))
    wrong = arrays(tmp_path / "type.npz", ids=np.array([1.0, 2.0, 3.0]), x=x)
    refused(r"input 'ids' \(--inputs, set 0\) is of type float64, and the model takes int64", wrong)
    good = arrays(tmp_path / "good.npz", ids=np.arange(3), x=x)
    longer = arrays(tmp_path / "longer.npz", ids=np.arange(5), x=np.ones((5, 4), np.float32))
    refused(r"input 'ids' \(--inputs, set 1\) has the shape 5, and memory is planned for 3$", good, longer, shape=("ids=3",))
    refused(r"dimension 0 of input 'ids' is fixed, and the sets of --inputs differ in it", good, longer, dim=("n=3",))
    flat = arrays(tmp_path / "flat.npz", ids=np.arange(3), x=np.ones(12, np.float32))
    refused(r"input 'x' \(--inputs, set 1\) has 1 dimensions, in the first set 2", good, flat)
    only = arrays(tmp_path / "only.npz", ids=np.arange(3))
    refused(r"--inputs, set 1, has an input 'x' that the first one has not", only, good, shape=("x=3,4",))
    refused("cannot be read as arrays of numpy", str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("no arrays")
    refused("cannot be read as arrays of numpy", str(tmp_path / "text.npz"))
    np.save(tmp_path / "one.npy", x)
    refused("one array without a name", str(tmp_path / "one.npy"))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:100])
    refused("cannot be read as arrays of numpy", str(tmp_path / "cut.npz"))
    refused("has the shape 3, and memory is planned for 4", good, shape=("ids=4",))


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4", "UINT8", "BOOL", "DOUBLE"])
def test_inputs_of_any_type(store, name):
    kind = getattr(TensorProto, name, None)
    if kind is None:
        pytest.skip(f"this onnx has no {name}")
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=FLOAT), helper.make_node("Exp", ["c"], ["y"])]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [value("x", [3, 5], kind)], [value("y", [3, 5])]),
        opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
    )  # fmt: skip
    path = store(proto)
    need_runtime_for(path)  # 1.21 casts nothing of 4 bits
    m = load(path, frontend="onnx", ort_level="none")
    check = confirm(m.verify(m))
    assert check.varied is not False


@pytest.mark.parametrize(("name", "deploy"), [("BFLOAT16", "python"), ("BFLOAT16", "replay"), ("FLOAT8E5M2", "python"), ("FLOAT8E5M2", "replay")])
def test_outputs_of_types_that_numpy_has_not(store, name, deploy):
    if deploy == "replay" and unavailable():
        pytest.skip(f"no C interface here: {unavailable()}")
    kind = getattr(TensorProto, name)
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["h"]), helper.make_node("Identity", ["h"], ["y"])]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [value("x", [3, 4], kind)], [value("y", [6, 2], kind)], [helper.make_tensor("shape", 7, [2], [6, 2])]),
        opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
    )  # fmt: skip
    m = load(store(proto), frontend="onnx", ort_level="none", deploy=deploy)
    assert confirm(m.verify(m)).varied


def test_what_is_open_is_told_with_options_to_begin_with(store):
    proto = model([helper.make_node("Add", ["x", "m"], ["y"])],
                  [value("x", ["batch", 3, "height", "width"]), value("m", ["batch", "?", 1, 1])], [value("y", None)])
    path = store(proto)
    with pytest.raises(InputError, match=r"to begin with: --dim batch=1 --dim height=224 --dim width=224 --shape m=1,1,1,1, with which it runs \(--try-dims takes them\)$"):
        load(path, frontend="onnx")
    load(path, frontend="onnx", dim=("batch=1", "height=224", "width=224"), shape=("m=1,1,1,1",))
    assert [usual_size(name) for name in ("batch_size", "N", "seq_len", "n_frames", "image_height", "w", "unk__7")] == [1, 1, 128, 128, 224, 224, 1]
    assert usual_size("unk__7", 1, 2) == 128


def test_what_is_open_is_told_with_options_that_run(store):
    """A size that the names do not say is found by running; where none is found, nothing is said of running."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["h"]), helper.make_node("Add", ["h", "s"], ["y"])]
    for length, told in ((48, r"--dim frames=48 --shape s=2,1,1, with which it runs \(--try-dims takes them\)"), (47, "--dim frames=128 --shape s=2,128,1, and it ran with none of the sizes tried")):
        shape = helper.make_tensor("shape", 7, [3], [2, 1, length * 2])
        proto = model(nodes, [value("x", ["frames", 4]), value("s", [2, "", 1])], [value("y", None)], [shape])
        with pytest.raises(InputError, match=f"to begin with: {told}$"):
            load(store(proto), frontend="onnx")


def test_a_level_that_does_not_run_gives_way_to_a_lower_one():
    path, _ = pypi_model("silero-vad")
    options = {"shape": ("input=1,512", "state=2,1,128"), "feed": ("sr=16000",)}
    m = load(path, frontend="onnx", **options)
    assert m.origin.level == "none"
    assert any(note.startswith("the level is none instead of all: onnxruntime") for note in m.notes)


def test_a_run_without_end_is_tried_at_one_level(store, monkeypatch):
    tried = []

    def never(proto, origin, *_):
        tried.append(origin.level)
        raise InputError("x: cannot load or run it: a run did not end within 1 s")

    monkeypatch.setattr("peakmem_onnx.compile._studied", never)
    with pytest.raises(InputError, match="did not end"):
        load(store(branches()), frontend="onnx")
    assert tried == ["all"]


@pytest.mark.skipif(counting_library() is None, reason="allocations cannot be counted here")
@pytest.mark.parametrize("accepted", [False, True])
def test_a_prediction_that_fails_costs_the_file_only_without_a_choice(store, accepted):
    m = load(store(branches()), frontend="onnx", ort_level="none", repeats=0, accept_inexact=accepted)
    m.__dict__["predicted_bytes"] = 64
    check = m.verify(m)
    assert check.bitwise_identical
    assert not check.as_predicted
    assert bool(check.failures) != accepted
    told = " ".join(check.notes if accepted else check.failures)
    assert "was predicted to take 64 bytes and took" in told
    assert ("not exact" if accepted else "--accept-inexact") in told


def test_totals_of_the_levels(store):
    nodes = [
        helper.make_node("Tile", ["w", "times"], ["big"]),  # folded: 4 KiB become 1 MiB
        helper.make_node("Mul", ["x", "big"], ["a"]),
        helper.make_node("Exp", ["a"], ["y"]),
    ]
    times = helper.make_tensor("times", INT64, [2], [256, 1])
    path = store(model(nodes, [value("x", [256, 1024])], [value("y", [256, 1024])], [weight("w", 1, 1024), times]))
    m = load(path, frontend="onnx", repeats=0, all_levels=True)
    rows, notes = totals.totals(m)
    assert notes == []
    assert [row.level for row in rows] == ["none", "basic", "extended", "all"]
    told = {row.level: row for row in rows}
    assert told["none"].weight_bytes == 4096 + 16
    assert told["all"].weight_bytes >= 1 << 20
    assert all(row.total == row.weight_bytes + row.run_bytes for row in rows)
    assert told["all"].run_bytes == m.predicted_bytes
    best = min(rows, key=lambda row: row.total).level
    assert totals.sentences(rows)[-1] == f"the level that takes least in all is {best}, before anything is permuted"
    first, document, lines = m.observe()
    assert first == ""
    assert [row["level"] for row in document["levels"]] == [row.level for row in rows]
    assert any("--ort-level basic: " in line for line in lines)


def test_totals_with_loading():
    row = totals.Total("all", 100, 50, 300, 200)
    assert row.total == 300
    assert totals.Total("all", 100, 150, 300, 200).total == 350


def test_what_is_open_can_be_given_the_sizes_tried(store, tmp_path):
    proto = model([helper.make_node("Add", ["x", "m"], ["y"])],
                  [value("x", ["batch", 3, "height", "width"]), value("m", ["batch", "?", 1, 1])], [value("y", None)])
    path = store(proto)
    m = load(path, frontend="onnx", try_dims=True)
    assert m.origin.feeds[0]["x"].shape == (1, 3, 224, 224)
    assert any("--dim batch=1 --dim height=224 --dim width=224 --shape m=1,1,1,1" in note for note in m.notes)
    smaller = load(path, frontend="onnx", try_dims=True, dim=("height=8",))
    assert smaller.origin.feeds[0]["x"].shape == (1, 3, 8, 224), "what is said wins"
    assert not any("tried" in note for note in load(path, frontend="onnx", try_dims=True, dim=("batch=1", "height=8", "width=8"), shape=("m=1,1,1,1",)).notes)
    with pytest.raises(UsageError, match="has no input 'q'"):
        load(path, frontend="onnx", try_dims=True, feed=("q=1",))
    with pytest.raises(InputError, match="--try-dims knows no sizes"):
        load(path, frontend="onnx", try_dims=True, dim=("height=10000000",))
    never = model([helper.make_node("Reshape", ["x", "shape"], ["y"])], [value("x", ["n", 4])], [value("y", None)],
                  [helper.make_tensor("shape", 7, [2], [7, 13])])
    with pytest.raises(InputError, match=r"to begin with: --dim n=1, and it ran with none of the sizes tried$"):
        load(store(never), frontend="onnx", try_dims=True)


def test_sizes_are_tried_beside_sets_of_several_shapes(store, tmp_path):
    import numpy as np

    proto = model([helper.make_node("Add", ["x", "m"], ["y"])], [value("x", ["batch", "time"]), value("m", ["batch", 1])], [value("y", None)])
    files = []
    for time in (8, 5):
        files.append(str(tmp_path / f"{time}.npz"))
        np.savez(files[-1], x=np.ones((1, time), np.float32))
    m = load(store(proto), frontend="onnx", try_dims=True, inputs=tuple(files))
    assert [(feeds["x"].shape, feeds["m"].shape) for feeds in m.origin.feeds] == [((1, 8), (1, 1)), ((1, 5), (1, 1))]
    assert [note.partition("figures are: ")[2] for note in m.notes if "were given the first sizes" in note] == ["--dim batch=1"]
    confirm(m.verify(m))


def test_sizes_that_are_none_or_two(store):
    path = store(model([helper.make_node("Neg", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", None)]))
    for options, sentence in (
        ({"dim": ("n=\u00b2",)}, "must look like"), ({"dim": ("n=" + "9" * 30,)}, "must look like"), ({"dim": ("n=0",)}, "must look like"),
        ({"shape": ("x=\u00b2,4",)}, "must look like"), ({"shape": ("x=1,-4",)}, "must look like"),
        ({"dim": ("n=1", "n=2")}, "n is 1 already"), ({"shape": ("x=1,4", "x=2,4")}, "x has another shape already"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=sentence):
            load(path, frontend="onnx", **options)
    m = load(path, frontend="onnx", dim=("n=2", "n=2"))
    assert m.extras(m, None)["inputs"] == {"x": [2, 4]}, "a result tells for which sizes it is"


def test_a_file_that_peakmem_wrote_is_not_held_to_inputs_that_its_source_refused(store, tmp_path):
    """A mode that does not go with the shape, as a sampling rate may not: left out when the file is made, and when it is looked at."""
    shape = helper.make_tensor("shape", 7, [2], [5, 5])
    wrong = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["a"], name="r")], "wrong", [], [value("a", None)], [shape])
    right = helper.make_graph([helper.make_node("Relu", ["x"], ["b"], name="i")], "right", [], [value("b", None)])
    nodes = [
        helper.make_node("Equal", ["mode", "eight"], ["c"], name="e"),
        helper.make_node("If", ["c"], ["h"], name="branch", then_branch=wrong, else_branch=right),
        helper.make_node("Neg", ["h"], ["y"], name="n"),
    ]
    proto = model(nodes, [value("x", [4, 4]), value("mode", [], INT64)], [value("y", None)], [helper.make_tensor("eight", INT64, [], [8])])
    m = load(store(proto), frontend="onnx")
    refused = [note for note in m.notes if "refuses inputs of set 1" in note]
    assert len(refused) == 1
    m.save(tmp_path / "made.onnx")
    again = load(tmp_path / "made.onnx", frontend="onnx")
    assert len(again.origin.feeds) == len(m.origin.feeds) == 1
    confirm(m.verify(again))


def test_a_comparison_says_which_sizes_were_tried(store, capsys):
    main = pytest.importorskip("peakmem_cli.main", reason="the command is not installed").main

    path = store(model([helper.make_node("Neg", ["x"], ["y"])], [value("x", ["n", 4])], [value("y", None)]))
    assert main(["verify", str(path), str(path), "--try-dims"]) == 0
    assert "note: its open dimensions were given the first sizes tried with which it runs, for which all figures are: --dim n=1\n" in capsys.readouterr().out
