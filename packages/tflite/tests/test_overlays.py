"""Outputs on top of dying inputs: what the kernels of TFLite Micro do with them, what plans make of that, what is refused."""

from __future__ import annotations

import random
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import peakmem
import pytest
from peakmem.model import InputError, UsageError, scheduled_timeline
from peakmem.ordering import order_program
from peakmem_tflite.frontend import frontend
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.overlays import PERMITTED, REPLACED, WIDTHS, Permit, kernel_permits, overlays, pairs, permit
from peakmem_tflite.reader import BYTES, read
from peakmem_tflite.rewrite import with_plan
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_rewrite, overlaps

sys.path.append(str(Path(__file__).parent))  # for the helpers of this test
import overlaid
from trees import load as load_tree
from trees import save

SHAPES = [(1,), (7,), (3, 5), (2, 3, 5), (1, 5, 7, 3), (1, 4, 4, 16), (1, 9, 1, 67)]
EVERYTHING = Permit(inputs=True)


def load(data: bytes, **settings) -> TfliteModel:
    return TfliteModel.from_bytes(data, settings=Settings(**{"named": True, "steps": 3, **settings}))


def optimized(model: TfliteModel) -> TfliteModel:
    return model.apply(model.schedule(order_program(model.program)))


def forced(op, kinds, extents, result, shape, at, *, constants=(), shift=0):
    """A model of one operator, and the same with the output on input ``at``."""
    data = overlaid.single(op, kinds, extents, result, shape, constants)
    graph = read(data)
    sizes = [graph.subgraphs[0].tensors[i].size for i in range(len(kinds) + 1)]
    plan = overlaid.offsets(sizes, at, shift) + [-1] * len(constants)
    return {"data": data, "planned": with_plan(graph, plan), "inputs": len(kinds)}


def rows(op: str, source: str, result: str):
    """The models of one declared pair of types: odd and even sizes, each input overwritten, the other one stretched or not."""
    rule = PERMITTED[op]
    for shape in SHAPES:
        n = int(np.prod(shape))
        if op == "RESHAPE":
            yield forced(op, [source], [shape], result, (n,), 0, constants=[np.array([n], np.int32)])
        elif op == "EXPAND_DIMS":
            yield forced(op, [source], [shape], result, (1, *shape), 0, constants=[np.array([0], np.int32)])
        elif op == "SQUEEZE":
            yield forced(op, [source], [(1, *shape)], result, tuple(x for x in shape if x > 1) if shape != (1,) else (), 0)
        elif op == "PRELU":
            yield forced(op, [source, source], [shape, shape[-1:]], result, shape, 0)
        elif op == "ADD_N":
            for at in range(3):
                yield forced(op, [source] * 3, [shape] * 3, result, shape, at)
        elif rule.inputs == (0, 1):
            for other in dict.fromkeys((shape, shape[-1:], (1,) * (len(shape) - 1) + shape[-1:], (1,))):
                yield forced(op, [source, source], [shape, other], result, shape, 0)
                yield forced(op, [source, source], [other, shape], result, shape, 1)
        else:
            yield forced(op, [source], [shape], result, shape, 0)


@pytest.mark.parametrize("op", sorted(PERMITTED))
def test_every_declared_kernel_gives_the_same_bits(op, tflm):
    """All that is declared is run, with the overlap forced by a plan, and the bits are those without."""
    jobs = [(types, row) for types in sorted(PERMITTED[op].types) for row in rows(op, *types)]
    found = overlaid.run([row for _, row in jobs])
    for types in PERMITTED[op].types:
        mine = [answer for (kind, _), answer in zip(jobs, found) if kind == types]
        assert len(mine) >= len(SHAPES)
        assert not [answer["error"] for answer in mine if answer["same"] is None], types
        assert all(answer["same"] for answer in mine), types
        # Comparing for equality, and numbers as truth values, gives nearly the same whatever the numbers are.
        assert any(answer["varied"] for answer in mine) or op in ("EQUAL", "NOT_EQUAL") or "INT32" in types, types
        assert WIDTHS[types[1]] <= WIDTHS[types[0]]
    assert {t for pair in PERMITTED[op].types for t in pair} <= WIDTHS.keys()


def test_the_table_speaks_of_elements_as_they_are():
    assert all(BYTES[kind] == width for kind, width in WIDTHS.items())
    assert all(library <= PERMITTED.keys() for library in REPLACED.values())


