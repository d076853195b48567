"""The model of TFLite Micro's planner, by hand and against the interpreter."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from peakmem.arena import Item, lifetimes, liveness_peak
from peakmem.model import scheduled_timeline, timeline
from peakmem.report.data import arena as drawn_arena
from peakmem_tflite.arena import Allocation, allocations, head, planner_temp, simulate
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.planning import by_subgraph
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import permute


def buffer(size, first, last, tensor=-1):
    return Allocation(tensor, 0, -1 if tensor >= 0 else 0, size, first, last)


def test_largest_first_and_last_listed_first_among_equals():
    size, offsets = simulate([buffer(16, 0, 1), buffer(32, 0, 1), buffer(16, 0, 1)])
    assert (size, offsets) == (64, [48, 0, 32])


def test_first_gap_that_holds_it():
    # 64 at 0 in steps 0..1, 48 at 0 in 2..3 and at 64 what overlaps both; then 16 fits behind the 48.
    size, offsets = simulate([buffer(64, 0, 1), buffer(48, 2, 3), buffer(32, 1, 2), buffer(16, 2, 2)])
    assert offsets == [0, 0, 64, 48]
    assert size == 96


def test_planned_offsets_are_obstacles():
    size, offsets = simulate([buffer(16, 0, 0, tensor=0), buffer(32, 0, 0, tensor=1)], [16, -1])
    assert (size, offsets) == (64, [16, 32])
    assert simulate([]) == (0, [])


def test_lifetimes_of_a_chain(tiny):
    graph = read(tiny.encode(tiny.diamond()))
    found = {a.tensor: (a.first, a.last, a.size) for a in allocations(graph, "reference")}
    assert found[0] == (0, 3, 32)  # the input dies at its last reader
    last = len(graph.subgraphs[0].tensors) - 1
    assert found[last] == (7, 7, 48)


def test_subgraphs_are_planned_in_line(tiny):
    graph = read(tiny.encode(tiny.branching()))
    found = {a.tensor: (a.first, a.last) for a in allocations(graph, "reference")}
    # Scope 1 is the IF, 2 and 4 the entries of its branches, 3 and 5 their operators, 6 the ADD.
    assert found[1] == (0, 6)
    assert found[3] == (1, 6)
    assert found[5] == (2, 3)
    assert found[9] == (4, 4)  # an input that its branch never reads
    assert found[10] == (5, 5)


def test_scratch_of_reference_kernels(tiny):
    file = tiny.File(
        [
            tiny.Sub(
                [tiny.T((1, 4, 4, 6), "INT8"), tiny.T((2,), "INT32", [1, 2]), tiny.T((1, 1, 1, 6), "INT8")],
                [tiny.Op("MEAN", (0, 1), (2,))],
                (0,),
                (2,),
            )
        ]
    )
    model = TfliteModel.from_bytes(tiny.encode(file))
    assert model.program.statements[0].workspace == 32 + 16 + 16  # six sums, an index of four, two axes
    assert model.predicted_bytes == 96 + 16 + 64


@pytest.mark.parametrize("seed", range(60))
def test_live_peak_of_the_program_is_that_of_the_arena(tiny, orders, seed):
    """In any order the program's peak is what a perfect arena needs, and the greedy one is no smaller."""
    rng = random.Random(seed)
    file = [tiny.streaming, tiny.branching, lambda: tiny.random_file(seed, 14)][seed % 3]()
    model = TfliteModel.from_bytes(tiny.encode(file))
    drawn = orders(model.program, rng)
    buffers = allocations(model.graph, "reference", by_subgraph(model.mapped, drawn))
    peak = liveness_peak([Item(str(i), b.size, b.first, b.last) for i, b in enumerate(buffers)])
    assert max(scheduled_timeline(model.program, drawn).peak, sum(b.size for b in buffers if b.first == 0)) == peak
    assert liveness_peak(lifetimes(model.program, drawn)) == scheduled_timeline(model.program, drawn).peak
    assert simulate(buffers)[0] >= peak


