"""Tensors inside those that they are joined to or cut from."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import peakmem
import pytest
from peakmem.model import InputError
from peakmem.ordering import order_program
from peakmem_tflite.joins import COPIED, blocks, families
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.overlays import Permit
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import with_plan
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_rewrite

sys.path.append(str(Path(__file__).parent))  # for the helpers of this test
import overlaid
from trees import add_operator, add_tensor, new, save

JOINS = Permit(joins=True)


def load(data: bytes, **settings) -> TfliteModel:
    return TfliteModel.from_bytes(data, settings=Settings(**{"named": True, "steps": 3, "join_in_place": True, **settings}))


@pytest.mark.parametrize("kind", sorted(COPIED))
def test_blocks_copied_onto_themselves(kind, tflm):
    """Every declared element type on TFLite Micro: the bits are those of tensors apart."""
    rows = []
    for counts in ((1, 3), (3, 1), (2, 2), (4, 1, 2)):
        extents = [(1, n, 16) for n in counts]
        data = overlaid.single("CONCATENATION", [kind] * len(counts), extents, kind, (1, sum(counts), 16))
        graph = read(data)
        found = blocks(graph, 0, 0, graph.subgraphs[0].operators[0])
        assert len(found) == len(counts)
        rows.append({"data": data, "planned": with_plan(graph, [*(at for _, _, at in found), 0]), "inputs": len(counts)})
    for low, high in ((0, 2), (1, 5), (3, 4)):
        numbers = [np.array(v, np.int32) for v in ([0, low, 0], [1, high, 16], [1, 1, 1])]
        data = overlaid.single("STRIDED_SLICE", [kind], [(1, 5, 16)], kind, (1, high - low, 16), numbers)
        graph = read(data)
        ((_, _, at),) = blocks(graph, 0, 0, graph.subgraphs[0].operators[0])
        rows.append({"data": data, "planned": with_plan(graph, [0, at, -1, -1, -1]), "inputs": 1})
    answers = overlaid.run(rows)
    assert [answer["error"] for answer in answers] == [""] * len(rows)
    assert all(answer["same"] and answer["varied"] for answer in answers)


class Net:
    """A model of floats, operator by operator."""

    def __init__(self, *extents) -> None:
        self.model = new(
            "Model", Version=3, OperatorCodes=[], Buffers=[new("Buffer")], Description="made by a test",
            Subgraphs=[new("SubGraph", Tensors=[], Operators=[], Name="main")],
        )  # fmt: skip
        self.graph = self.model.Subgraphs[0]
        self.graph.Inputs = self.graph.Outputs = np.array([], np.int32)
        self.inputs = [self.tensor(e) for e in extents]

    def tensor(self, extents) -> int:
        return add_tensor(self.model, new("Tensor", Type=0), extents)

    def shape(self, t: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.graph.Tensors[t].Shape)

    def add(self, op: str, inputs, extents, options=None) -> int:
        y = self.tensor(extents)
        self.graph.Operators.append(add_operator(self.model, op, inputs, [y], options))
        return y

    def tanh(self, x: int) -> int:
        return self.add("TANH", [x], self.shape(x))

    def sum(self, x: int) -> int:
        """Which no output can lie on."""
        axes = add_tensor(self.model, None, [1], np.array([1], np.int32))
        return self.add("SUM", [x, axes], (1, 1, *self.shape(x)[2:]), new("ReducerOptions", KeepDims=True))

    def join(self, inputs, axis: int) -> int:
        extents = list(self.shape(inputs[0]))
        extents[axis] = sum(self.shape(t)[axis] for t in inputs)
        return self.add("CONCATENATION", inputs, extents, new("ConcatenationOptions", Axis=axis))

    def cut(self, x: int, begin, end, *, begin_mask: int = 0) -> int:
        numbers = [add_tensor(self.model, None, [len(v)], np.array(v, np.int32)) for v in (begin, end, [1] * len(begin))]
        low = [0 if begin_mask >> k & 1 else b for k, b in enumerate(begin)]
        return self.add("STRIDED_SLICE", [x, *numbers], [e - b for b, e in zip(low, end)], new("StridedSliceOptions", BeginMask=begin_mask))

    def done(self, *outputs: int) -> bytes:
        self.graph.Inputs, self.graph.Outputs = np.array(self.inputs, np.int32), np.array(outputs, np.int32)
        return save(self.model)


def joined(rows=(4, 12), axis=1, width=16) -> bytes:
    net = Net([1, rows[0], 1, width], [1, rows[1], 1, width])
    a, b = (net.tanh(x) for x in net.inputs)
    whole = net.join([a, b], axis)
    small = net.cut(whole, [0, rows[0], 0, 0], [1, sum(rows), 1, width])
    return net.done(net.sum(small), net.sum(whole))


def test_what_lies_inside():
    graph = read(joined())
    (family,) = families(graph)
    assert (family.whole, family.members, family.parts) == (4, {2: 0, 3: 256, 8: 256}, ((0, 256), (256, 1024)))
    names = [b.name for b in load(joined()).program.buffers if "[" in b.name]
    assert names == ["new4 [0:256]", "new4 [256:1024]"]


@pytest.mark.parametrize("rows", [(4, 12), (1, 15), (13, 3)])
def test_measured(rows, tflm):
    data = joined(rows)
    assert families(read(data), [(4, 9)]) == ()  # the join might be overwritten
    model = load(data)
    ordering = order_program(model.program)
    made = model.apply(model.schedule(ordering))
    apart = load(data, join_in_place=False)
    assert made.predicted_bytes == ordering.lower_bound < apart.apply(apart.schedule(order_program(apart.program))).predicted_bytes
    found = apart.verify(made)
    assert (found.failures, found.bitwise_identical, found.optimized_bytes) == ((), True, made.predicted_bytes)


def test_what_lies_in_no_block():
    """Slices along an inner axis, joins along an inner axis, steps, an input twice, an input of the file, blocks that are not aligned."""
    net = Net([2, 4, 16], [2, 4, 16])
    a, b = (net.tanh(x) for x in net.inputs)
    inner = net.join([a, b], 1)
    assert families(read(net.done(net.tanh(inner)))) == ()
    net = Net([1, 4, 16])
    a = net.tanh(net.inputs[0])
    assert families(read(net.done(net.tanh(net.join([a, a], 1))))) == ()
    net = Net([1, 4, 16], [1, 4, 16])
    assert families(read(net.done(net.tanh(net.join(net.inputs, 1))))) == ()
    net = Net([1, 3, 1], [1, 4, 1])
    a, b = (net.tanh(x) for x in net.inputs)
    (family,) = families(read(net.done(net.tanh(net.join([b, a], 1)))))
    assert family.members == {3: 0, 2: 16}
    net = Net([1, 3, 1], [1, 4, 1])
    a, b = (net.tanh(x) for x in net.inputs)
    assert families(read(net.done(net.tanh(net.join([a, b], 1))))) == ()
    for begin, end, wanted in (([0, 1, 0], [1, 3, 16], 64), ([0, 1, 4], [1, 2, 12], 80), ([0, 1, 4], [1, 3, 12], None), ([0, -2, 0], [1, 4, 16], 128)):
        net = Net([1, 4, 16])
        a = net.tanh(net.inputs[0])
        cut = net.cut(a, begin, end) if begin[1] >= 0 else net.cut(a, [0, 2, 0], end)
        graph = read(net.done(net.tanh(cut)))
        found = [row for i, op in enumerate(graph.subgraphs[0].operators) for row in blocks(graph, 0, i, op)]
        assert [at for _, _, at in found] == ([] if wanted is None else [wanted]), begin


def test_plans_that_are_refused():
    """Blocks beside their place, or where that was not permitted."""
    graph = read(joined())
    plan = [1024, 1280, 0, 256, 0, -1, -1, -1, 256, -1, 1024, -1, 1088]
    check_rewrite(graph, with_plan(graph, plan), {}, "reference", JOINS)
    for wrong in ({3: 272}, {8: 0}, {2: 16}, {10: 512}):
        bad = [wrong.get(t, at) for t, at in enumerate(plan)]
        with pytest.raises(InputError, match="overlap in the arena"):
            check_rewrite(graph, with_plan(graph, bad), {}, "reference", JOINS)
    for permitted in (None, Permit(inputs=True)):
        with pytest.raises(InputError, match="overlap in the arena"):
            check_rewrite(graph, with_plan(graph, plan), {}, "reference", permitted)


def random_net(seed: int) -> bytes:
    rng = random.Random(seed)
    net = Net([1, 4, 16], [1, 8, 16])
    live = [net.tanh(x) for x in net.inputs]
    for _ in range(rng.randint(4, 10)):
        x = rng.choice(live[-4:])
        rows = net.shape(x)[1]
        what = rng.random()
        if what < 0.4 and rows <= 24:
            live.append(net.join([x, rng.choice(live)] if rng.random() < 0.5 else [rng.choice(live), x, rng.choice(live)], 1))
        elif what < 0.7 and rows > 2:
            low = rng.randrange(rows - 1)
            live.append(net.cut(x, [0, low, 0], [1, rng.randint(low + 1, rows), 16], begin_mask=rng.choice((0, 1, 4))))
        else:
            live.append(net.tanh(x))
    read_ = {int(t) for op in net.graph.Operators for t in op.Inputs}
    return net.done(*[t for t in live if t not in read_])


def test_random_nets(tflm):
    """Never larger than apart, and as the bound says; head and bits as the interpreter has them."""
    gained = 0
    for seed in range(14):
        data = random_net(seed)
        apart = load(data, join_in_place=False)
        without = apart.apply(apart.schedule(order_program(apart.program)))
        model = load(data)
        made = model.apply(model.schedule(order_program(model.program)))
        assert made.predicted_bytes <= without.predicted_bytes
        gained += made.predicted_bytes < without.predicted_bytes
        found = apart.verify(made)
        assert (found.failures, found.bitwise_identical, found.optimized_bytes) == ((), True, made.predicted_bytes), seed
    assert gained >= 5


def test_twice_and_inside_are_not_planned_together(tiny):
    from peakmem.model import Expansion

    model = load(joined())
    with pytest.raises(InputError, match="leave --join-in-place out"):
        model.enlarged(Expansion(model.program, tuple(range(len(model.program))), tuple(range(len(model.program.buffers)))))


@pytest.mark.parametrize(("name", "size"), [("mww2_vad", 672), ("mww2_okay_nabu", 1920), ("mww2_hey_mycroft", 1920)])
def test_streaming_models(name, size, shared, tflm):
    """State that is read, joined with what is new, and cut again."""
    (path,) = [p for p in shared if p.stem == name]
    result = peakmem.optimize(peakmem.load(path, join_in_place=True, target="reference", steps=20), measure="required")
    assert result.model.predicted_bytes == result.lower_bound == size
    assert result.measurement.verification.failures == ()
