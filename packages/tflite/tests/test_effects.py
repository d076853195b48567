"""Which operators may pass one another."""

from __future__ import annotations

from itertools import permutations

from peakmem.model import InputError
from peakmem_tflite.model import TfliteModel


def orders_of(model):
    """All orders the program allows."""
    found = []
    for order in permutations(range(len(model.program))):
        try:
            model.program.validate_order(order)
        except InputError:
            continue
        found.append(order)
    return found


def test_variables(tiny):
    """A read may run late, yet before the assignment, and nothing passes the initialisation."""
    model = TfliteModel.from_bytes(tiny.encode(tiny.streaming()))
    names = {s.op: v for v, s in enumerate(model.program.statements)}
    for order in orders_of(model):
        place = {v: i for i, v in enumerate(order)}
        assert place[names["CALL_ONCE"]] < place[names["READ_VARIABLE"]] < place[names["ASSIGN_VARIABLE"]]
        assert place[names["VAR_HANDLE"]] < place[names["READ_VARIABLE"]]
    assert len(orders_of(model)) == 2  # the handle before or behind the initialisation
    assert [s.effects for s in model.program.statements] == [
        ("barrier",), (), ("read /state",), (), (), (), ("write /state",),
    ]  # fmt: skip
    assert [s.pure for s in model.program.statements] == [False, True, False, True, True, True, False]


def reads_and_writes(tiny, plan):
    """Operators on two variables: 'ra' reads a, 'wb' assigns b, '!' is a custom operator nothing is known of."""
    tensors = [tiny.T((1,), "RESOURCE"), tiny.T((1,), "RESOURCE"), tiny.T((1, 4))]
    operators = [tiny.Op("VAR_HANDLE", (), (0,), "a"), tiny.Op("VAR_HANDLE", (), (1,), "b")]
    for step in plan:
        if step == "!":
            tensors.append(tiny.T((1, 4)))
            operators.append(tiny.Op("Strange", (2,), (len(tensors) - 1,), custom=True))
        elif step[0] == "r":
            tensors.append(tiny.T((1, 4)))
            operators.append(tiny.Op("READ_VARIABLE", ("ab".index(step[1]),), (len(tensors) - 1,)))
        else:
            operators.append(tiny.Op("ASSIGN_VARIABLE", ("ab".index(step[1]), 2), ()))
    return TfliteModel.from_bytes(tiny.encode(tiny.File([tiny.Sub(tensors, operators, (2,), ())])))


def test_every_pair_in_conflict_keeps_its_order(tiny):
    for plan in (("ra", "rb", "wa", "ra", "wb"), ("wa", "wb", "!", "ra", "rb"), ("ra", "!", "!", "wb")):
        model = reads_and_writes(tiny, plan)
        found = {
            (a, b)
            for a in range(len(plan))
            for b in range(a + 1, len(plan))
            if all(order.index(a + 2) < order.index(b + 2) for order in orders_of(model))
        }
        conflict = {
            (a, b)
            for a in range(len(plan))
            for b in range(a + 1, len(plan))
            if "!" in (plan[a], plan[b]) or (plan[a][1] == plan[b][1] and "w" in plan[a] + plan[b])
        }
        # What lies between two operators orders them as well.
        for k in range(len(plan)):
            for a, b in [(i, j) for i in range(k) for j in range(k + 1, len(plan))]:
                if (a, k) in conflict and (k, b) in conflict:
                    conflict.add((a, b))
        assert found == conflict


def test_users_of_a_variable_tensor_keep_their_order(tiny):
    tensors = [tiny.T((1, 4)), tiny.T((1, 4), variable=True), tiny.T((1, 4)), tiny.T((1, 4)), tiny.T((1, 4))]
    operators = [tiny.Op("ADD", (0, 1), (2,)), tiny.Op("ADD", (0, 1), (3,)), tiny.Op("ADD", (2, 3), (4,))]
    model = TfliteModel.from_bytes(tiny.encode(tiny.File([tiny.Sub(tensors, operators, (0,), (4,))])))
    assert orders_of(model) == [(0, 1, 2)]
    assert model.program.statements[0].effects == ("state 1",)


def test_pure_control_flow_is_no_barrier(tiny):
    model = TfliteModel.from_bytes(tiny.encode(tiny.branching()))
    assert model.program.statements[0].effects == ()
    assert len(model.program.statements[0].bodies) == 2


def test_nothing_passes_what_may_end_the_invocation(tiny):
    tensors = [tiny.T((1, 4)) for _ in range(5)]
    operators = [
        tiny.Op("ADD", (0, 0), (1,)),
        tiny.Op("CIRCULAR_BUFFER", (0,), (2,), custom=True),
        tiny.Op("ADD", (0, 0), (3,)),
    ]
    model = TfliteModel.from_bytes(tiny.encode(tiny.File([tiny.Sub(tensors, operators, (0,), (1, 2, 3))])))
    assert orders_of(model) == [(0, 1, 2)]


def test_a_subgraph_run_from_two_places_is_left_alone(tiny):
    from peakmem.ordering import order_program

    file = tiny.branching()
    file.subgraphs[0].operators[0].options = (1, 1)
    model = TfliteModel.from_bytes(tiny.encode(file))
    assert "several places" in model.notes[0]
    schedule = model.schedule(order_program(model.program))
    assert model.apply(schedule).data == model.data