def test_one_tensor_as_both_operands(tflm):
    """x + x: element i is read twice before it is written."""
    jobs = []
    for op in ("ADD", "MUL", "SUB", "MAXIMUM", "SQUARED_DIFFERENCE"):
        for kind in ("FLOAT32", "INT8"):
            row = forced(op, [kind], [(3, 5)], kind, (3, 5), 0)
            tree = load_tree(row["data"])
            tree.Subgraphs[0].Operators[0].Inputs = np.array([0, 0], np.int32)
            data = save(tree)
            graph = read(data)
            assert kernel_permits(graph.subgraphs[0], graph.subgraphs[0].operators[0], 0, 1)
            jobs.append({"data": data, "planned": with_plan(graph, [0, 0]), "inputs": 1})
    assert [answer["same"] for answer in overlaid.run(jobs)] == [True] * len(jobs)


WRONG = [("QUANTIZE", "INT8", "INT16"), ("DEQUANTIZE", "INT8", "FLOAT32"), ("DEQUANTIZE", "INT16", "FLOAT32"), ("CAST", "INT8", "INT32"), ("CAST", "INT16", "FLOAT32")]


@pytest.mark.parametrize(("op", "source", "result"), WRONG)
def test_wider_elements_are_destroyed(op, source, result, tflm):
    """Rounded, both tensors have 16 bytes; the bits differ all the same, and such a plan is refused."""
    row = forced(op, [source], [(4,)], result, (4,), 0)
    (answer,) = overlaid.run([row])
    assert answer["same"] is False
    graph = read(row["data"])
    assert overlays(graph, 0, EVERYTHING) == {}
    with pytest.raises(InputError, match="overlap in the arena"):
        check_rewrite(graph, row["planned"], {}, "reference", EVERYTHING)


def test_only_the_first_byte_will_do(tflm):
    row = forced("QUANTIZE", ["FLOAT32"], [(2, 3, 11)], "INT8", (2, 3, 11), 0, shift=16)
    (answer,) = overlaid.run([row])
    assert answer["same"] is False
    with pytest.raises(InputError, match="overlap in the arena"):
        check_rewrite(read(row["data"]), row["planned"], {}, "reference", EVERYTHING)
    assert overlaps(read(forced("QUANTIZE", ["FLOAT32"], [(2, 3, 11)], "INT8", (2, 3, 11), 0)["planned"]), "reference", EVERYTHING) == ""


def net(tiny, kind="FLOAT32", *, later: bool = False, kept: bool = False):
    """x -> dense -> a -> RELU -> b -> dense -> y; ``later``: a is added to y in the end; ``kept``: a is an output."""
    T, Op = tiny.T, tiny.Op
    rng = np.random.default_rng(3)

    def weights(rows, columns):
        return T((rows, columns), kind, rng.integers(-9, 9, (rows, columns)) if kind == "INT8" else rng.standard_normal((rows, columns)), scale=0.1)

    tensors = [T((1, 8), kind), weights(400, 8), T((1, 400), kind, name="a"), T((1, 400), kind, name="b"), weights(400, 400), T((1, 400), kind, name="y")]
    operators = [Op("FULLY_CONNECTED", (0, 1, -1), (2,)), Op("RELU", (2,), (3,)), Op("FULLY_CONNECTED", (3, 4, -1), (5,))]
    outputs = [5]
    if later:
        tensors.append(T((1, 400), kind, name="z"))
        operators.append(Op("ADD", (2, 5), (6,)))
        outputs = [6]
    return tiny.File([tiny.Sub(tensors, operators, (0,), tuple(outputs + [2] * kept))])


def narrow(tiny, outputs=(3,), kind="INT8"):
    """The input is the largest tensor: dense, RELU, RELU."""
    T, Op = tiny.T, tiny.Op
    tensors = [T((1, 400), kind, name="x"), T((1, 400), kind, name="r"), T((2, 400), kind, np.arange(800) % 7 - 3, scale=0.1), T((1, 2), kind, name="y")]
    return tiny.File([tiny.Sub(tensors, [Op("RELU", (0,), (1,)), Op("FULLY_CONNECTED", (1, 2, -1), (3,))], (0,), outputs)])


def test_a_plan_that_shares_first_bytes_is_measured(tiny, tflm):
    for kind in ("FLOAT32", "INT8"):
        data = tiny.encode(narrow(tiny, kind=kind))
        apart, shared = (optimized(load(data, overlay_inputs=inputs)) for inputs in (False, True))
        size = 1600 if kind == "FLOAT32" else 400
        assert (apart.predicted_bytes, shared.predicted_bytes) == (2 * size, size + 16)
        found = load(data).verify(shared)
        assert (found.failures, found.bitwise_identical, found.optimized_bytes) == ((), True, size + 16)
        assert overlaps(shared.graph, "reference", EVERYTHING) == ""
        assert "overlap in the arena" in overlaps(shared.graph, "reference", Permit())


