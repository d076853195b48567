"""What one file is to another, told from the files: rewritten ones are recognised, different programs are told apart."""

from __future__ import annotations

import json
import random
import re
import struct
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from itertools import permutations

import pytest
from peakmem.frontends import get_frontend
from peakmem.model import InputError, UsageError
from peakmem.ordering import order_program
from peakmem_tflite.enlarge import operator_tables
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.planning import by_subgraph
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import permute


def load(tiny, file):
    return TfliteModel.from_bytes(tiny.encode(file))


def files(tiny):
    return [tiny.diamond(), tiny.streaming(), tiny.branching(), quantized(tiny), *(tiny.random_file(seed, 14) for seed in range(8))]


def quantized(tiny):
    """A convolution, a difference of what is not alike, and a detector with its own options."""
    T, Op = tiny.T, tiny.Op
    tensors = [
        T((1, 4, 4, 2), "INT8", name="x"), T((2, 3, 3, 2), "INT8", list(range(36)), name="w"), T((2,), "INT32", [1, 2], name="b"),
        T((1, 2, 2, 2), "INT8", name="c"), T((1, 2, 2, 2), "INT8", name="d"), T((1, 2, 2, 2), "INT8", name="e", scale=0.5),
        T((1, 2, 2, 2), "INT8", name="y"),
    ]  # fmt: skip
    operators = [
        Op("CONV_2D", (0, 1, 2), (3,), {"Padding": 1}),
        Op("SignalWindow", (3,), (4,), custom=True, custom_options=b"\1\2\3"),
        Op("ADD", (3, 4), (5,)),
        Op("ADD", (5, 4), (6,)),
    ]
    return tiny.File([tiny.Sub(tensors, operators, (0,), (6,))])


def renumbered(file, seed: int):
    """The same program with its tensors called and counted otherwise."""
    for sub in file.subgraphs:
        order = list(range(len(sub.tensors)))
        random.Random(seed).shuffle(order)
        new = {t: i for i, t in enumerate(order)} | {-1: -1}
        sub.tensors = [replace(sub.tensors[t], name=f"other{i}") for i, t in enumerate(order)]
        for op in sub.operators:
            op.inputs, op.outputs = (tuple(new[t] for t in side) for side in (op.inputs, op.outputs))
        sub.inputs, sub.outputs = (tuple(new[t] for t in side) for side in (sub.inputs, sub.outputs))
    return file


@pytest.mark.parametrize("which", range(12))
def test_orders_and_plans_are_recognised(tiny, orders, which):
    model = load(tiny, files(tiny)[which])
    drawn = orders(model.program, random.Random(which))
    moved = TfliteModel(permute_to(model, drawn), model.settings)
    best = model.apply(model.schedule(order_program(model.program)))
    for a, b in ((model, model), (model, moved), (moved, model), (model, best), (best, moved)):
        found = a.structure(b)
        assert found.difference == ""
        assert found.relation.startswith(f"the same {len(model.program)} operators")
    assert model.structure(model).relation.endswith("in the same order")


def permute_to(model, orders):
    return read(permute(model.graph, by_subgraph(model.mapped, orders)))


def test_the_number_of_moved_operators(tiny):
    model = load(tiny, tiny.diamond())
    moved = TfliteModel(read(permute(model.graph, {0: (0, 3, 1, 2, 4, 5, 6)})))
    assert "1 at other places" in model.structure(moved).relation


@pytest.mark.parametrize("which", range(12))
def test_names_and_numbers_of_tensors_do_not_count(tiny, which):
    found = load(tiny, files(tiny)[which]).structure(load(tiny, renumbered(files(tiny)[which], which)))
    assert found.difference == ""


def test_options_count_by_what_they_say(tiny):
    """A default that is written down is the same as one left out; its table has another layout."""
    plain, explicit = tiny.diamond(), tiny.diamond()
    explicit.subgraphs[0].operators[0].options = {"AsymmetricQuantizeInputs": True}
    a, b = load(tiny, plain), load(tiny, explicit)
    assert "other attributes" in a.structure(b).difference
    table = operator_tables(b.graph)[0].sub(4, "options")
    data = bytearray(b.data)
    data[table.position(3)] = 0
    same = TfliteModel.from_bytes(bytes(data))
    assert same.data != a.data
    assert a.structure(same).difference == ""


