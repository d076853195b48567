"""Whether one file is another one rewritten, told from what they hold; and all values compared, not the outputs alone."""

from __future__ import annotations

import random
import re

import numpy as np
import peakmem
import pytest
from onnx import ModelProto, helper, numpy_helper, save_model
from peakmem.api import load, optimize
from peakmem.model import InputError, Schedule
from peakmem_onnx import values

from .conftest import (
    BOOL,
    INT64,
    SHARED,
    branches,
    model,
    needs_runtime,
    pypi_model,
    random_orders,
    random_topological,
    value,
    weight,
)
from .test_expansion import repeat_stem, stem_reused_late
from .test_models import with_if, with_loop

pytestmark = needs_runtime


@pytest.fixture
def pair(store, tmp_path):
    """A source and a file that peakmem made of it, changed by hand before it is read again."""

    def make(proto, change=lambda proto: None, level="none", **options):
        source = load(store(proto), frontend="onnx", ort_level=level, **options)
        made = source.apply(Schedule(random_orders(source.graph, random.Random(2))))
        written = ModelProto()
        written.ParseFromString(made.serialized())
        change(written)
        return source, load(store(written, "made.onnx"), frontend="onnx", ort_level=level, **options)

    return make


def node(proto, op, k=0):
    return [n for n in proto.graph.node if n.op_type == op][k]


def set_strides(proto):
    node(proto, "Conv").attribute.append(helper.make_attribute("dilations", [1, 1]))


def change_weight(proto):
    array = numpy_helper.to_array(proto.graph.initializer[2]).copy()
    array.flat[0] += 1
    proto.graph.initializer[2].CopyFrom(numpy_helper.from_array(array, proto.graph.initializer[2].name))


def other_operator(proto):
    node(proto, "Relu").op_type = "Elu"


def swap_operands(proto):
    read = node(proto, "Concat").input
    read[0], read[1] = read[1], read[0]


def drop_a_node(proto):
    gone = node(proto, "Relu")
    for other in proto.graph.node:
        for k, name in enumerate(other.input):
            if name == gone.output[0]:
                other.input[k] = gone.input[0]
    proto.graph.node.remove(gone)


def other_opset(proto):
    proto.opset_import[0].version = 16


def rename_output(proto):
    node(proto, "Concat").output[0] = proto.graph.output[0].name = "z"


def add_a_node(proto):
    proto.graph.node.append(helper.make_node("Neg", ["x"], ["more"], name="more"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (change_weight, r"reads another constant \(\w+, operand 1\) than Conv_\d+ of the first"),
        (set_strides, r"has other attributes, constants or types than Conv_\d+ of the first"),
        (other_operator, r"Relu_\d+ of the second reads what Relu_\d+ of the first reads and is another operator \(Elu\)"),
        (swap_operands, r"Concat_\d+ of the second reads the operands of Concat_\d+ of the first in another sequence"),
        (drop_a_node, r"of the second reads another value \(a\d, operand 0\) than Conv_\d+ of the first"),
        (other_opset, r"has other attributes, constants or types than"),
        (rename_output, r"output 0 is 'y' in the first and 'z' in the second"),
        (add_a_node, r"more of the second has no counterpart in the first, which has no Neg"),
    ],
)
def test_another_program_is_told_and_nothing_runs(pair, monkeypatch, change, sentence):
    source, made = pair(branches(), change)
    found = source.structure(made)
    assert found.relation == ""
    assert re.search(sentence, found.difference)
    monkeypatch.setattr("peakmem_onnx.measure.ask", lambda *_, **__: pytest.fail("it was run"))
    check = peakmem.verify(source, made)
    assert not check.runtime
    assert check.failures == (f"these are different programs: {found.difference}",)


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
def test_a_permuted_file_is_recognised(pair, level):
    source, made = pair(branches(), level=level)
    found = source.structure(made)
    assert found.difference == ""
    assert found.relation.startswith(f"the same {len(source.graph.nodes)} operators, constants and attributes, ")
    assert made.structure(source).difference == ""