def test_what_the_result_says(tiny, tflm, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(tiny.encode(narrow(tiny)))
    result = peakmem.optimize(peakmem.load(path, overlay_inputs=True, target="reference", steps=3), measure="required")
    assert result.overlays and result.certificate is not None and result.lower_bound == result.model.predicted_bytes == 416
    assert any("a run overwrites the file's input 'x'" in note for note in result.schedule.notes)
    plain = peakmem.optimize(peakmem.load(path, target="reference", steps=3), measure="required")
    assert any("--overlay-inputs" in note and "416" in note for note in plain.schedule.notes)


def test_who_is_never_overwritten(tiny):
    """A constant, what is read later, an output of the file; an input of the file unless that is asked for."""
    for file, wanted in ((net(tiny), {1: (3, (2,))}), (net(tiny, kept=True), {}), (narrow(tiny), {})):
        assert overlays(read(tiny.encode(file)), 0, Permit()) == wanted
    assert overlays(read(tiny.encode(narrow(tiny))), 0, EVERYTHING) == {0: (1, (0,))}
    # Read later: permitted where the order makes it die, and never planned elsewhere.
    model = load(tiny.encode(net(tiny, later=True)))
    assert overlays(model.graph, 0, Permit()) == {1: (3, (2,)), 3: (6, (2, 5))}
    made = optimized(model)
    assert made.predicted_bytes == 3 * 1600
    plan = [-1] * model.graph.tensor_count
    plan[0], plan[2], plan[3], plan[5], plan[6] = 1600, 0, 0, 1600, 3200
    with pytest.raises(InputError, match="overlap in the arena"):
        check_rewrite(model.graph, with_plan(model.graph, plan), {}, "reference", EVERYTHING)
    plan[3], plan[5], plan[6] = 1600, 3200, 3200  # only the last one on its input
    check_rewrite(model.graph, with_plan(model.graph, plan), {}, "reference", Permit())
    with pytest.raises(InputError, match="overlap in the arena"):
        check_rewrite(model.graph, with_plan(model.graph, plan), {}, "reference", None)
    kept = read(tiny.encode(net(tiny, kept=True)))
    plan = [1600, -1, 0, 0, -1, 1600]
    with pytest.raises(InputError, match="overlap in the arena"):
        check_rewrite(kept, with_plan(kept, plan), {}, "reference", EVERYTHING)


def test_a_variable_is_never_overwritten(tiny):
    T, Op = tiny.T, tiny.Op
    file = tiny.File([tiny.Sub([T((1, 64)), T((1, 64), variable=True), T((1, 64))], [Op("ADD", (0, 1), (2,))], (0,), (2,))])
    assert overlays(read(tiny.encode(file)), 0, EVERYTHING) == {0: (2, (0,))}


def test_a_stretched_operand_is_never_overwritten(tiny):
    T, Op = tiny.T, tiny.Op
    file = tiny.File([tiny.Sub([T((4, 64)), T((1, 64)), T((4, 64))], [Op("ADD", (0, 1), (2,))], (0, 1), (2,))])
    assert overlays(read(tiny.encode(file)), 0, EVERYTHING) == {0: (2, (0,))}


def test_kernels_of_devices(tiny):
    """What a library has kernels of its own for is overlaid on request only, and where nobody named kernels too."""
    graph = read(tiny.encode(net(tiny, "INT8", later=True)))
    named = {t: permit(t, named=True, every=False, inputs=False) for t in ("reference", "esp-nn-1.2.1", "cmsis-nn-mve")}
    assert [sorted(overlays(graph, 0, p)) for p in named.values()] == [[1, 3], [], [1]]
    assert overlays(graph, 0, permit("reference", named=False, every=False, inputs=False)) == {}
    assert sorted(overlays(graph, 0, permit("esp-nn-1.2.1", named=True, every=True, inputs=False))) == [1, 3]
    floats = read(tiny.encode(net(tiny, later=True)))
    assert sorted(overlays(floats, 0, named["esp-nn-1.2.1"])) == [1, 3]
    model = load(tiny.encode(net(tiny, "INT8", later=True)), named=False)
    assert any("--overlay" in note for note in model.notes)


def test_no_overlays_where_no_plan_places_them(tiny):
    data = tiny.encode(net(tiny))
    for settings in ({"no_plan": True}, {"overlay": False}):
        model = load(data, **settings)
        assert model.permitted is None and not model.program.has_overlays
    assert pairs(load(data).graph, None) == []


def test_a_plan_in_the_file_that_overlaps(tiny, tflm):
    data = tiny.encode(narrow(tiny))
    shared = optimized(load(data, overlay_inputs=True))
    again = load(shared.data)
    assert again.predicted_bytes == 416
    schedule = again.schedule(order_program(again.program))
    assert any("is kept" in note and "--no-overlay" in note for note in schedule.notes)
    dropped = optimized(load(shared.data, overlay=False))
    assert (dropped.predicted_bytes, overlaps(dropped.graph, "reference", None)) == (800, "")
    assert optimized(load(shared.data, overlay_inputs=True)).data == shared.data


def test_options(tiny, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(tiny.encode(net(tiny)))
    for options in ({"overlay": True, "no_overlay": True}, {"overlay_inputs": True, "no_overlay": True}, {"overlay": True, "no_plan": True}):
        with pytest.raises(UsageError, match="contradict each other"):
            frontend.load(path, options)
    assert frontend.load(path, {"overlay": True, "overlay_inputs": True}).settings.overlay is True
    assert frontend.load(path, {"no_overlay": True}).settings.overlay is False
    assert frontend.load(path, {}).settings.overlay is None


def random_net(tiny, seed: int):
    """Element-wise operators, sums of earlier tensors and small dense layers, of random widths; some tensors are read often."""
    rng = random.Random(seed)
    T, Op = tiny.T, tiny.Op
    kind = rng.choice(("FLOAT32", "INT8"))
    widths = (rng.randint(3, 40), rng.randint(60, 90))
    tensors, operators = [T((1, widths[1]), kind), T((1, widths[1]), kind)], []
    for _ in range(rng.randint(6, 16)):
        a = rng.choice(range(len(tensors))[-5:])
        while tensors[a].data is not None:
            a -= 1
        width = tensors[a].shape[1]
        alike = [t for t, x in enumerate(tensors) if x.data is None and x.shape == tensors[a].shape]
        what = rng.choice(("RELU", "RELU", "ADD", "ADD", "MUL", "FULLY_CONNECTED"))
        inputs = (a,) if what == "RELU" else (a, rng.choice(alike))
        if what == "FULLY_CONNECTED":
            width = rng.choice(widths)
            tensors.append(T((width, tensors[a].shape[1]), kind, np.arange(width * tensors[a].shape[1]).reshape(width, -1) % 7 - 3, scale=0.2))
            inputs = (a, len(tensors) - 1, -1)
        tensors.append(T((1, width), kind, scale=1.3 if what in ("ADD", "MUL") else 1.0))
        operators.append(Op(what, inputs, (len(tensors) - 1,)))
    read_ = {t for op in operators for t in op.inputs}
    outputs = [t for op in operators for t in op.outputs if t not in read_]
    if rng.random() < 0.3:
        outputs.append(rng.choice([op.outputs[0] for op in operators if op.outputs[0] in read_] or outputs))
    return tiny.File([tiny.Sub(tensors, operators, (0, 1), tuple(dict.fromkeys(outputs)))])


def test_random_nets(tiny, tflm):
    """With overlays never larger than without, and as the bound says; head and bits as the interpreter has them."""
    gained = 0
    for seed in range(16):
        data = tiny.encode(random_net(tiny, seed))
        without = optimized(load(data, overlay=False))
        for inputs in (False, True):
            model = load(data, overlay_inputs=inputs)
            ordering = order_program(model.program)
            schedule = model.schedule(ordering)
            made = model.apply(schedule)
            assert without.predicted_bytes >= made.predicted_bytes >= ordering.lower_bound
            assert made.predicted_bytes >= scheduled_timeline(model.program, schedule.orders).peak
            gained += made.predicted_bytes < without.predicted_bytes
            found = model.verify(made)
            assert (found.failures, found.bitwise_identical, found.optimized_bytes) == ((), True, made.predicted_bytes), seed
    assert gained >= 10


def carried(name: str) -> Path:
    try:
        return Path(str(distribution("pyopen-wakeword").locate_file(f"pyopen_wakeword/models/{name}.tflite")))
    except PackageNotFoundError:
        pytest.skip("needs the models of pip install pyopen-wakeword")


@pytest.mark.parametrize(("name", "size"), [("alexa", 6656), ("hey_mycroft", 6656), ("hey_rhasspy", 6400), ("okay_nabu", 6272)])
def test_wake_words(name, size, tflm):
    """Their first operator flattens the input: on top of it, half of the arena goes."""
    path = carried(name)
    result = peakmem.optimize(peakmem.load(path, overlay_inputs=True, steps=3), measure="required")
    assert result.measurement.verification.failures == ()
    assert result.model.predicted_bytes == result.lower_bound == size


def test_additions_of_a_real_model(shared, tflm):
    (path,) = [p for p in shared if p.stem == "gen_hrnet_64"]
    result = peakmem.optimize(peakmem.load(path, overlay=True, steps=3), measure="required")
    assert result.model.predicted_bytes == result.lower_bound == 22528
    assert result.measurement.verification.failures == ()