def change(path, value):
    def act(file):
        at = file.subgraphs[0]
        for step in path[:-1]:
            at = at[step] if isinstance(step, int) else getattr(at, step)
        setattr(at, path[-1], value)

    return act


DIFFERENT = {
    "weight": (change(("tensors", 1, "data"), [0, 0, *range(2, 36)]), r"CONV_2D\) of the second reads another constant \('w', operand 1\) than operator 0"),
    "bias": (change(("tensors", 2, "data"), [1, 3]), r"reads another constant \('b', operand 2\) than"),
    "padding": (change(("operators", 0, "options"), {}), "other attributes"),
    "stride": (change(("operators", 0, "options"), {"Padding": 1, "StrideW": 2}), "other attributes"),
    "activation": (change(("operators", 2, "options"), {"FusedActivationFunction": 1}), "operator 2 .ADD. of the second has other"),
    "custom options": (change(("operators", 1, "custom_options"), b"\1\2\4"), "operator 1 .SignalWindow"),
    "operand swapped": (change(("operators", 3, "inputs"), (4, 5)), "operator 3 .ADD. of the second reads the operands of operator 3 .ADD. of the first in another sequence"),
    "another operand": (change(("operators", 3, "inputs"), (3, 4)), "operator 3"),
    "another operator": (change(("operators", 2, "op"), "SUB"), "is another operator"),
    "another custom operator": (change(("operators", 1, "op"), "SignalEnergy"), "is another operator"),
    "scale of a result": (change(("tensors", 5, "scale"), 0.25), "operator 2 .ADD. of the second has other"),
    "scale of a weight": (change(("tensors", 1, "scale"), 0.25), r"reads another constant \('w', operand 1\) than"),
    "scale of an input": (change(("tensors", 0, "scale"), 0.25), "input 0 is of another"),
    "scale of an output": (change(("tensors", 6, "scale"), 0.25), "output 0 is of another"),
    "shape": (change(("tensors", 4, "shape"), (2, 2, 2)), "operator 1"),
    "shape signature": (change(("tensors", 4, "signature"), (-1, 2, 2, 2)), "operator 1"),
    "another output": (change(("outputs",), (3,)), "output 0 is another value"),
    "more outputs": (change(("outputs",), (6, 5)), "the first has 1 outputs, the second 2"),
    "a constant more": (lambda file: file.subgraphs.append(file.subgraphs[0]), "subgraphs that no operator runs"),
    "signatures": (lambda file: file.signatures.append(("serve", {"in": 0}, {"out": 6})), "signatures"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_programs_are_told_apart(tiny, what):
    act, message = DIFFERENT[what]
    first, second = quantized(tiny), quantized(tiny)
    act(second)
    a, b = load(tiny, first), load(tiny, second)
    for found in (a.structure(b), b.structure(a)):
        assert found.difference != ""
        assert found.relation == ""
    assert re.search(message, a.structure(b).difference), a.structure(b).difference


def test_signatures_go_by_name_and_position(tiny):
    def signed(seed=None, **names):
        file = quantized(tiny)
        if seed is not None:
            renumbered(file, seed)
        main = file.subgraphs[0]
        file.signatures.append((names.get("key", "serve"), {names.get("of_input", "in"): main.inputs[0]}, {"out": main.outputs[0]}))
        return load(tiny, file)

    assert signed().structure(signed(seed=4)).difference == ""
    assert signed().structure(signed(key="other")).difference == "their signatures differ"
    assert signed().structure(signed(of_input="other")).difference == "their signatures differ"


def test_an_operator_dropped_or_twice(tiny):
    def without(file):
        """The last difference reads the value that the dropped one would have changed."""
        del file.subgraphs[0].operators[2]
        file.subgraphs[0].operators[2].inputs = (3, 4)

    first, second, dead = quantized(tiny), quantized(tiny), quantized(tiny)
    without(second)
    assert load(tiny, first).structure(load(tiny, second)).difference
    dead.subgraphs[0].tensors.append(tiny.T((1, 2, 2, 2), "INT8"))
    dead.subgraphs[0].operators.append(tiny.Op("ADD", (3, 3), (7,)))
    assert load(tiny, dead).structure(load(tiny, first)).difference == "operator 4 (ADD) of the first is missing from the second"
    twice = quantized(tiny)
    twice.subgraphs[0].tensors.append(tiny.T((1, 2, 2, 2), "INT8", scale=0.5))
    twice.subgraphs[0].operators.append(tiny.Op("ADD", (3, 4), (7,)))
    assert "1 run once more" in load(tiny, first).structure(load(tiny, twice)).relation


def effectful(tiny, plan):
    """'ra' reads a, 'wb' assigns b, '!' is an operator nothing is known of, 's' users of a variable tensor, 'd' has its own state,
    '|' may end the invocation, 'p' is pure. All results are outputs, so that none can stand for another."""
    T, Op = tiny.T, tiny.Op
    tensors = [T((1,), "RESOURCE"), T((1,), "RESOURCE"), T((1, 4)), T((1, 4), variable=True)]
    operators = [Op("VAR_HANDLE", (), (0,), "a"), Op("VAR_HANDLE", (), (1,), "b")]
    outputs, inputs = [], [2]
    for step in plan:
        tensors.append(T((1, 4)))
        t = len(tensors) - 1
        if step[0] == "w":
            inputs.append(t)
            operators.append(Op("ASSIGN_VARIABLE", ("ab".index(step[1]), t), ()))
            continue
        outputs.append(t)
        known = {"!": ("Strange", True), "d": ("SignalDelay", True), "|": ("CIRCULAR_BUFFER", True), "s": ("ADD", False), "p": ("ADD", False)}
        if step[0] == "r":
            operators.append(Op("READ_VARIABLE", ("ab".index(step[1]),), (t,)))
        else:
            op, custom = known[step[0]]
            operators.append(Op(op, (2, 3 if step[0] == "s" else 2), (t,), custom=custom, custom_options=bytes([t]) if custom else b""))
    return tiny.File([tiny.Sub(tensors, operators, tuple(inputs), tuple(outputs))])


PLANS = (
    ("ra", "rb", "wa", "ra", "wb"), ("wa", "wa", "ra", "wb"), ("ra", "!", "rb", "!"), ("!", "wb", "s", "s"), ("s", "ra", "!", "s"),
    ("d", "d", "ra", "wa"), ("p", "|", "p", "ra"), ("d", "|", "wa"), ("s", "|", "!", "d"),
)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_orders_are_the_same_program_where_they_are_legal(tiny, plan):
    """Every order of the operators: recognised if the program allows it, and told apart if it does not."""
    model = load(tiny, effectful(tiny, plan))
    verdicts = set()
    for tail in permutations(range(2, len(plan) + 2)):
        order = (0, 1, *tail)
        try:
            model.program.validate_order(order)
            legal = True
        except InputError:
            legal = False
        other = TfliteModel(read(permute(model.graph, {0: order})))
        assert (model.structure(other).difference == "") is legal, order
        verdicts.add(legal)
    assert verdicts == {True, False}


@pytest.mark.parametrize("step", ["ra", "wa", "!", "s", "d", "|"])
def test_what_has_effects_runs_once(tiny, step):
    """Once more, with a result that nobody reads, or the very same assignment again."""
    once, twice = effectful(tiny, (step,)), effectful(tiny, (step,))
    main = twice.subgraphs[0]
    again = replace(main.operators[-1], outputs=(len(main.tensors),) if main.operators[-1].outputs else ())
    main.tensors.append(tiny.T((1, 4)))
    main.operators.append(again)
    assert load(tiny, once).structure(load(tiny, twice)).difference
    assert load(tiny, twice).structure(load(tiny, once)).difference


def test_variables_are_told_apart(tiny):
    a, b = tiny.streaming(), tiny.streaming()
    for sub in b.subgraphs:
        for op in sub.operators:
            if op.op == "VAR_HANDLE":
                op.options = "another"
    assert load(tiny, a).structure(load(tiny, b)).difference
    b = tiny.streaming()
    b.subgraphs[1].tensors[1].data = [[0, 0, 0, 1]]
    found = load(tiny, a).structure(load(tiny, b))
    assert "CALL_ONCE) of the second has another body" in found.difference
    assert "'subgraph 1: zero'" in found.difference


def test_bodies_count_and_not_where_they_stand(tiny):
    a, b = tiny.branching(), tiny.branching()
    b.subgraphs[1:] = [b.subgraphs[2], b.subgraphs[1]]
    assert load(tiny, a).structure(load(tiny, b)).difference  # then and else exchanged
    b.subgraphs[0].operators[0].options = (2, 1)
    assert load(tiny, a).structure(load(tiny, b)).difference == ""
    b.subgraphs[2].operators[0].inputs = (1, 1)
    assert "another body" in load(tiny, a).structure(load(tiny, b)).difference


def squeezed(tiny):
    """A file that ends with an operator whose options are a vector."""
    file = tiny.diamond()
    main = file.subgraphs[0]
    main.tensors.append(tiny.T((12,), name="z"))
    main.operators.append(tiny.Op("SQUEEZE", main.outputs, (len(main.tensors) - 1,), [0]))
    main.outputs = (len(main.tensors) - 1,)
    return file


def test_options_of_an_unknown_kind_cannot_be_compared(tiny):
    model = load(tiny, squeezed(tiny))
    data = bytearray(model.data)
    data[operator_tables(model.graph)[-1].position(3)] = 250
    strange = TfliteModel.from_bytes(bytes(data))
    assert "options of a kind (250)" in strange.structure(strange).difference


def test_damaged_options_are_a_sentence(tiny):
    """A count of reshaped extents that the file cannot hold."""
    model = load(tiny, squeezed(tiny))
    table = operator_tables(model.graph)[-1].sub(4, "options")
    data = bytearray(model.data)
    struct.pack_into("<I", data, table.target(0), 2**31)
    damaged = TfliteModel.from_bytes(bytes(data))
    with pytest.raises(InputError, match=r"the second file: .* is damaged"):
        model.structure(damaged)


def test_another_kind_of_model_is_refused(tiny, tmp_path):
    model = load(tiny, tiny.diamond())
    path = tmp_path / "program.json"
    path.write_text(json.dumps(model.program.to_json()))
    with pytest.raises(UsageError, match="only two files of one frontend"):
        model.structure(get_frontend("program").load(path, {}))


def carried(name):
    try:
        return distribution("pymicro-wakeword").locate_file(f"pymicro_wakeword/models/{name}.tflite")
    except PackageNotFoundError:
        pytest.skip("needs the models of pip install pymicro-wakeword")


def test_two_wake_words_are_different_programs():
    """Their outputs are 0 on random inputs, so running them shows nothing."""
    import peakmem

    first, second = (peakmem.load(str(carried(name)), frontend="tflite", steps=3) for name in ("okay_nabu", "alexa"))
    found = peakmem.verify(first, second)
    assert found.runtime == ""
    assert found.failures[0].startswith("these are different programs: operator 0 (CALL_ONCE) of the second has another body")
    same = first.structure(first.apply(first.schedule(order_program(first.program))))
    assert same.difference == ""
    assert "at other places" in same.relation


def test_outputs_only_runs_different_programs_all_the_same(tflm):
    import peakmem

    first, second = (peakmem.load(str(carried(name)), frontend="tflite", steps=3) for name in ("okay_nabu", "alexa"))
    found = peakmem.verify(first, second, outputs_only=True)
    assert found.structure.startswith("different programs")
    assert found.measured
    assert found.varied is False
    assert not found.identical
