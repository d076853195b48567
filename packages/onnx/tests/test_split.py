"""ONNX models in bands of rows: maps by enumeration, files as ONNX Runtime runs them, and a judge that can say no."""

from __future__ import annotations

import os
import random
import re

import numpy as np
import onnx
import peakmem
import pytest
from onnx import TensorProto, helper, numpy_helper
from peakmem.frontends.splitting import Region, Rows
from peakmem.model import Refused, UsageError
from peakmem.transform.split import lay_out, split
from peakmem_onnx.splitmaps import PaddedWindow
from peakmem_onnx.splitwrite import culprits, judge

from .conftest import SHARED, model, needs_runtime, value, weight


def load(path, level: str = "extended", **options):
    return peakmem.load(path, frontend="onnx", ort_level=level, **options)


def in_bands(one, *regions: Region):
    """Split by hand, and laid out, written, judged by a run."""
    return one.apply_split(lay_out(one.splittable(), range(len(one.program)), sorted(regions)))


def outputs(data: bytes, feeds) -> list[bytes]:
    """As ONNX Runtime's own interface gives them, in a plain session."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return [x.tobytes() for x in ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)]


def conv(x: str, y: str, w: str, pads=(1, 1, 1, 1), **more):
    return helper.make_node("Conv", [x, w], [y], f"conv_{y}", pads=list(pads), **more)


def chain(opset: int = 17):
    """Convolutions and a pool, wide at the start."""
    nodes = [
        conv("x", "a", "w0"), helper.make_node("Relu", ["a"], ["b"], "relu"), conv("b", "c", "w1", strides=[2, 2]),
        helper.make_node("MaxPool", ["c"], ["d"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0]),
        conv("d", "y", "w2", pads=(0, 0, 0, 0)),
    ]  # fmt: skip
    weights = [weight("w0", 12, 3, 3, 3), weight("w1", 8, 12, 3, 3, seed=1), weight("w2", 4, 8, 1, 1, seed=2)]
    return model(nodes, [value("x", [1, 3, 48, 40])], [value("y", None)], weights, opset_imports=[helper.make_opsetid("", opset)])


def wide():
    """Convolutions whose channels fill blocks, and a join of channels among them."""
    nodes = [
        conv("x", "a", "w0"), helper.make_node("Relu", ["a"], ["b"], "relu"), conv("b", "c", "w1"),
        conv("c", "e", "w2", strides=[2, 2]), helper.make_node("MaxPool", ["e"], ["f"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["e", "f"], ["g"], "concat", axis=1), conv("g", "y", "w3", strides=[2, 2]),
    ]  # fmt: skip
    weights = [weight("w0", 32, 3, 3, 3), weight("w1", 32, 32, 3, 3, seed=1), weight("w2", 32, 32, 3, 3, seed=2), weight("w3", 32, 64, 3, 3, seed=3)]
    return model(nodes, [value("x", [1, 3, 48, 40])], [value("y", None)], weights)


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_whose_windows_lie_in_the_band(seed):
    """By enumeration of what every row reads, padding included."""
    rng, right = random.Random(seed), 0
    for _ in range(300):
        h, reach, stride, top, bottom = rng.randint(1, 20), rng.randint(1, 6), rng.randint(1, 3), rng.randint(0, 3), rng.randint(0, 3)
        rule = PaddedWindow(h, reach, stride, top, bottom)
        if rule.whole < 1:
            continue
        a = rng.randrange(h)
        e = rng.randint(a + 1, h)
        found = rule.output(Rows(a, e - a, a, e))
        pads = rule.padding(a, e)
        here = [[a - pads[0] + stride * j + t for t in range(reach)] for j in range((e - a + sum(pads) - reach) // stride + 1)]
        whole = [[stride * r - top + t for t in range(reach)] for r in range(rule.whole)]
        if found is None:
            continue
        assert found.count == len(here)
        for r in range(found.low, found.high):
            assert here[r - found.start] == whole[r] and all(a <= i < e for i in whole[r] if 0 <= i < h)
            right += 1
        low = rng.randrange(rule.whole)
        high = rng.randint(low + 1, rule.whole)
        need = rule.need(low, high)
        assert all(need[0] <= i < need[1] for row in whole[low:high] for i in row if 0 <= i < h)
    assert right > 100


@needs_runtime
def test_a_chain_in_bands_is_smaller_as_predicted_and_has_every_bit(store):
    found = split(load(store(chain())), max_extra_macs="20%", measure="required")
    assert found.verification is not None and found.model is not None
    assert found.verification.bitwise_identical and not found.verification.failures
    assert found.verification.optimized_bytes == found.model.predicted_bytes < 0.7 * found.source.predicted_bytes
    (note,) = (note for note in found.verification.notes if note.startswith("latency of a run"))
    taken = found.verification.details["latency"]
    assert [row["threads"] for row in taken] == sorted({1, min(4, os.cpu_count() or 1)})
    assert all(f"{row['split_seconds'] / row['given_seconds']:.2f}x with {row['threads']} thread" in note for row in taken)
    # Joined values are compared beside those of nodes that run whole.
    compared, all_of_them = map(int, re.match(r"(\d+) of (\d+) values", found.verification.compared).groups())
    assert 0 < compared < all_of_them


@needs_runtime
@pytest.mark.parametrize("level", ["none", "basic", "extended"])
@pytest.mark.parametrize("opset", [9, 17])
def test_files_in_bands_give_the_same_bits(store, level, opset):
    """Told by a plain session too, and with ranges as attributes in operator sets of before 10."""
    one = load(store(chain(opset)), level)
    made = in_bands(one, Region(0, len(one.program) - 1, 3))
    assert "Slice" in {node.op for node in made.graph.nodes}
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 3, 48, 40)).astype(np.float32)}
    assert outputs(made.serialized(), feeds) == outputs(one.serialized(), feeds)


@needs_runtime
@pytest.mark.parametrize("kept", [False, True])
def test_several_operands_and_results(store, kept):
    """A residual, a join of channels, one number for a row of all, two results, padding left to the runtime."""
    nodes = [
        conv("x", "a", "w0"), helper.make_node("Sigmoid", ["a"], ["b"], "sigmoid"), helper.make_node("Mul", ["a", "b"], ["c"], "mul"),
        helper.make_node("Conv", ["c", "w1"], ["d"], "same", auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("AveragePool", ["c"], ["e"], "average", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1),
        helper.make_node("Concat", ["d", "e"], ["f"], "concat", axis=1),
        helper.make_node("Mul", ["f", "g"], ["y"], "gate"),
    ]  # fmt: skip
    weights = [weight("w0", 6, 3, 3, 3), weight("w1", 5, 6, 3, 3, seed=1)]
    inputs = [value("x", [1, 3, 32, 24]), value("g", [1, 11, 1, 1])]
    one = load(store(model(nodes, inputs, [value("y", None), value("c", None)], weights)), "none")
    made = in_bands(one, Region(0, len(nodes) - 1, 4, kept=kept))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((1, 3, 32, 24)).astype(np.float32), "g": rng.standard_normal((1, 11, 1, 1)).astype(np.float32)}
    assert outputs(made.serialized(), feeds) == outputs(one.serialized(), feeds)
    assert one.structure(made).relation


@needs_runtime
def test_integer_convolutions_in_bands(store):
    rng = np.random.default_rng(1)
    numbers = [
        numpy_helper.from_array(rng.integers(-100, 100, (24, 16, 3, 3)).astype(np.int8), "w"),
        *(numpy_helper.from_array(np.float32(v), n) for n, v in (("xs", 0.02), ("ws", 0.01), ("ys", 0.4))),
        numpy_helper.from_array(np.uint8(7), "xz"), numpy_helper.from_array(np.int8(0), "wz"), numpy_helper.from_array(np.uint8(120), "yz"),
    ]  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], "q", pads=[1, 1, 1, 1], strides=[2, 2])
    proto = model([node], [value("x", [2, 16, 30, 20], TensorProto.UINT8)], [value("y", None, TensorProto.UINT8)], numbers)
    one = load(store(proto), "none")
    made = in_bands(one, Region(0, 0, 5))
    feeds = {"x": rng.integers(0, 256, (2, 16, 30, 20)).astype(np.uint8)}
    assert outputs(made.serialized(), feeds) == outputs(one.serialized(), feeds)


@needs_runtime
def test_the_run_is_the_judge(store):
    """Long sums of floats may be added in another sequence for fewer pixels: then the split is refused, and only then."""
    told = {True: 0, False: 0}
    for seed in range(6):
        rng = random.Random(seed)
        c, o, h = rng.choice((3, 17, 24, 40)), rng.choice((4, 12, 24)), rng.choice((12, 20))
        weights = [weight("w", o, c, 3, 3, seed=seed)]
        one = load(store(model([conv("x", "y", "w", dilations=[2, 2], pads=(2, 2, 2, 2))], [value("x", [1, c, h, h])], [value("y", None)], weights)), "none")
        try:
            made = in_bands(one, Region(0, 0, 3))
        except Refused as error:
            assert "has other bits" in str(error)
            told[False] += 1
            continue
        feeds = {"x": np.random.default_rng(seed).standard_normal((1, c, h, h)).astype(np.float32)}
        assert outputs(made.serialized(), feeds) == outputs(one.serialized(), feeds)
        told[True] += 1
    assert told[True]  # how many are refused depends on the machine


@needs_runtime
def test_another_model_is_refused_by_the_judge(store):
    def one(seed: int):
        proto = model([conv("x", "y", "w")], [value("x", [1, 3, 8, 8])], [value("y", None)], [weight("w", 4, 3, 3, 3, seed=seed)])
        return load(store(proto, f"{seed}.onnx"), "none")

    with pytest.raises(Refused, match=r"'y' has other bits with 1 thread:"):
        judge(one(0), one(1))


@needs_runtime
def test_the_node_that_gives_other_bits_is_found(store):
    """Not those that read its result."""
    one = load(store(chain()), "none")
    laid = lay_out(one.splittable(), range(len(one.program)), [Region(0, 4, 3)])
    made = one.apply_split(laid)
    assert culprits(one, made, laid) == ()

    def other(graph) -> None:
        node = [n for n in graph.node if n.op_type == "Conv" and "w1" in n.input][1]
        old = next(i for i in graph.initializer if i.name == "w1")
        graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(old) * np.float32(1.5), "other"))
        node.input[1] = "other"

    assert culprits(one, changed(made, other), laid) == ((2, "rows"),)


@needs_runtime
def test_what_gives_other_bits_runs_whole_and_the_rest_is_looked_at_anew(store, monkeypatch):
    """As if ONNX Runtime added otherwise in bands of the second convolution, without which no bands help: it is tried once."""
    refused = []

    def judged(one, made, joined=()):
        refused.append(sum("w1" in node.inputs for node in made.graph.nodes))
        raise Refused("other bits")

    monkeypatch.setattr("peakmem_onnx.splitwrite.judge", judged)
    monkeypatch.setattr("peakmem_onnx.splitwrite.culprits", lambda one, made, laid: ((2, "rows"), (2, "channels")))
    found = split(load(store(chain()), "none"), max_extra_macs="20%", measure=False, time_limit=None)
    assert found.model is None and found.reason == "other bits"
    assert len(refused) == 1 and refused[0] > 1
    assert found.search is not None and not any(r.first <= 2 <= r.last for p in found.search.ordered for r in p.regions)


@needs_runtime
def test_what_cannot_run_in_bands_says_why(store):
    gate = value("gate", [16, 1])
    nodes = [
        conv("x", "a", "w"), helper.make_node("Mul", ["a", "gate"], ["b"], "rows"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], "pool"), helper.make_node("Concat", ["c", "c"], ["y"], "concat", axis=2),
        helper.make_node("Conv", ["x", "given"], ["z"], "given"), helper.make_node("Transpose", ["a"], ["t"], "turned", perm=[0, 1, 3, 2]),
    ]  # fmt: skip
    inputs = [value("x", [1, 3, 16, 16]), gate, value("given", [4, 3, 1, 1])]
    one = load(store(model(nodes, inputs, [value(n, None) for n in "yzt"], [weight("w", 4, 3, 3, 3)])), "none")
    source = one.splittable()
    place = {node.name: node.index for node in one.graph.nodes}

    def why(name: str, axis: str) -> str:
        found = source.rule(place[name], axis)
        return found.split(") ", 1)[1] if isinstance(found, str) else ""

    assert why("conv_a", "rows") == why("conv_a", "channels") == why("pool", "channels") == why("rows", "channels") == ""
    assert why("rows", "rows") == "has an operand with rows that cannot be cut"
    assert why("pool", "rows") == "looks at all rows"
    assert why("concat", "rows") == "joins along another axis than channels"
    assert why("concat", "channels") == "joins along its channels"
    assert why("given", "rows") == why("given", "channels") == "reads another value, whose rows are not those of its data"
    assert why("turned", "rows") == "has no known map of rows"
    with pytest.raises(Refused, match="is not split yet"):
        load(store(chain()), deploy="portable").splittable()


@needs_runtime
def test_blocks_of_channels_in_bands(store):
    """At the highest level ONNX Runtime keeps blocks of channels together, where the machine has such kernels: rows are cut and joined through views."""
    one = load(store(wide()), "all")
    source = one.splittable()
    if not source.blocked:
        pytest.skip("ONNX Runtime has no blocked kernels on this machine")
    assert source.block in (4, 8, 16)
    last = max(v for v in range(len(one.program)) if not isinstance(source.rule(v, "rows"), str))
    made = in_bands(one, Region(0, last, 3))
    assert "Reshape" in {node.op for node in made.graph.nodes} or not any(name in source.blocked for name in one.graph.nodes[last].outputs)
    assert made.predicted_bytes < one.predicted_bytes
    assert one.structure(made).relation
    inner = in_bands(one, Region(1, 2, 4))  # blocked at both ends
    assert one.structure(inner).relation
    assert sum(node.op == "Reshape" for node in inner.graph.nodes) > 8


def changed(made, edit):
    """A split file with one thing made otherwise, of the same shapes."""
    proto = type(made.proto)()
    proto.CopyFrom(made.proto)
    edit(proto.graph)
    return made._with(proto, made.facts)


def swapped(graph) -> None:
    node = next(n for n in graph.node if n.op_type == "Concat")
    first, second = node.input[0], node.input[1]
    node.input[0], node.input[1] = second, first


def moved(graph) -> None:
    """All slices but the first begin one row earlier, and end so."""
    node = [n for n in graph.node if n.op_type == "Slice"][1]
    for k in (1, 2):
        old = next(i for i in graph.initializer if i.name == node.input[k])
        graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(old) - 1, f"moved{k}"))
        node.input[k] = f"moved{k}"


def exchanged(graph) -> None:
    """Padding at the other side."""
    node = next(n for n in graph.node if n.op_type == "Conv" and len({*(pads := next(a for a in n.attribute if a.name == "pads").ints)}) > 1)
    pads = next(a for a in node.attribute if a.name == "pads").ints
    pads[0], pads[2] = pads[2], pads[0]


def weights(graph) -> None:
    convolutions = [n for n in graph.node if n.op_type == "Conv"]
    old = next(i for i in graph.initializer if i.name == convolutions[-1].input[1])
    graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(old) * np.float32(2), "other"))
    convolutions[-1].input[1] = "other"


def strides(graph) -> None:
    next(a for n in graph.node if n.op_type == "MaxPool" for a in n.attribute if a.name == "kernel_shape").ints[0] = 2


def doubled(graph) -> None:
    node = next(n for n in graph.node if n.op_type == "Concat")
    node.input[1] = node.input[0]


@needs_runtime
def test_bands_are_recognised_and_wrong_ones_are_not(store):
    one = load(store(chain()), "none")
    made = in_bands(one, Region(0, 4, 3))
    told = one.structure(made)
    assert not told.difference and told.relation.startswith("the first one split: 5 nodes (conv_a, relu, conv_c, ...) in 3 bands of rows, ")
    for edit in (swapped, moved, exchanged, weights, strides, doubled):
        assert one.structure(changed(made, edit)).difference, edit.__name__
    found = peakmem.verify(one, made)
    assert found.bitwise_identical and found.structure == told.relation


@needs_runtime
def test_a_row_alone_is_recognised(store):
    """Bands of one row, beside an operand that has one row for all."""
    nodes = [helper.make_node("Mul", ["x", "g"], ["a"], "gate"), conv("a", "y", "w")]
    proto = model(nodes, [value("x", [1, 3, 6, 8]), value("g", [1, 3, 1, 1])], [value("y", None)], [weight("w", 4, 3, 3, 3)])
    one = load(store(proto), "none")
    assert one.structure(in_bands(one, Region(0, 1, 6))).relation


@needs_runtime
def test_a_real_model_in_bands():
    path = SHARED / "light_squeezenet.onnx"
    if not path.exists():
        pytest.skip("the shared models are not here (shared/data/onnx)")
    one = load(path)
    made = in_bands(one, Region(0, 2, 3), Region(4, 6, 6), Region(7, 10, 3))
    assert made.predicted_bytes < 0.5 * one.predicted_bytes


@needs_runtime
def test_external_weights_are_never_replaced_and_a_split_may_go_anywhere(tmp_path):
    """A split has its weights inside; the file of those it was made from stays as it is."""
    kind = TensorProto.FLOAT
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("f"), name)
        for name, shape in (("w1", (16, 3, 3, 3)), ("w2", (4, 16, 3, 3)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w2"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    ends = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", [1, 3, 64, 64]), ("y", [1, 4, 32, 32]))]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    before = (tmp_path / "m.data").read_bytes()
    source = peakmem.load(tmp_path / "m.onnx")
    found = peakmem.split(source, regions=[Region(0, 1, 2)], measure=False)
    assert found.model is not None, found.reason
    for made in (found.model, source):
        with pytest.raises(UsageError, match="holds weights of the input"):
            made.save(tmp_path / "m.data", force=True)
    assert (tmp_path / "m.data").read_bytes() == before
    (tmp_path / "sub").mkdir()
    found.model.save(tmp_path / "sub" / "split.onnx")
    assert peakmem.verify(source, peakmem.load(tmp_path / "sub" / "split.onnx")).identical
