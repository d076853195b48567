"""Recomputed copies: written beside an untouched file, followed value by value, run on the real interpreter."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from peakmem.model import Buffer, Expansion, InputError, Program, Schedule, scheduled_timeline
from peakmem.transform.recompute import recompute
from peakmem_tflite.enlarge import enlarge, operator_tables, same_values
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import permute, with_plan
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_enlarged


def load(tiny, file, **settings):
    """Without overlays, as plans of recomputation are."""
    return TfliteModel.from_bytes(tiny.encode(file), settings=Settings(**{"steps": 3, "overlay": False, **settings}))


def load_shared(path, **settings):
    return TfliteModel.from_bytes(path.read_bytes(), path=path, settings=Settings(**{"overlay": False, **settings}))


def any_expansion(program: Program, rng: random.Random, copies: int) -> Expansion:
    """Pure statements run again at random places, chains of them too; later readers read the newest copy or any."""
    buffers, buffer_of = list(program.buffers), list(range(len(program.buffers)))
    versions = [[b] for b in buffer_of]
    maker: dict[int, int] = {}
    statements, statement_of = [], []
    base: dict[int, int] = {}
    gaps = sorted(rng.randrange(1, len(program) + 1) for _ in range(copies))

    def emit(v: int, again: bool) -> None:
        s = program.statements[v]
        reads = tuple(rng.choice(versions[b]) if rng.random() < 0.3 else versions[b][-1] for b in s.reads)
        writes = s.writes
        if again:
            writes = tuple(range(len(buffers), len(buffers) + len(s.writes)))
            for b in s.writes:
                buffers.append(Buffer(f"{program.buffers[b].name}#{len(buffers)}", program.buffers[b].size))
                buffer_of.append(b)
                versions[b].append(len(buffers) - 1)
        needs = {maker[b] for b in reads if b in maker} | {base[p] for p in s.dependences}
        name = f"{s.name}#{len(statements)}" if again else s.name
        statements.append(replace(s, name=name, reads=reads, writes=writes, dependences=tuple(sorted(needs))))
        statement_of.append(v)
        maker.update((b, len(statements) - 1) for b in writes)
        if not again:
            base[v] = len(statements) - 1

    for v in range(len(program)):
        emit(v, False)
        while gaps and gaps[0] == v + 1:
            gaps.pop(0)
            pure = [u for u in base if program.statements[u].pure and program.statements[u].writes]
            if pure:
                emit(rng.choice(pure), True)
    return Expansion(Program(tuple(buffers), tuple(statements)), tuple(statement_of), tuple(buffer_of))


def files(tiny):
    return [
        tiny.diamond(), tiny.streaming(), tiny.branching(), *(tiny.random_file(seed, 14) for seed in range(17)),
    ]  # fmt: skip


def test_copies_are_put_before_an_untouched_file(tiny):
    import tflite

    for seed, file in enumerate(files(tiny)):
        model = load(tiny, file)
        expansion = any_expansion(model.program, random.Random(seed), 1 + seed % 5)
        data = enlarge(model.graph, model.program, expansion)
        prefix = len(data) - len(model.data)
        assert prefix > 0
        assert prefix % 64 == 0
        assert data[prefix:] == model.data
        new = read(data)
        old = model.graph.subgraphs[0]
        assert new.subgraphs[0].tensors[: len(old.tensors)] == old.tensors
        assert len(new.subgraphs[0].operators) == len(expansion.program)
        assert [s.operators for s in new.subgraphs[1:]] == [s.operators for s in model.graph.subgraphs[1:]]
        # The package of the schema reads the same, what peakmem has no field for included.
        theirs, was = (tflite.Model.GetRootAs(d).Subgraphs(0) for d in (data, model.data))
        assert theirs.TensorsLength() == len(new.subgraphs[0].tensors)
        values = same_values(new)
        for t in range(was.TensorsLength(), theirs.TensorsLength()):
            copy, origin = theirs.Tensors(t), was.Tensors(values[t])
            assert copy.ShapeAsNumpy().tolist() == origin.ShapeAsNumpy().tolist()
            assert (copy.Type(), copy.Buffer(), copy.IsVariable()) == (origin.Type(), origin.Buffer(), origin.IsVariable())
            assert copy.Name().decode().startswith(origin.Name().decode() + "#")
        for j, i in enumerate(expansion.statement_of):
            a, b = theirs.Operators(j), was.Operators(i)
            assert (a.OpcodeIndex(), a.BuiltinOptionsType()) == (b.OpcodeIndex(), b.BuiltinOptionsType())
            if b.BuiltinOptions() is not None:
                assert a.BuiltinOptions().Pos == b.BuiltinOptions().Pos + prefix


def test_the_enlarged_file_is_the_enlarged_program(tiny, orders):
    """Whatever order is then asked for: the same live peak, and a plan that is no worse than the greedy arena."""
    for seed, file in enumerate(files(tiny)):
        model = load(tiny, file)
        rng = random.Random(seed)
        expansion = any_expansion(model.program, rng, 4)
        drawn = orders(expansion.program, rng)
        wanted = scheduled_timeline(expansion.program, drawn).peak
        enlarged = model.enlarged(expansion)
        assert scheduled_timeline(enlarged.program, drawn).peak == wanted
        other = model.apply(Schedule(drawn, expansion=expansion))
        found = model.structure(other)
        assert found.difference == ""
        assert f"{len(expansion.program) - len(model.program)} run once more" in found.relation
        assert other.structure(model).difference.endswith("is missing from the second")
        assert other.predicted_bytes >= scheduled_timeline(other.program, {}).peak
        assert model.apply(Schedule(drawn, expansion=expansion)).data == other.data


def test_the_notes_of_a_plan_made_on_the_way_are_kept(tiny, monkeypatch):
    """Nobody else sees the schedule of the enlarged file."""
    monkeypatch.setattr("peakmem_tflite.model.unplannable", lambda graph: "it is odd")
    model = load(tiny, tiny.diamond())
    expansion = any_expansion(model.program, random.Random(1), 3)
    assert "no plan was made: it is odd" in model.apply(Schedule({}, expansion=expansion)).notes


def test_offsets_of_copies_go_by_their_names(tiny):
    model = load(tiny, tiny.diamond())
    expansion = any_expansion(model.program, random.Random(1), 3)
    offsets, at = {}, 0
    for b in expansion.program.buffers:
        if b.kind != "constant":
            offsets[b.name] = at
            at += b.size
    other = model.apply(Schedule({"": tuple(range(len(expansion.program)))}, offsets, expansion))
    assert other.predicted_bytes == at
    assert sorted(o for o in other.graph.plan if o >= 0) == sorted(offsets.values())


def test_a_plan_for_fewer_tensors_is_dropped(tiny):
    model = load(tiny, tiny.diamond())
    planned = TfliteModel.from_bytes(with_plan(model.graph, [-1] * model.graph.tensor_count))
    expansion = any_expansion(planned.program, random.Random(0), 3)
    data = enlarge(planned.graph, planned.program, expansion)
    assert read(data).plan is None
    assert planned.apply(Schedule({"": tuple(range(len(expansion.program)))}, expansion=expansion)).predicted_bytes > 0


def test_an_expansion_of_another_program_is_refused(tiny):
    model, other = load(tiny, tiny.diamond()), load(tiny, tiny.streaming())
    with pytest.raises(InputError, match="not one of this model"):
        model.apply(Schedule({}, expansion=any_expansion(other.program, random.Random(0), 1)))


def chain(tiny, scale: float = 1.0):
    """a = relu-free sums of x, twice the same shapes: x -> a -> b -> y, where b and a are alike."""
    T, Op = tiny.T, tiny.Op
    tensors = [
        T((1, 4), name="x"), T((4, 4), data=[[scale, 0, 1, 0]] * 4, name="w"), T((1, 4), name="a"), T((1, 4), name="b"),
        T((1, 4), name="c"), T((1, 4), name="y"),
    ]  # fmt: skip
    operators = [
        Op("FULLY_CONNECTED", (0, 1, -1), (2,)), Op("FULLY_CONNECTED", (2, 1, -1), (3,)), Op("ADD", (3, 2), (4,)),
        Op("ADD", (4, 2), (5,)),
    ]  # fmt: skip
    return tiny.File([tiny.Sub(tensors, operators, (0,), (5,))])


def copied(model, v: int, reader: int) -> Expansion:
    """Statement ``v`` once more right before ``reader``, which reads the copy."""
    program = model.program
    (b,) = program.statements[v].writes
    new = len(program.buffers)
    statements = list(program.statements)
    again = replace(statements[v], name="again", writes=(new,))
    reads = tuple(new if r == b else r for r in statements[reader].reads)
    shifted = [
        replace(s, dependences=tuple(d + (d >= reader) for d in s.dependences) + ((reader,) if k == reader else ()))
        for k, s in enumerate(statements)
    ]
    shifted[reader] = replace(shifted[reader], reads=reads, dependences=tuple(sorted(shifted[reader].dependences)))
    shifted.insert(reader, again)
    rows = list(range(len(program)))
    rows.insert(reader, v)
    buffers = (*program.buffers, Buffer("copy", program.buffers[b].size))
    return Expansion(Program(buffers, tuple(shifted)), tuple(rows), (*range(new), b))


def test_the_verifier_follows_every_value(tiny):
    """Each number of the prefix that names a tensor or an operator changed in turn: refused, or without meaning."""
    model = load(tiny, chain(tiny))
    expansion = copied(model, 0, 3)
    data = enlarge(model.graph, model.program, expansion)
    sources = expansion.statement_of
    new = check_enlarged(model.graph, data, sources)
    assert [op.inputs for op in new.subgraphs[0].operators] == [(0, 1, -1), (2, 1, -1), (3, 2), (0, 1, -1), (4, 6)]
    copy, reader = (t for t in operator_tables(new)[3:])
    for table, slot, wrong, match in (
        (copy, 1, (2, 1, -1), "reads other values"),  # the copy computes b, of the same shape
        (copy, 2, (5,), "produced by operators"),
        (reader, 1, (6, 4), "reads other values"),
        (reader, 1, (4, 3), "reads other values"),
        (reader, 1, (4, 4), "reads other values"),
        (reader, 2, (6,), "produced by operators"),
    ):
        bad = bytearray(data)
        at, count = table.vector(slot, 4, "")
        struct.pack_into(f"<{count}i", bad, at, *wrong)
        with pytest.raises(InputError, match=match):
            check_enlarged(model.graph, bytes(bad), sources)
    for wrong in ((0, 1, 2, 1, 3), (0, 1, 2, 3), (0, 1, 2, 0, 2), (1, 0, 2, 0, 3)):
        with pytest.raises(InputError, match="refused"):
            check_enlarged(model.graph, data, wrong)
    bad = bytearray(data)
    bad[-1] ^= 1
    with pytest.raises(InputError):
        check_enlarged(model.graph, bytes(bad), sources)
    late = permute(new, {0: (0, 1, 2, 4, 3)})
    with pytest.raises(InputError, match="illegal order"):
        check_enlarged(model.graph, late, sources)


def test_the_verifier_refuses_another_operator_code(tiny):
    """The copy of a sum becomes a maximum in all but its shapes."""
    file = chain(tiny)
    file.subgraphs[0].operators[3] = tiny.Op("MAXIMUM", (4, 2), (5,))
    model = load(tiny, file)
    data = bytearray(enlarge(model.graph, model.program, copied(model, 2, 3)))
    table = operator_tables(read(bytes(data)))[3]
    assert table.scalar(0, "I") == 1
    struct.pack_into("<I", data, table.position(0), 2)
    with pytest.raises(InputError, match="is not operator 2"):
        check_enlarged(model.graph, bytes(data), (0, 1, 2, 2, 3))


def test_the_verifier_refuses_other_options(tiny):
    """The copy is led to the options of another operator of its kind."""
    file = chain(tiny)
    file.subgraphs[0].operators[1].options = {"FusedActivationFunction": 1}
    model = load(tiny, file)
    expansion = copied(model, 0, 3)
    data = bytearray(enlarge(model.graph, model.program, expansion))
    tables = operator_tables(read(bytes(data)))
    assert tables[3].target(4) == tables[0].target(4) != tables[1].target(4)
    struct.pack_into("<I", data, tables[3].position(4), tables[1].target(4) - tables[3].position(4))
    with pytest.raises(InputError, match=r"operator 3 .* has other options than operator 0"):
        check_enlarged(model.graph, bytes(data), expansion.statement_of)


def test_the_verifier_refuses_effects_out_of_order(tiny):
    """Values flow as they should; only the initialisation comes too late."""
    model = load(tiny, tiny.streaming())
    expansion = copied(model, 3, 4)
    new = check_enlarged(model.graph, enlarge(model.graph, model.program, expansion), expansion.statement_of)
    order = (1, 2, 0, *range(3, len(expansion.program)))
    sources = [expansion.statement_of[v] for v in order]
    with pytest.raises(InputError, match=r"READ_VARIABLE.* runs before operator 0 .CALL_ONCE"):
        check_enlarged(model.graph, permute(new, {0: order}), sources)


def test_what_has_effects_never_runs_twice(tiny):
    """A program that says a read of a variable is pure does not get past the file's meaning."""
    model = load(tiny, tiny.streaming())
    (read_at,) = [v for v, s in enumerate(model.program.statements) if s.op == "READ_VARIABLE"]
    assert not model.program.statements[read_at].pure
    with pytest.raises(InputError, match="runs again, which its effects forbid"):
        model.enlarged(copied(model, read_at, read_at + 1))


