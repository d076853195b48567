"""What cannot be handled is refused with one sentence that says what to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model
from peakmem.api import load
from peakmem.frontends import complete_options, recognise
from peakmem.model import InputError, PeakmemError, RuntimeFailed, UsageError
from peakmem_onnx.frontend import frontend

from .conftest import BOOL, FLOAT, INT64, SHARED, branches, model, needs_runtime, value, weight


def refuse(path, match, error=InputError, **options):
    with pytest.raises(error, match=match) as caught:
        load(path, frontend="onnx", **options)
    assert isinstance(caught.value, PeakmemError)
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def test_it_is_recognised_by_name_and_by_content(store):
    path = store(branches(), "m.onnx")
    assert recognise(path).name == "onnx"
    assert frontend.sniff(path.with_name("m"), path.read_bytes()[:4096])
    assert not frontend.sniff(path.with_name("m"), b"\x1c\x00\x00\x00TFL3" + bytes(100))
    assert not frontend.sniff(path.with_name("m"), b'{"schema": "peakmem.program/1"}')


def test_options_are_declared_with_defaults():
    options = complete_options(frontend, {})
    assert options["ort_level"] == "all"
    assert options["dim"] == ()
    assert options["shape"] == ()
    with pytest.raises(UsageError, match="has no option 'nonsense'"):
        complete_options(frontend, {"nonsense": 1})


FAULTS = SHARED.parent / "faults" / "onnx"


def text_that_is_none(proto):
    """A name whose bytes are no UTF-8, as a damaged file has it."""
    return proto.SerializeToString().replace(b"w_in", b"w\xe3in")


@pytest.mark.parametrize("data", [b"", b"hello, this is no model", bytes(range(256)) * 4])
def test_not_a_model(tmp_path, data):
    path = tmp_path / "x.onnx"
    path.write_bytes(data)
    refuse(path, "is not an ONNX model")


def test_truncated_model(store):
    path = store(branches())
    path.write_bytes(path.read_bytes()[:-200])
    refuse(path, "is not an ONNX model or is damaged")


def test_a_name_that_is_no_text(tmp_path):
    path = tmp_path / "x.onnx"
    path.write_bytes(text_that_is_none(branches()))
    refuse(path, r"input b'w.xe3in' in the model, 'g' is not text in UTF-8; the file is damaged")
    if FAULTS.exists():
        refuse(FAULTS / "attr_name_not_utf8.onnx", r"name b'then_bran\\xe3h' in the model, 'g', 'if' is not text in UTF-8")


def test_missing_file(tmp_path):
    refuse(tmp_path / "none.onnx", "cannot be read")


def test_no_nodes(store):
    refuse(store(model([], [value("x", [1])], [value("x", [1])])), "has no nodes")


def test_no_operator_set(store):
    proto = branches()
    del proto.opset_import[:]
    refuse(store(proto), "names no operator set")


@needs_runtime
def test_unsupported_operator_set(store):
    refuse(store(model([helper.make_node("Relu", ["x"], ["y"])], [value("x", [4])], [value("y", [4])],
                       opset_imports=[helper.make_opsetid("", 999)])), "onnxruntime .* cannot load or run it")


@needs_runtime
def test_open_dimensions_are_named_with_the_options_that_fix_them(store):
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [value("x", ["batch", 3, None])], [value("y", None)])
    path = store(proto)
    message = refuse(path, r"dimension 0 of x \(batch\), dimension 2 of x")
    assert "--dim NAME=N" in message
    assert load(path, frontend="onnx", dim=("batch=2",), shape=("x=2,3,5",)).predicted_bytes == 128
    refuse(path, "has no dimension called 'bach'", UsageError, dim=("bach=1",))
    refuse(path, "must look like NAME=N", UsageError, dim=("batch=zero",))
    refuse(path, "has no input 'z'", UsageError, shape=("z=1,2,3",))
    refuse(path, "has 3 dimensions, --shape gives 2", UsageError, shape=("x=1,2",))
    refuse(path, "dimension 1 of input 'x' is 3, --shape says 4", UsageError, shape=("x=1,4,5",))


@needs_runtime
def test_external_data(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "m.onnx"
    save_model(branches(), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = (folder / "weights.bin").read_bytes()
    m = load(path, frontend="onnx", ort_level="none")
    assert len(m.serialized()) < len(before)  # the weights stay where they are
    with pytest.raises(UsageError, match=r"weights\.bin and must lie beside the model"):
        m.save(tmp_path / "out.onnx")
    m.save(folder / "out.onnx")
    again = load(folder / "out.onnx", frontend="onnx")
    assert again.predicted_bytes == m.predicted_bytes
    m.verify(again).raise_for_difference()
    assert (folder / "weights.bin").read_bytes() == before
    (folder / "weights.bin").unlink()
    refuse(path, r"external data 'weights\.bin' is missing")


def test_training_operators(store):
    node = helper.make_node("Adam", ["r", "t", "x", "g", "v", "h"], ["a", "b", "c"], domain="ai.onnx.preview.training")
    proto = model([node], [value(n, [1]) for n in "rtxgvh"], [value("a", [1])])
    refuse(store(proto), "training operator Adam")


def test_custom_operators(store):
    proto = model([helper.make_node("Magic", ["x"], ["y"], domain="acme", name="m1")], [value("x", [1])], [value("y", [1])])
    refuse(store(proto), r"'m1' is the custom operator acme\.Magic")


@needs_runtime
def test_model_local_functions_are_inlined(store):
    function = helper.make_function(
        "acme", "Twice", ["a"], ["b"],
        [helper.make_node("Exp", ["a"], ["t"]), helper.make_node("Add", ["t", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    proto = model([helper.make_node("Twice", ["x"], ["h"], domain="acme"), helper.make_node("Relu", ["h"], ["y"])],
                  [value("x", [64])], [value("y", [64])], functions=[function],
                  opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)])
    m = load(store(proto), frontend="onnx", ort_level="none")
    assert [n.op for n in m.graph.nodes] == ["Exp", "Add", "Relu"]
    m.verify(m).raise_for_difference()


@needs_runtime
def test_sequences_are_refused(store):
    proto = model([helper.make_node("SequenceConstruct", ["x", "x"], ["s"]), helper.make_node("SequenceLength", ["s"], ["y"])],
                  [value("x", [4])], [value("y", [], INT64)])
    refuse(store(proto), r"value 's' is of type seq\(tensor\(float\)\)", ort_level="none")
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    refuse(store(model([helper.make_node("SequenceLength", ["s"], ["y"])], [sequence], [value("y", [], INT64)])),
           "input 's' is a sequence, not a tensor")


@needs_runtime
def test_strings(store):
    proto = model([helper.make_node("Concat", ["x", "x"], ["s"], axis=0),
                   helper.make_node("Identity", ["s"], ["y"])],
                  [value("x", [5], TensorProto.STRING)], [value("y", [10], TensorProto.STRING)])
    m = load(store(proto), frontend="onnx", ort_level="none")
    m.verify(m).raise_for_difference()


@needs_runtime
def test_quantized(store):
    scale, zero = helper.make_tensor("s", FLOAT, [], [0.02]), helper.make_tensor("z", TensorProto.UINT8, [], [128])
    proto = model(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            helper.make_node("Conv", ["d", "w"], ["c"]),
            helper.make_node("QuantizeLinear", ["c", "s", "z"], ["r"]),
            helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ],
        [value("x", [1, 4, 9, 9])], [value("y", None)], [scale, zero, weight("w", 8, 4, 3, 3)],
    )
    for level in ("none", "all"):
        m = load(store(proto), frontend="onnx", ort_level=level)
        m.verify(m).raise_for_difference()


@needs_runtime
def test_sparse_weights(store):
    dense = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 6], np.int64), "w_indices")
    proto = model([helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
                  [value("x", [5, 4])], [value("y", None)])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(dense, indices, [4, 2]))
    m = load(store(proto), frontend="onnx", ort_level="none")
    m.verify(m).raise_for_difference()


@needs_runtime
def test_the_input_is_never_overwritten(store):
    path = store(branches())
    m = load(path, frontend="onnx", ort_level="none")
    with pytest.raises(UsageError, match="never changes"):
        m.save(path, force=True)


@needs_runtime
def test_feeds(store):
    path = store(branches())
    refuse(path, "has no input 'q'", UsageError, feed=("q=1",))
    refuse(path, "is not a value of type float32", UsageError, feed=("x=word",))
    m = load(path, frontend="onnx", ort_level="none", feed=("x=0.5",))
    assert (m.origin.feeds[0]["x"] == np.float32(0.5)).all()


@needs_runtime
def test_what_runs_but_not_as_the_optimizer_saves_it_is_told_with_a_way_out(store, monkeypatch):
    def fail(*_, **__):
        raise RuntimeFailed("Graph attribute inferencing failed")

    monkeypatch.setattr("peakmem_onnx.compile.collect_shapes", fail)
    refuse(store(branches()), r"cannot load or run what it makes of it at --ort-level all: Graph .* failed; try --ort-level none")
    refuse(store(branches()), "cannot load or run it: Graph attribute inferencing failed$", ort_level="none")


@needs_runtime
def test_truth_values_are_read_as_such(store):
    path = store(model([helper.make_node("Not", ["b"], ["y"])], [value("b", [2], BOOL)], [value("y", None, BOOL)]))
    for text, is_true in (("0", False), ("false", False), ("1", True), ("True", True)):
        assert (load(path, frontend="onnx", feed=(f"b={text}",)).origin.feeds[0]["b"] == is_true).all()
    refuse(path, "is not a value of type bool", UsageError, feed=("b=perhaps",))


def external(location):
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], [value("y", [4])], [weight("w", 4)])
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return proto


@pytest.mark.parametrize("location", ["../../../etc/passwd", "/etc/passwd", "sub/../../w.bin", "\0"])
def test_external_data_outside_the_folder(store, location):
    refuse(store(external(location)), "lies outside the model's folder")


@pytest.mark.parametrize("location", ["", ".", "none.bin"])
def test_external_data_that_is_no_file(store, location):
    refuse(store(external(location)), "is missing from")


@needs_runtime
def test_an_absurd_dimension_does_not_eat_the_memory(store):
    for shape in ([2**40, 2**20], [2**31, 64], [2**62, 2**62]):
        refuse(store(model([helper.make_node("Relu", ["x"], ["y"])], [value("x", shape)], [value("y", None)])), "would take")
    huge = helper.make_tensor("s", INT64, [1], [1 << 46])
    refuse(store(model([helper.make_node("Expand", ["x", "s"], ["y"])], [value("x", [1])], [value("y", None)], [huge])),
           "cannot load or run it")


@needs_runtime
def test_cycles_and_names_that_stand_twice(store):
    def relu(source, target):
        return helper.make_node("Relu", [source], [target])

    for nodes in (
        [helper.make_node("Add", ["x", "b"], ["a"]), relu("a", "b"), relu("b", "y")],
        [relu("x", "a"), relu("x", "a"), relu("a", "y")],
        [relu("nothing", "y")],
        [helper.make_node("Relu", [], ["y"])],
        [helper.make_node("If", ["x"], ["y"])],
    ):
        refuse(store(model(nodes, [value("x", [4])], [value("y", [4])])), "cannot load or run it")


@needs_runtime
def test_names_with_line_breaks_stay_in_one_sentence(store):
    proto = model([helper.make_node("Relu", ["x\n1"], ["y"])], [value("x\n1", ["N\n"])], [value("y", None)])
    refuse(store(proto), r"dimension 0 of x 1 \(N \)")


@needs_runtime
def test_a_damaged_constant_is_left_to_the_runtime(store):
    number = helper.make_tensor("w", INT64, [], [5])
    number.ClearField("int64_data")
    number.raw_data = b"1"
    refuse(store(model([helper.make_node("Equal", ["x", "w"], ["y"])], [value("x", [], INT64)], [value("y", None)], [number])),
           "cannot load or run it")


@needs_runtime
@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"ort_level": 5, "threads": "x"}', '{"threads": null, "onnxruntime": [1]}'])
def test_damaged_markers(store, text):
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [value("x", [4])], [value("y", [4])])
    proto.metadata_props.add(key="peakmem.recipe", value=text)
    assert load(store(proto), frontend="onnx", ort_level="none").predicted_bytes == 64


@needs_runtime
def test_flipped_bits_and_truncation_never_escape_as_another_error(tmp_path):
    import random

    good = branches().SerializeToString()
    source = random.Random(11)
    for _ in range(25):
        data = bytearray(good)
        if source.random() < 0.2:
            del data[source.randrange(len(data)) :]
        else:
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        path = tmp_path / "x.onnx"
        path.write_bytes(bytes(data))
        try:
            load(path, frontend="onnx", ort_level="none")
        except PeakmemError as error:
            assert "\n" not in str(error)
            assert error.exit_code == 2


def endless(condition):
    """A Loop without a number of trips, which goes on while what it is given is true."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Relu", ["c0"], ["c1"])],
        "body", [value("i", [], INT64), value("go", [], BOOL), value("c0", [8])], [value("on", [], BOOL), value("c1", [8])],
    )
    inputs = [value("x", [8]), *([value("more", [], BOOL)] if condition == "more" else [])]
    return model([helper.make_node("Loop", ["", condition, "x"], ["y"], body=body)], inputs, [value("y", None)],
                 [helper.make_tensor("always", BOOL, [], [True])])


@needs_runtime
def test_a_loop_that_never_ends_is_ended(store):
    message = refuse(store(endless("always")), r"a run did not end within 2 s of computing \(--run-limit gives it more\)", run_limit=2)
    assert "cannot load or run it" in message


@needs_runtime
def test_a_loop_that_never_ends_for_other_inputs_is_ended_too(store):
    m = load(store(endless("more")), frontend="onnx", ort_level="none", run_limit=2, feed=("more=0",))
    m = replace(m, origin=replace(m.origin, contrast={**m.origin.feeds[0], "more": np.array(True)}))
    check = m.verify(m)
    assert check.failures == ()
    assert any("did not end within 2 s of computing" in note for note in check.notes)
    assert check.varied is None