def test_the_level_recorded_in_the_file_is_the_one_compared(store):
    path = store(branches())
    made = load(path, frontend="onnx", ort_level="all")
    made.save(path.with_name("made.onnx"))
    source = load(path, frontend="onnx", ort_level="none")
    made = load(path.with_name("made.onnx"), frontend="onnx", ort_level="none")
    assert made.origin.level == "all"
    check = peakmem.verify(source, made)
    assert check.failures == ()
    assert check.structure.startswith("the same")
    assert any("was made at --ort-level all; so" in note and "(asked: none)" in note for note in check.notes)
    assert check.baseline_predicted == made.predicted_bytes  # of the program at level all


def test_a_release_that_is_not_here_is_named(pair):
    def other_release(proto):
        change_weight(proto)
        proto.metadata_props[0].value = proto.metadata_props[0].value.replace('"onnxruntime": "', '"onnxruntime": "0.')

    source, made = pair(branches(), other_release)
    assert "which may make different programs of one source" in source.structure(made).difference


def test_a_portable_file_is_recognised(store, tmp_path):
    path = store(branches())
    source = load(path, frontend="onnx", ort_level="none")
    made = load(path, frontend="onnx", ort_level="none", deploy="portable")
    optimize(made, measure=False).model.save(tmp_path / "portable.onnx")
    assert source.structure(load(tmp_path / "portable.onnx", frontend="onnx")).difference == ""


@pytest.mark.parametrize("alias", [False, True])
def test_recomputed_operators_are_recognised_as_copies(store, alias):
    source = load(store(stem_reused_late(alias)), frontend="onnx", ort_level="none")
    expansion = repeat_stem(source.program)
    repeated = source.apply(Schedule({"": tuple(range(len(expansion.program)))}, expansion=expansion))
    assert source.structure(repeated).relation.endswith(f"{1 + alias} run once more")
    check = peakmem.verify(source, repeated)
    assert check.failures == ()
    assert check.compared.startswith(f"all {len(repeated.graph.nodes) - 1} values and 1 output")
    assert "is missing from the second" in repeated.structure(source).difference


def test_sources_are_compared_as_they_are(store):
    first = branches()
    second = ModelProto()
    second.CopyFrom(first)
    order = random_topological(load(store(first), frontend="onnx", ort_level="none").graph, random.Random(4))
    nodes = [first.graph.node[v] for v in order]
    del second.graph.node[:]
    second.graph.node.extend(nodes)
    for k, each in enumerate(second.graph.node):
        each.name = f"other{k}"
    # A constant may stand as an initializer or as a node.
    tensor = second.graph.initializer.pop()
    second.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    a, b = load(store(first), frontend="onnx"), load(store(second, "b.onnx"), frontend="onnx")
    assert a.structure(b).difference == ""
    change_weight(second)
    assert "another constant" in a.structure(load(store(second, "c.onnx"), frontend="onnx")).difference


def test_external_weights_are_read(tmp_path):
    models = []
    for k, change in enumerate((lambda proto: None, lambda proto: None, change_weight)):
        proto = branches()
        change(proto)
        save_model(proto, str(tmp_path / f"m{k}.onnx"), save_as_external_data=True, location=f"w{k}.bin", size_threshold=0)
        models.append(load(tmp_path / f"m{k}.onnx", frontend="onnx", ort_level="none"))
    assert models[0].structure(models[1]).difference == ""
    assert "another constant" in models[0].structure(models[2]).difference
    inside = load_in(tmp_path, branches())
    assert models[0].structure(inside).difference == ""


def load_in(folder, proto):
    (folder / "inside.onnx").write_bytes(proto.SerializeToString())
    return load(folder / "inside.onnx", frontend="onnx", ort_level="none")


@pytest.mark.parametrize("proto", [with_if(), with_loop(3, True)], ids=["if", "loop"])
def test_bodies_are_compared(pair, proto):
    source, made = pair(proto)
    assert source.structure(made).difference == ""

    def change(written):
        for each in written.graph.node:
            for attribute in each.attribute:
                if attribute.type == 5:
                    for inner in attribute.g.node:
                        inner.op_type = {"ReduceMax": "ReduceMin", "Exp": "Abs"}.get(inner.op_type, inner.op_type)

    assert "has another body than" in source.structure(pair(proto, change)[1]).difference