def test_values_known_to_be_the_same(tiny):
    model = load(tiny, chain(tiny))
    enlarged = model.enlarged(copied(model, 0, 3))
    assert same_values(enlarged.graph) == {t: t for t in range(6)} | {6: 2}
    assert same_values(model.graph) == {t: t for t in range(6)}


def test_copies_run_as_predicted(tiny, orders, tflm):
    for seed, file in enumerate(files(tiny)):
        if seed % 3 == 2:
            continue
        model = load(tiny, file)
        rng = random.Random(seed)
        expansion = any_expansion(model.program, rng, 4)
        other = model.apply(Schedule(orders(expansion.program, rng), expansion=expansion))
        found = model.verify(other)
        assert found.failures == ()
        assert found.as_predicted
        assert found.bitwise_identical
        assert f"{len(expansion.program.buffers) - len(model.program.buffers)} recomputed" in found.compared


def test_a_wrong_copy_is_found(tiny, tflm):
    """Both models are enlarged; in one the weights differ, so its copy does too."""
    model = load(tiny, chain(tiny))
    wrong = load(tiny, chain(tiny, 2.0))
    found = model.verify(wrong.enlarged(copied(wrong, 0, 3)))
    assert not found.bitwise_identical
    assert any("tensor 2 ('a')" in f for f in found.failures)
    # A copy of something else has no original to be compared with; then the outputs decide.
    enlarged = model.enlarged(copied(model, 0, 3))
    data = bytearray(enlarged.data)
    at, count = operator_tables(enlarged.graph)[3].vector(1, 4, "")
    struct.pack_into(f"<{count}i", data, at, 4, 1, -1)
    found = model.verify(TfliteModel.from_bytes(bytes(data)))
    assert not found.bitwise_identical
    assert found.compared.startswith("all 1 outputs (the models have different tensors)")