def test_predicted_is_measured(tiny, orders, tflm):
    """Random files, random orders: the interpreter records the head that the model predicts."""
    from peakmem_tflite.measure import heads

    models = []
    for seed in range(12):
        rng = random.Random(seed)
        file = [tiny.diamond, tiny.streaming, tiny.branching][seed]() if seed < 3 else tiny.random_file(seed, 16)
        model = TfliteModel.from_bytes(tiny.encode(file))
        models.append(model)
        drawn = by_subgraph(model.mapped, orders(model.program, rng))
        models.append(TfliteModel.from_bytes(permute(model.graph, drawn)))
        assert models[-1].predicted_bytes == head(model.graph, "reference", drawn)
    assert heads([m.graph for m in models]) == [m.predicted_bytes for m in models]


def scratch_files(tiny):
    """Models of one operator whose kernel requests scratch (the third requests none), by a name."""
    from flatbuffers import flexbuffers

    T, Op, Sub = tiny.T, tiny.Op, tiny.Sub
    axis = T((2,), "INT32", [1, 2])
    for op, kind in (("MEAN", "INT8"), ("SUM", "INT16"), ("MEAN", "FLOAT32"), ("REDUCE_MAX", "INT8"), ("REDUCE_MIN", "FLOAT32"),
                     ("REDUCE_ALL", "BOOL")):  # fmt: skip
        tensors = [T((2, 3, 4, 50), kind), axis, T((2, 1, 1, 50), kind)]
        yield f"{op} {kind}", Sub(tensors, [Op(op, (0, 1), (2,))], (0,), (2,))
    deep = [T((2, 2, 2, 2, 2, 2), "INT8"), T((5,), "INT32", [0, 1, 2, 3, 4]), T((1, 1, 1, 1, 1, 2), "INT8")]
    yield "MEAN rank 6", Sub(deep, [Op("MEAN", (0, 1), (2,))], (0,), (2,))
    five = [T((1, 5)) for _ in range(6)]
    yield "ADD_N", Sub(five, [Op("ADD_N", (0, 1, 2, 3, 4), (5,))], (0, 1, 2, 3, 4), (5,))
    ones = np.ones
    svdf = [T((2, 6)), T((8, 6), data=ones((8, 6))), T((8, 3), data=ones((8, 3))), T((8,), data=ones(8)),
            T((2, 24), variable=True), T((2, 8))]  # fmt: skip
    yield "SVDF float", Sub(svdf, [Op("SVDF", (0, 1, 2, 3, 4), (5,))], (0,), (5,))
    pad = [T((1, 4, 4, 2)), T((4, 2), "INT32", [[0, 0], [1, 1], [1, 1], [0, 0]]), T((1, 6, 6, 2))]
    yield "MIRROR_PAD", Sub(pad, [Op("MIRROR_PAD", (0, 1), (2,))], (0,), (2,))
    for kind in ("INT8", "INT4"):
        n = 1 if kind == "INT8" else 2
        full = [T((1, 10), "INT8"), T((6, 10), kind, data=ones(60 // n)), T((1, 6), "INT8")]
        yield f"FULLY_CONNECTED {kind}", Sub(full, [Op("FULLY_CONNECTED", (0, 1, -1), (2,))], (0,), (2,))
        conv = [T((1, 4, 4, 2), "INT8"), T((4, 2, 2, 2), kind, data=ones(32 // n)), T((4,), "INT32", data=ones(4)),
                T((1, 4, 4, 4), "INT8")]  # fmt: skip
        yield f"CONV_2D {kind}", Sub(conv, [Op("CONV_2D", (0, 1, 2), (3,))], (0,), (3,))
        wise = [T((1, 4, 4, 2), "INT8"), T((1, 2, 2, 2), kind, data=ones(8 // n)), T((2,), "INT32", data=ones(2)),
                T((1, 4, 4, 2), "INT8")]  # fmt: skip
        yield f"DEPTHWISE_CONV_2D {kind}", Sub(wise, [Op("DEPTHWISE_CONV_2D", (0, 1, 2), (3,))], (0,), (3,))
    for kind in ("FLOAT32", "INT8", "INT16"):
        back = [T((4,), "INT32", [1, 4, 4, 3]), T((3, 2, 2, 2), "INT8" if kind == "INT16" else kind, data=ones(24)),
                T((1, 4, 4, 2), kind), T((1, 4, 4, 3), kind)]  # fmt: skip
        yield f"TRANSPOSE_CONV {kind}", Sub(back, [Op("TRANSPOSE_CONV", (0, 1, 2), (3,))], (2,), (3,))
    options = flexbuffers.Builder()
    with options.Map():
        for key, value in (("max_detections", 5), ("max_classes_per_detection", 1), ("num_classes", 3)):
            options.Key(key)
            options.Int(value)
        for key in ("nms_score_threshold", "nms_iou_threshold", "y_scale", "x_scale", "h_scale", "w_scale"):
            options.Key(key)
            options.Float(0.5)
    boxes = [T((1, 7, 4)), T((1, 7, 4)), T((7, 4), data=ones((7, 4))), T((1, 5, 4)), T((1, 5)), T((1, 5)), T((1,))]
    op = Op("TFLite_Detection_PostProcess", (0, 1, 2), (3, 4, 5, 6), custom=True, custom_options=bytes(options.Finish()))
    yield "detection", Sub(boxes, [op], (0, 1), (3, 4, 5, 6))


def test_scratch_is_measured(tiny, tflm):
    """At an operator alone in its model the head is what it touches plus its scratch, so the head shows the scratch."""
    from peakmem_tflite.measure import heads

    names, models = [], []
    for name, sub in scratch_files(tiny):
        names.append(name)
        models.append(TfliteModel.from_bytes(tiny.encode(tiny.File([sub]))))
    measured = dict(zip(names, heads([m.graph for m in models])))
    assert measured == {name: m.predicted_bytes for name, m in zip(names, models)}
    without = {"FULLY_CONNECTED INT8", "CONV_2D INT8", "DEPTHWISE_CONV_2D INT8", "TRANSPOSE_CONV FLOAT32"}
    assert {name for name, m in zip(names, models) if not m.program.statements[0].workspace} == without


def test_planner_temp_grows_with_tensors(tiny):
    graph = read(tiny.encode(tiny.diamond()))
    buffers = allocations(graph, "reference")
    assert planner_temp(graph, buffers) == 16 * 12 + 8 + 32 * graph.tensor_count + 40 * len(buffers)
    assert planner_temp(graph, buffers, pointer=4) < planner_temp(graph, buffers)


@pytest.mark.parametrize("seed", range(30))
def test_the_places_told_fill_the_head_and_share_no_byte(tiny, seed):
    """What a report draws: every block while its buffer is resident, the highest end at the head that is predicted."""
    file = [tiny.streaming, tiny.diamond, lambda: tiny.random_file(seed, 14)][seed % 3]()
    model = TfliteModel.from_bytes(tiny.encode(file))
    found = drawn_arena(timeline(model.program), model.arena(), 10**6)
    assert (found.height, found.unplaced, found.left_out) == (model.predicted_bytes, 0, 0)
    for step in range(found.steps):
        here = sorted((b.offset, b.offset + b.size) for b in found.bars if b.begin <= step < b.end)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(here))


def test_what_lies_in_other_subgraphs_is_counted_as_not_told(tiny):
    model = TfliteModel.from_bytes(tiny.encode(tiny.branching()))
    found = drawn_arena(timeline(model.program), model.arena())
    assert found.unplaced == 1  # the IF, whose branches need room of their own
    assert found.height <= model.predicted_bytes