def test_inner_inputs_are_not_taken_for_outer_ones(store):
    """A body in a body that reads its own input is not one that reads its surroundings' input."""

    def nested(read):
        inner = helper.make_graph(
            [helper.make_node("Neg", [read], ["n"]), helper.make_node("Identity", ["g2"], ["o2"])], "inner",
            [value("i2", [], INT64), value("g2", [], BOOL), value("c2", [4])], [value("o2", [], BOOL), value("n", [4])],
        )
        outer = helper.make_graph(
            [helper.make_node("Loop", ["t", "", "c1"], ["l2"], body=inner), helper.make_node("Identity", ["g1"], ["o1"])],
            "outer", [value("i1", [], INT64), value("g1", [], BOOL), value("c1", [4])],
            [value("o1", [], BOOL), value("l2", [4])],
        )
        return model([helper.make_node("Loop", ["t", "", "x"], ["y"], body=outer)], [value("x", [4])], [value("y", None)],
                     [helper.make_tensor("t", INT64, [], [2])])

    first, second = (load(store(nested(r), f"{r}.onnx"), frontend="onnx", ort_level="none") for r in ("c1", "c2"))
    assert "another body" in first.structure(second).difference
    assert second.structure(second).difference == ""


def drawn(reads=("r1", "r2")):
    nodes = [helper.make_node("RandomNormalLike", ["x"], [f"r{k}"], name=f"draw{k}") for k in (1, 2)]
    nodes += [helper.make_node("Add", ["x", r], [f"s{k}"]) for k, r in enumerate(reads)]
    nodes.append(helper.make_node("Sub", ["s0", "s1"], ["y"]))
    return model(nodes, [value("x", [4])], [value("y", [4])])


def test_random_numbers_are_drawn_as_often_and_by_the_same_operators(store):
    m = load(store(drawn()), frontend="onnx", ort_level="none")
    for seed in range(4):
        assert m.structure(m.apply(Schedule(random_orders(m.graph, random.Random(seed))))).difference == ""
    again = load(store(drawn(("r1", "r1")), "again.onnx"), frontend="onnx", ort_level="none")
    assert "reads" in m.structure(again).difference
    twice = drawn()
    twice.graph.node.add().CopyFrom(twice.graph.node[0])
    twice.graph.node[-1].output[0] = "more"
    assert m.structure(load(store(twice, "twice.onnx"), frontend="onnx", ort_level="none")).difference


def test_an_output_that_was_blanked_is_no_difference(store):
    nodes = [helper.make_node("MaxPool", ["x"], ["p", "indices"], kernel_shape=[2, 2]), helper.make_node("Neg", ["p"], ["y"])]
    path = store(model(nodes, [value("x", [1, 8, 32, 32])], [value("y", None)]))
    kept = load(path, frontend="onnx", ort_level="none", no_blank_unread=True)
    blanked = load(path, frontend="onnx", ort_level="none")
    assert kept.structure(blanked).difference == ""
    thirds = [helper.make_node("Split", ["x"], names, axis=1) for names in (["a", "b", "c"], ["a", "b"])]
    ends = [helper.make_node("Neg", ["a"], ["n"]), helper.make_node("ReduceSum", ["n"], ["y"], keepdims=0)]
    split = [load(store(model([one, *ends], [value("x", [1, 6])], [value("y", [])], opset_imports=[helper.make_opsetid("", 13)]),
                        f"split{k}.onnx"), frontend="onnx", ort_level="none") for k, one in enumerate(thirds)]
    assert "other attributes" in split[0].structure(split[1]).difference  # other pieces, though what is read is named alike


def constant_logits(seed):
    """A classifier that says the same of every input: its last weights are zero."""
    zero = numpy_helper.from_array(np.zeros((16, 4), np.float32), "zero")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("MatMul", ["r", "zero"], ["y"])]
    return model(nodes, [value("x", [1, 8])], [value("y", [1, 4])], [weight("w", 8, 16, seed=seed), zero])


def test_a_changed_weight_shows_where_the_outputs_are_constant(store):
    first, second = (load(store(constant_logits(s), f"{s}.onnx"), frontend="onnx", ort_level="none") for s in (1, 2))
    check = peakmem.verify(first, second)
    assert "another constant (w, operand 1)" in check.failures[0]
    only = peakmem.verify(first, second, outputs_only=True)
    assert only.structure.startswith("different programs: ")
    assert only.bitwise_identical
    assert only.varied is False  # what could be compared, the outputs, never changes
    assert not only.identical
    same = peakmem.verify(first, first)
    assert same.varied
    assert same.identical
    assert same.compared == "all 2 values and 1 output over 2 input sets, against the given order; outputs against the direct session as well"