@pytest.mark.parametrize(("name", "target"), [("gen_unet_64", 184320), ("gen_swiftnet_cell_96", 195840)])
def test_real_models_below_their_best_order(shared, tflm, name, target):
    (path,) = [p for p in shared if p.stem == name]
    found = recompute(load_shared(path, steps=3), target_peak=target, whole_front=False, time_limit=600)
    assert found.ordering.certificate is not None
    assert found.ordering.peak == found.ordering.lower_bound > target
    assert found.verification is not None
    assert found.verification.failures == ()
    assert found.verification.as_predicted
    assert found.verification.bitwise_identical
    assert found.verification.optimized_bytes <= target


def test_small_models_are_at_the_floor(shared):
    for path in shared:
        if path.stem.startswith("mlperf_"):
            found = recompute(load_shared(path), measure=False)
            assert found.at_floor, path.name


def test_a_copy_that_is_written_over_in_place_is_left_out(tiny):
    """tflite-runtime writes a sum over its operand if nothing else reads it, even where it is to keep all tensors."""
    pytest.importorskip("tflite_runtime", reason="needs pip install 'peakmem-tflite[tflite-runtime]'")
    file = chain(tiny)
    file.subgraphs[0].operators[2:] = [tiny.Op("ADD", (2, 3), (4,)), tiny.Op("ADD", (2, 4), (5,))]
    model = load(tiny, file, runtime="tflite-runtime")
    found = model.verify(model.enlarged(copied(model, 0, 3)))
    assert found.failures == ()
    assert "overwritten in place" in found.compared
