"""Rewriting: only what must change changes, and the verifier refuses what is wrong."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from peakmem.model import InputError, Schedule, UsageError
from peakmem.ordering import order_program
from peakmem_tflite.arena import allocations, simulate
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.planning import by_subgraph
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import permute, unplannable, with_plan
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_rewrite


def load(tiny, file):
    return TfliteModel.from_bytes(tiny.encode(file))


def greedy_plan(graph):
    buffers = allocations(graph, "reference")
    plan = [-1] * graph.tensor_count
    for b, offset in zip(buffers, simulate(buffers)[1]):
        if b.tensor >= 0:
            plan[b.tensor] = offset
    return plan


@pytest.mark.parametrize("seed", range(20))
def test_an_order_changes_operator_vectors_only(tiny, orders, seed):
    model = load(tiny, [tiny.diamond, tiny.streaming, tiny.branching][seed]() if seed < 3 else tiny.random_file(seed))
    drawn = orders(model.program, random.Random(seed))
    data = permute(model.graph, by_subgraph(model.mapped, drawn))
    assert len(data) == len(model.data)
    spans = [range(s.vector, s.vector + 4 * len(s.operators)) for s in model.graph.subgraphs]
    changed = [i for i, (a, b) in enumerate(zip(model.data, data)) if a != b]
    assert all(any(i in span for span in spans) for i in changed)
    other = read(data)
    for k, order in by_subgraph(model.mapped, drawn).items():
        assert [model.graph.subgraphs[k].operators[i] for i in order] == list(other.subgraphs[k].operators)
    back = {k: [list(o).index(i) for i in range(len(o))] for k, o in by_subgraph(model.mapped, drawn).items()}
    assert permute(other, back) == model.data


def test_an_operator_inside_its_vector_cannot_move(tiny):
    """No writer stores one there; the distance to it would be 0, which leads nowhere, or negative."""
    graph = load(tiny, tiny.diamond()).graph
    main = replace(graph.subgraphs[0], operators=graph.subgraphs[0].operators[:3], vector=0)
    crafted = replace(graph, data=struct.pack("<III", 4, 100, 200), subgraphs=(main,))
    assert permute(crafted, {0: (0, 2, 1)}) == struct.pack("<III", 4, 204, 96)
    for order in ((1, 0, 2), (1, 2, 0)):
        with pytest.raises(InputError, match="operator 0 is stored where its vector cannot be rearranged"):
            permute(crafted, {0: order})


def test_a_plan_is_put_before_an_untouched_file(tiny):
    import tflite

    graph = load(tiny, tiny.streaming()).graph
    plan = greedy_plan(graph)
    data = with_plan(graph, plan)
    prefix = len(data) - len(graph.data)
    assert prefix % 64 == 0
    assert data[prefix:] == graph.data
    new = read(data)
    assert new.plan == tuple(plan)
    assert (new.subgraphs[0].tensors, new.subgraphs[0].operators) == (graph.subgraphs[0].tensors, graph.subgraphs[0].operators)
    theirs = tflite.Model.GetRootAs(data)
    assert theirs.Description() == b"made by a test"
    assert theirs.Metadata(0).Name() == b"OfflineMemoryAllocation"
    content = theirs.Buffers(theirs.Metadata(0).Buffer()).DataAsNumpy()
    assert content.view("int32").tolist() == [1, len(graph.subgraphs), len(plan), *plan]
    at = next(m for m in new.metadata if m.name == "OfflineMemoryAllocation").at
    assert at % 16 == 0


def test_a_plan_in_the_file_is_overwritten_and_dropped_in_place(tiny):
    graph = load(tiny, tiny.diamond()).graph
    once = read(with_plan(graph, greedy_plan(graph)))
    other = [16 * o if o >= 0 else o for o in once.plan]
    twice = read(with_plan(once, other))
    assert len(twice.data) == len(once.data)
    assert list(twice.plan) == other
    dropped = read(with_plan(twice, None))
    assert dropped.plan is None
    assert with_plan(graph, None) == graph.data


def test_a_plan_whose_buffer_is_shared_is_replaced(tiny):
    """Overwriting it would change whatever else lives there."""
    file = tiny.diamond()
    count = len(file.subgraphs[0].tensors)
    blob = struct.pack(f"<{3 + count}i", 1, 1, count, *[-1] * count)
    file.metadata["OfflineMemoryAllocation"] = blob
    file.metadata["other"] = b"kept"
    graph = read(tiny.encode(file))
    shared = replace(graph, metadata=(*graph.metadata, replace(graph.metadata[0], name="reader")))
    assert len(with_plan(graph, [0] * count)) == len(graph.data)
    data = with_plan(shared, None)
    assert len(data) > len(graph.data)
    new = read(data)
    assert new.plan is None
    assert [m.name for m in new.metadata] == ["other"]


def test_external_buffers_move_with_the_file(tiny):
    file = tiny.diamond()
    file.external = True
    graph = TfliteModel.from_bytes(tiny.encode(file), settings=Settings(runtime="litert")).graph
    data = with_plan(graph, greedy_plan(graph))
    prefix = len(data) - len(graph.data)
    new = read(data)
    assert [struct.unpack_from("<Q", new.data, at)[0] for at in new.external] == [64 + prefix]


def test_variables_in_later_subgraphs_forbid_a_plan(tiny):
    file = tiny.branching()
    file.subgraphs[1].tensors[0].variable = True
    assert "variable" in unplannable(read(tiny.encode(file)))
    assert not unplannable(read(tiny.encode(tiny.branching())))


def test_apply_refuses_orders_and_plans(tiny):
    model = load(tiny, tiny.diamond())
    n = len(model.program)
    with pytest.raises(InputError, match="depends"):
        model.apply(Schedule({"": tuple(reversed(range(n)))}))
    with pytest.raises(InputError, match="twice"):
        model.apply(Schedule({"": (0,) * n}))
    with pytest.raises(InputError, match="no tensor is called"):
        model.apply(Schedule(model.given, {"nobody": 0}))
    names = [b.name for b in model.program.buffers if b.kind != "constant"]
    with pytest.raises(InputError, match="overlap"):
        model.apply(Schedule(model.given, dict.fromkeys(names, 0)))
    spread = {name: 1024 * i for i, name in enumerate(names)}
    assert model.apply(Schedule(model.given, spread)).predicted_bytes == 1024 * (len(names) - 1) + 48
    with pytest.raises(InputError, match="misaligned"):
        model.apply(Schedule(model.given, {**spread, names[0]: 2**20 + 8}))


def test_the_verifier_refuses_effects_out_of_order(tiny):
    """The file itself is well formed; only the meaning of the operators forbids it."""
    graph = load(tiny, tiny.streaming()).graph
    for order, culprit in (((1, 2, 0, 3, 4, 5, 6), "CALL_ONCE"), ((1, 0, 3, 4, 5, 6, 2), None)):
        data = permute(graph, {0: order})
        with pytest.raises(InputError, match=culprit or "illegal order"):
            check_rewrite(graph, data, {0: order}, "reference")


def test_the_verifier_refuses_assignments_before_reads(tiny):
    tensors = [tiny.T((1,), "RESOURCE"), tiny.T((1, 4)), tiny.T((1, 4))]
    operators = [
        tiny.Op("VAR_HANDLE", (), (0,), "a"), tiny.Op("READ_VARIABLE", (0,), (1,)), tiny.Op("ASSIGN_VARIABLE", (0, 2), ()),
    ]  # fmt: skip
    graph = read(tiny.encode(tiny.File([tiny.Sub(tensors, operators, (2,), (1,))])))
    data = permute(graph, {0: (0, 2, 1)})
    with pytest.raises(InputError, match="READ_VARIABLE"):
        check_rewrite(graph, data, {0: (0, 2, 1)}, "reference")


def test_the_verifier_refuses_a_changed_file(tiny):
    graph = load(tiny, tiny.diamond()).graph
    order = tuple(range(len(graph.subgraphs[0].operators)))
    assert check_rewrite(graph, graph.data, {0: order}, "reference").data == graph.data
    other = tiny.diamond()
    other.subgraphs[0].tensors[0].name = "another"
    with pytest.raises(InputError, match="tensors"):
        check_rewrite(graph, tiny.encode(other), {0: order}, "reference")
    swapped = (1, 0, *order[2:])
    with pytest.raises(InputError, match="operators"):
        check_rewrite(graph, graph.data, {0: swapped}, "reference")
    with pytest.raises(InputError, match="permutation"):
        check_rewrite(graph, graph.data, {0: (0, *order[:-1])}, "reference")
    named = [tiny.diamond(), tiny.diamond()]
    for file, content in zip(named, (b"x", b"y")):
        file.metadata["extra"] = content
    with pytest.raises(InputError, match="metadata"):
        check_rewrite(read(tiny.encode(named[0])), tiny.encode(named[1]), {0: order}, "reference")


@pytest.mark.parametrize("seed", range(25))
def test_the_verifier_finds_every_overlap(tiny, seed):
    """Plans with one tensor moved: refused exactly where some two buffers share a byte at one step."""
    rng = random.Random(seed)
    graph = load(tiny, tiny.branching() if seed % 5 == 0 else tiny.random_file(seed)).graph
    given = {k: tuple(range(len(s.operators))) for k, s in enumerate(graph.subgraphs)}
    buffers = allocations(graph, "reference")
    verdicts = set()
    for _ in range(12):
        plan = greedy_plan(graph)
        moved = rng.choice([b.tensor for b in buffers if b.tensor >= 0])
        plan[moved] = 16 * rng.randrange(40)
        offsets = simulate(buffers, plan)[1]
        clash = any(
            a.first <= b.last and b.first <= a.last and x < y + b.size and y < x + a.size
            for i, (a, x) in enumerate(zip(buffers, offsets))
            for b, y in list(zip(buffers, offsets))[:i]
        )
        verdicts.add(clash)
        data = with_plan(graph, plan)
        if clash:
            with pytest.raises(InputError, match="overlap"):
                check_rewrite(graph, data, given, "reference")
        else:
            check_rewrite(graph, data, given, "reference")
    assert verdicts


def test_the_same_bytes_again(tiny):
    for file in (tiny.diamond(), tiny.random_file(7, 20)):
        model = load(tiny, file)
        first = model.apply(model.schedule(order_program(model.program)))
        second = model.apply(model.schedule(order_program(model.program)))
        assert first.data == second.data


def test_an_optimized_file_is_left_alone(tiny):
    model = load(tiny, tiny.diamond())
    once = model.apply(model.schedule(order_program(model.program)))
    assert once.predicted_bytes < model.predicted_bytes
    again = TfliteModel.from_bytes(once.data)
    assert again.apply(again.schedule(order_program(again.program))).data == once.data


def test_saving(tiny, tmp_path):
    path = tmp_path / "in.tflite"
    path.write_bytes(tiny.encode(tiny.diamond()))
    model = TfliteModel.from_bytes(path.read_bytes(), path=path)
    with pytest.raises(UsageError, match="input"):
        model.save(path, force=True)
    out = tmp_path / "out.tflite"
    model.save(out)
    assert out.read_bytes() == model.data
    with pytest.raises(UsageError, match="exists"):
        model.save(out)
