"""Files that were once misjudged, small ones of each kind and the ones found: plans in the file, idle tensors, what cannot run."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from peakmem.model import InputError
from peakmem.ordering import order_program
from peakmem_tflite import measure
from peakmem_tflite.arena import head
from peakmem_tflite.enlarge import operator_tables
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import with_plan
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_rewrite


def load(data, **settings):
    return TfliteModel.from_bytes(data, settings=Settings(steps=3, **settings))


def optimized(model):
    return model.apply(model.schedule(order_program(model.program)))


def wasteful(tiny):
    """A plan that puts every tensor behind the others."""
    graph = read(tiny.encode(tiny.diamond()))
    return with_plan(graph, [1024 * t for t in range(graph.tensor_count)])


def test_a_wasteful_plan_in_the_file_is_not_kept(tiny):
    """Even where the order given is already the best and the interpreter needs no plan for it."""
    best = optimized(load(tiny.encode(tiny.diamond())))
    graph = read(with_plan(best.graph, None))
    spread = load(with_plan(graph, [4096 * t for t in range(graph.tensor_count)]))
    assert spread.predicted_bytes > 10 * best.predicted_bytes
    other = optimized(spread)
    assert other.predicted_bytes == best.predicted_bytes
    assert other.graph.subgraphs[0].operators == best.graph.subgraphs[0].operators
    # Where nothing can be gained the plan stays, byte for byte.
    assert optimized(other).data == other.data


def test_without_a_plan_means_that_none_stays(tiny, tflm):
    """Not even where no operator moves; and the file given is judged as a runtime takes it that ignores plans."""
    model = load(wasteful(tiny), no_plan=True)
    assert model.graph.plan is not None
    assert model.predicted_bytes == head(model.graph, "reference")
    other = optimized(model)
    assert other.graph.plan is None
    assert other.predicted_bytes <= model.predicted_bytes
    found = model.verify(other)
    assert found.failures == ()
    assert found.as_predicted
    same = load(with_plan(other.graph, [0] * other.graph.tensor_count), no_plan=True)
    assert optimized(same).graph.plan is None
    assert optimized(same).graph.subgraphs[0].operators == other.graph.subgraphs[0].operators


def stateful(tiny):
    """A layer with a state in a variable tensor, and scratch beside it."""
    T, Op = tiny.T, tiny.Op
    tensors = [
        T((1, 8), "INT8", name="x"), T((4, 8), "INT8", [[1] * 8] * 4, name="features"), T((4, 3), "INT8", [[1] * 3] * 4, name="times"),
        T((4,), "INT32", [0] * 4, name="bias"), T((1, 12), "INT8", variable=True, name="state"), T((1, 4), "INT8", name="y"),
    ]  # fmt: skip
    return tiny.encode(tiny.File([tiny.Sub(tensors, [Op("SVDF", (0, 1, 2, 3, 4), (5,))], (0,), (5,))]))


def test_a_plan_that_places_variables_is_predicted_and_left_alone(tiny, tflm):
    """They then lie in the head, for all the time, and scratch goes around them."""
    plain = load(stateful(tiny))
    planned = load(with_plan(plain.graph, [0, -1, -1, -1, 256, 64]))
    found = plain.verify(planned)
    assert found.failures == ()
    assert found.as_predicted
    assert found.optimized_bytes == 256 + 16 > found.baseline_bytes
    schedule = planned.schedule(order_program(planned.program))
    assert "places variable tensors" in schedule.notes[0]
    assert planned.apply(schedule).data == planned.data
    assert optimized(load(planned.data, no_plan=True)).predicted_bytes == plain.predicted_bytes


def test_a_planned_variable_keeps_its_place_all_the_time(tiny):
    """What comes after its last reader would still be written over it."""
    file = tiny.File([tiny.Sub(
        [tiny.T((1, 4)), tiny.T((1, 4), variable=True), tiny.T((1, 4)), tiny.T((1, 4))],
        [tiny.Op("ADD", (0, 1), (2,)), tiny.Op("ADD", (2, 2), (3,))], (0,), (3,),
    )])  # fmt: skip
    graph = read(tiny.encode(file))
    check_rewrite(graph, with_plan(graph, [0, 16, 32, 0]), {}, "reference")
    with pytest.raises(InputError, match="overlap"):
        check_rewrite(graph, with_plan(graph, [0, 16, 32, 16]), {}, "reference")


def idle(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors += [tiny.T((1, 300), name="left over"), tiny.T((1, 200)), tiny.T((1, 100))]
    return tiny.encode(file)


def test_tensors_that_nothing_touches_share_one_place(tiny, tflm):
    """The interpreter allocates all of them at once; a plan lays them over each other and over whatever comes later."""
    model = load(idle(tiny))
    clean = optimized(load(tiny.encode(tiny.diamond())))
    assert model.predicted_bytes >= 4 * (300 + 200 + 100)
    assert "tensors that no operator touches take 1,200 B" in model.notes[0]
    other = optimized(model)
    assert other.predicted_bytes == max(1200, clean.predicted_bytes)
    compared = {t for (_, t), _ in measure._pairs(model.graph, other.graph)}
    assert compared == {t for (_, t), _ in measure._pairs(clean.graph, clean.graph)}  # what lies in the idle ones means nothing
    found = model.verify(other)
    assert found.failures == ()
    assert found.as_predicted
    assert found.bitwise_identical


def unfit(tiny, op, shapes, data=(), **more):
    T = tiny.T
    tensors = [T(shape, "INT8", [0] * prod(shape) if i in data else None) for i, shape in enumerate(shapes)]
    operator = tiny.Op(op, tuple(range(len(shapes) - 1)), (len(shapes) - 1,), **more)
    return tiny.encode(tiny.File([tiny.Sub(tensors, [operator], (0,), (len(shapes) - 1,))]))


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        ("DEPTHWISE_CONV_2D", [(1, 5, 5, 1), (1, 3, 3, 8), (1, 3, 3, 4)], "gives 4 channels with a filter of 8"),
        ("CONV_2D", [(1, 5, 5, 2), (4, 3, 3, 2), (1, 3, 3, 5)], "gives 5 channels with 4 filters"),
        ("CONV_2D", [(1, 5, 5, 3), (4, 3, 3, 2), (1, 3, 3, 4)], "reads 3 channels with a filter of 2"),
        ("AVERAGE_POOL_2D", [(1, 4, 4, 4), (1, 2, 2, 8)], "pools 4 channels into 8"),
        ("FULLY_CONNECTED", [(1, 8), (4, 8), (1, 5)], "gives 5 elements from 8 with weights of 4 x 8"),
    ],
)
def test_channels_that_do_not_fit_are_refused(tiny, op, shapes, message):
    with pytest.raises(InputError, match=rf"operator 0 \({op}\) {message}; kernels would read or write past"):
        read(unfit(tiny, op, shapes, data=(1,) if len(shapes) > 2 else ()))


def test_channels_that_fit_are_read(tiny):
    read(unfit(tiny, "CONV_2D", [(1, 5, 5, 4), (4, 3, 3, 2), (1, 3, 3, 4)], data=(1,)))  # in two groups
    read(unfit(tiny, "FULLY_CONNECTED", [(2, 3, 8), (4, 8), (6, 4)], data=(1,)))


def test_a_constant_shorter_than_its_shape_is_refused(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors[1].data = file.subgraphs[0].tensors[1].data[:-1]
    with pytest.raises(InputError, match=r"tensor 1 \('t1'\) holds 2016 bytes of the 2048 that its shape \[64, 8\] needs"):
        read(tiny.encode(file))


@pytest.mark.parametrize("of", ["READ_VARIABLE", "ASSIGN_VARIABLE"])
def test_a_variable_has_one_size(tiny, of):
    file = tiny.streaming()
    main = file.subgraphs[0]
    read(tiny.encode(file))
    if of == "READ_VARIABLE":
        main.tensors[2].shape = (1, 5)
    else:
        file.subgraphs[1].tensors[1] = tiny.T((1, 3), data=[[0, 0, 0]], name="zero")
    with pytest.raises(InputError, match=r"takes variable '/state' for \d+ bytes, operator \d \((READ|ASSIGN)_VARIABLE\) of subgraph 0 for \d+"):
        read(tiny.encode(file))


def test_programs_for_another_processor_are_refused_by_rule(tiny):
    file = tiny.File([tiny.Sub([tiny.T((1, 8)), tiny.T((1, 8))], [tiny.Op("ethos-u", (0,), (1,), custom=True)], (0,), (1,))])
    with pytest.raises(InputError, match=r"operator 0 \(ethos-u\) is a program for an Arm Ethos-U, made by Vela: it addresses the arena"):
        read(tiny.encode(file))
    file.subgraphs[0].operators[0].inputs = (0, 2)  # a scratch tensor that nothing produces, as Vela writes it
    file.subgraphs[0].tensors.append(tiny.T((64,), name="scratch"))
    with pytest.raises(InputError, match="made by Vela"):
        read(tiny.encode(file))


FAULTS = Path(__file__).resolve().parents[4] / "shared" / "data" / "faults" / "tflite"


def found_file(name):
    path = FAULTS / f"{name}.tflite"
    if not path.exists():
        pytest.skip("the shared faults are not here (shared/data/faults)")
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "settings", "before", "after"),
    [
        ("kws_wasteful_plan", {}, 72656, 16000),
        ("vww.plan", {"no_plan": True}, 73728, 73728),
        ("varplan_tflm_keyword_scrambled", {}, 11232, 11232),
        ("dangling_tensors", {}, 138240, 36864),
        ("dangling_tensors", {"drop_untouched": True}, 138240, 29952),
    ],
)
def test_the_right_values(tflm, name, settings, before, after):
    model = load(found_file(name), named=True, **settings)
    other = optimized(model)
    assert (model.predicted_bytes, other.predicted_bytes) == (before, after)
    if settings.get("no_plan"):
        assert other.graph.plan is None
    found = model.verify(other)
    assert found.failures == ()
    assert found.as_predicted


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("endless_run_1843", "holds 256 bytes of the 68719476992"),
        ("read_variable_larger_than_resource", "takes variable"),
        ("shape_oob_919", "gives 4 channels with a filter of 8"),
        ("mww2_okay_nabu_vela", "made by Vela"),
    ],
)
def test_files_that_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        read(found_file(name))


T8, T6 = (1, 8), (1, 6)


@pytest.mark.parametrize(
    ("op", "shapes", "constants", "more", "message"),
    [
        ("CONCATENATION", [T8, T6, (1, 13)], {}, {}, r"joins \[1, 8\], \[1, 6\] to \[1, 13\] along axis 1"),
        ("CONCATENATION", [T8, T6, (1, 14)], {}, {"options": {"Axis": 0}}, "along axis 0"),
        ("CONCATENATION", [T8, (8,), (1, 16)], {}, {}, "along axis 1"),
        ("ADD", [T8, T6, T8], {}, {}, r"gives \[1, 8\] from \[1, 8\] and \[1, 6\]"),
        ("ADD", [T8, (1, 1), T6], {}, {}, r"gives \[1, 6\] from"),
        ("RELU", [T8, T6], {}, {}, "gives 6 elements for 8"),
        ("RESHAPE", [T8, (2, 3)], {}, {}, "gives 6 elements for 8"),
        ("TRANSPOSE", [(1, 2, 3), (3,), (3, 2, 1)], {1: [0, 2, 1]}, {}, r"transposes \[1, 2, 3\] to \[3, 2, 1\] by \[0, 2, 1\]"),
        ("TRANSPOSE", [(1, 2, 3), (3,), (1, 3, 2)], {1: [0, 2, 2]}, {}, "transposes"),
        ("MEAN", [(1, 4, 4, 3), (2,), (1, 1, 1, 4)], {1: [1, 2]}, {}, "reduces"),
        ("MEAN", [(1, 4, 4, 3), (2,), (1, 1, 1, 3)], {1: [1, 7]}, {}, "reduces"),
        ("CONV_2D", [(2, 5, 5, 2), (4, 3, 3, 2), (1, 3, 3, 4)], {1: 0}, {}, "makes 1 batches of 2"),
        ("CONV_2D", [(1, 5, 5, 2), (4, 3, 3, 2), (3,), (1, 3, 3, 4)], {1: 0, 2: [1, 2, 3]}, {}, "adds 3 biases to 4 channels"),
        ("CONV_2D", [(1, 5, 5, 2), (), (1, 3, 3, 4)], {}, {}, "with a filter of 0"),
        ("DEPTHWISE_CONV_2D", [(1, 5, 5, 4), (1, 3, 3, 8), (1, 3, 3, 8)], {1: 0}, {}, "gives 8 channels, 1 for each of 4"),
        ("MAX_POOL_2D", [(2, 4, 4, 4), (1, 2, 2, 4)], {}, {}, "pools"),
        ("FULLY_CONNECTED", [T8, (4, 8), (3,), (1, 4)], {1: 0, 2: [1, 2, 3]}, {}, "adds 3 biases to 4 channels"),
        ("FULLY_CONNECTED", [(2, 8), (4, 8), (4, 2)], {1: 0}, {}, "gives rows of 2"),
    ],
)  # fmt: skip
def test_what_a_kernel_takes_for_granted_is_checked(tiny, op, shapes, constants, more, message):
    tensors = []
    for i, shape in enumerate(shapes):
        values = constants.get(i)
        kind = "INT32" if isinstance(values, list) else "INT8"
        tensors.append(tiny.T(shape, kind, values if isinstance(values, list) else [0] * prod(shape) if values is not None else None))
    inputs = tuple(range(len(shapes) - 1))
    given = tuple(i for i in inputs if i not in constants)
    file = tiny.File([tiny.Sub(tensors, [tiny.Op(op, inputs, (len(shapes) - 1,), **more)], given, (len(shapes) - 1,))])
    with pytest.raises(InputError, match=rf"operator 0 \({op}\) .*{message}.*; kernels would read or write past"):
        read(tiny.encode(file))


def test_missing_options_are_refused(tiny):
    """The kernel's parameters would be what lies in the arena."""
    file = tiny.diamond()
    data = bytearray(tiny.encode(file))
    table = operator_tables(read(bytes(data)))[-1]
    data[table.position(3)] = 0
    with pytest.raises(InputError, match=r"operator 6 \(CONCATENATION\) has no ConcatenationOptions"):
        read(bytes(data))


def test_what_is_passed_to_a_branch_has_its_size(tiny):
    file = tiny.branching()
    read(tiny.encode(file))
    for tensor in file.subgraphs[1].tensors:
        tensor.shape = (1, 9)
    with pytest.raises(InputError, match=r"operator 0 \(IF\) passes \[32, 32\] bytes where subgraph 1 has \[36, 36\]"):
        read(tiny.encode(file))