def test_a_value_that_differs_is_named(store, monkeypatch):
    """The files are called equal here, so that running alone shows the difference."""
    first, second = (load(store(constant_logits(s), f"{s}.onnx"), frontend="onnx", ort_level="none") for s in (1, 2))
    monkeypatch.setattr("peakmem_onnx.values._pairs", lambda *_: [("h", "h"), ("r", "r")])
    check = first.verify(second)
    assert check.bitwise_identical is False
    assert "value 'h' of the new order differs from the given order, and so do 1 more" in check.failures


def test_values_are_compared_in_pieces_and_the_measured_bytes_stay(store, monkeypatch):
    m = load(store(branches()), frontend="onnx", ort_level="none")
    whole = m.verify(m)
    monkeypatch.setattr(values, "AT_ONCE", 1)
    pieces = m.verify(m)
    assert pieces == whole
    assert pieces.compared.startswith(f"all {len(m.graph.nodes) - 1} values and 1 output over 2 input sets")
    assert pieces.baseline_bytes in (None, m.predicted_bytes)


def test_values_of_bodies_are_counted_as_not_compared(store):
    m = load(store(with_if()), frontend="onnx", ort_level="none", feed=("c=1",))
    check = m.verify(m)
    assert check.compared.startswith("2 of 9 values and 1 output over 2 input sets")
    assert any(note.startswith("7 values inside bodies (If, Loop, Scan)") for note in check.notes)


def test_inputs_that_are_fixed_do_not_vary(store):
    path = store(branches())
    free = load(path, frontend="onnx", ort_level="none")
    assert not (free.origin.contrast["x"] == free.origin.feeds[0]["x"]).any()
    assert free.verify(free).varied
    fixed = load(path, frontend="onnx", ort_level="none", feed=("x=0.5",))
    assert fixed.origin.contrast is None
    check = fixed.verify(fixed)
    assert check.varied is None
    assert check.identical


def test_whole_numbers_and_texts_vary_too(store):
    from onnx import TensorProto

    nodes = [helper.make_node("Where", ["b", "i", "j"], ["y"]), helper.make_node("Identity", ["s"], ["z"])]
    inputs = [value("b", [5], BOOL), value("i", [5], INT64), value("j", [], INT64), value("s", [3], TensorProto.STRING)]
    m = load(store(model(nodes, inputs, [value("y", None, INT64), value("z", None, TensorProto.STRING)])),
             frontend="onnx", ort_level="none", feed=("j=7",))
    first, second = m.origin.feeds[0], m.origin.contrast
    assert all((first[name] != second[name]).all() for name in "bis")
    assert (first["j"] == second["j"]).all()
    assert m.verify(m).varied


def test_a_file_whose_order_is_illegal_is_refused(store):
    proto = branches()
    m = load(store(proto), frontend="onnx", ort_level="none")
    m.save(store(proto).with_name("made.onnx"))
    made = ModelProto()
    made.ParseFromString(store(proto).with_name("made.onnx").read_bytes())
    last = made.graph.node.pop()
    made.graph.node.insert(0, last)
    with pytest.raises(InputError, match="before it is written; the nodes are not in topological order"):
        load(store(made, "illegal.onnx"), frontend="onnx")


@pytest.mark.parametrize("name", ["aspp_like.onnx", "light_shufflenet.onnx", "redimnet_s_random.onnx"])
def test_shared_models_are_recognised_again(name, tmp_path):
    if not (SHARED / name).exists():
        pytest.skip("the shared data folder is not there")
    source = load(SHARED / name, frontend="onnx")
    made = source.apply(Schedule(random_orders(source.graph, random.Random(1))))
    made.save(tmp_path / name)
    check = peakmem.verify(source, load(tmp_path / name, frontend="onnx"))
    assert check.failures == ()
    assert check.varied
    assert "at other places" in check.structure


def test_a_real_model_with_bodies_is_recognised_again(tmp_path):
    path, shapes = pypi_model("silero-vad")
    source = load(path, frontend="onnx", ort_level="basic", shape=shapes)
    source.apply(Schedule(random_orders(source.graph, random.Random(1)))).save(tmp_path / "made.onnx")
    assert source.structure(load(tmp_path / "made.onnx", frontend="onnx", shape=shapes)).difference == ""
