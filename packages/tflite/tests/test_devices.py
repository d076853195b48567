"""Kernels of devices: their scratch by formula, by a list and by a log, and what they make of a file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from peakmem.frontends import complete_options
from peakmem.model import Buffer, Expansion, InputError, Program, Schedule, Statement, UsageError
from peakmem.ordering import order_program
from peakmem_tflite import devices
from peakmem_tflite.arena import allocations, head, simulate
from peakmem_tflite.devicelog import DeviceLog
from peakmem_tflite.frontend import frontend
from peakmem_tflite.graph import Operator, Subgraph, Tensor, Window
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.planning import Outcome
from peakmem_tflite.settings import Settings
from peakmem_tflite.targets import ABOUT, TABLES, Listed, requests

# Shapes as width, height, channels; what the C sources of five libraries return for them, compiled and called.
RELEASES = ("esp-nn-1.1.2", "esp-nn-1.2.1", "esp-nn-1.2.3", "cmsis-nn-dsp", "cmsis-nn-mve")
RETURNED = [
    ("CONV_2D", (1, 1, 32), (1, 1), (1, 1, 64), (1, 1), (1, 1), 1, (2080, 2080, 2112, 0, 0)),
    ("CONV_2D", (8, 8, 20), (1, 1), (8, 8, 16), (1, 1), (1, 1), 1, (2336, 2336, 2368, 0, 0)),
    ("CONV_2D", (8, 8, 3), (3, 3), (8, 8, 16), (1, 1), (1, 1), 1, (2700, 672, 704, 112, 128)),
    ("CONV_2D", (9, 9, 16), (3, 3), (5, 5, 24), (2, 2), (1, 1), 1, (5520, 11280, 11312, 576, 576)),
    ("CONV_2D", (8, 1, 12), (3, 1), (6, 1, 8), (1, 1), (1, 1), 1, (448, 832, 864, 144, 36)),
    ("CONV_2D", (8, 1, 12), (4, 1), (8, 1, 8), (1, 1), (1, 1), 1, (696, 1212, 1244, 192, 60)),
    ("DEPTHWISE_CONV_2D", (12, 12, 16), (3, 3), (12, 12, 16), (1, 1), (1, 1), 1, (3296, 3296, 3296, 0, 4464)),
    ("DEPTHWISE_CONV_2D", (60, 60, 16), (3, 3), (60, 60, 16), (1, 1), (1, 1), 1, (61664, 3136, 3136, 0, 4464)),
    ("DEPTHWISE_CONV_2D", (10, 10, 24), (3, 3), (5, 5, 24), (2, 2), (1, 1), 1, (5248, 5760, 5760, 0, 4464)),
    ("DEPTHWISE_CONV_2D", (10, 10, 8), (3, 3), (8, 8, 8), (1, 1), (1, 1), 1, (1760, 1776, 1776, 0, 4464)),
    ("DEPTHWISE_CONV_2D", (1, 23, 64), (1, 23), (1, 1, 64), (1, 1), (1, 1), 1, (32, 5920, 5920, 2944, 11408)),
    ("DEPTHWISE_CONV_2D", (48, 48, 40), (5, 5), (24, 24, 40), (2, 2), (1, 1), 1, (32, 21232, 21232, 2000, 12400)),
    ("DEPTHWISE_CONV_2D", (9, 9, 5), (3, 3), (7, 7, 5), (1, 1), (1, 1), 1, (32, 1952, 1952, 0, 4464)),
    ("DEPTHWISE_CONV_2D", (9, 9, 1), (8, 10), (9, 9, 8), (1, 1), (1, 1), 8, (1458, 1474, 1474, 0, 960)),
    ("DEPTHWISE_CONV_2D", (13, 13, 32), (3, 3), (9, 9, 32), (1, 1), (2, 2), 1, (4176, 4176, 4176, 0, 0)),
]


def tensor(width, height, channels, kind="INT8") -> Tensor:
    return Tensor("", (1, height, width, channels), kind, width * height * channels, 0, False, False)


@pytest.mark.parametrize("row", RETURNED, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_formulas_return_what_the_sources_return(row):
    op, x, (width, height), y, stride, dilation, multiplier, sizes = row
    shape = (1, height, width, y[2]) if op.startswith("D") else (y[2], height, width, x[2])
    weights = Tensor("", shape, "INT8", 1, 1, True, False)
    operator = Operator(op, False, 1, (0, 1, -1), (2,), window=Window(stride, dilation, multiplier))
    for release, size in zip(RELEASES, sizes):
        assert sum(TABLES[release][op](operator, [tensor(*x), weights, None], [tensor(*y)])) == size, release
        floats = [tensor(*x, "FLOAT32"), weights, None], [tensor(*y, "FLOAT32")]
        assert TABLES[release][op](operator, *floats) == []


@pytest.mark.parametrize("target", TABLES)
@pytest.mark.parametrize("stride", [(0, 0), (-3, -3), (2**31 - 1, 1)])
def test_steps_that_make_no_sense_ask_for_nothing_odd(target, stride):
    shapes = [(1, 1, 9, 4), (8, 1, 3, 4), (1, 1, 9, 8)]
    tensors = tuple(Tensor("", shape, "INT8", 288, i, i == 1, False) for i, shape in enumerate(shapes))
    for op in ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"):
        inputs = (0, 1) if op != "TRANSPOSE_CONV" else (0, 1, 0)
        operator = Operator(op, False, 1, inputs, (2,), window=Window(stride))
        sizes = requests(target, 0, Subgraph("", tensors, (0,), (2,), (operator,), 0), operator)
        assert all(size >= 0 and size % 16 == 0 for size in sizes)


def by_name(paths, name):
    (path,) = [p for p in paths if p.stem == name]
    return TfliteModel.from_bytes(path.read_bytes(), path=path).graph


@pytest.mark.parametrize(
    ("name", "target", "size"),
    [
        ("mww2_okay_nabu", "esp-nn-1.2.1", 19440),  # as boards with an ESP32-S3 and ESPHome print it
        ("mww2_vad", "esp-nn-1.2.1", 17088),
        ("mww2_okay_nabu", "esp-nn-1.1.2", 11472),
        ("mww2_okay_nabu", "esp-nn-newer", 11504),
        ("mww1_okay_nabu", "esp-nn-1.2.1", 21216),
    ],
)
def test_heads_of_public_logs(shared, name, target, size):
    assert head(by_name(shared, name), target) == size


def test_the_best_order_with_the_kernels_of_a_board(shared):
    for name, size in (("mww2_okay_nabu", 16048), ("gen_swiftnet_cell_96", 350896)):
        model = TfliteModel(by_name(shared, name), Settings("esp-nn-1.2.1", named=True))
        ordering = order_program(model.program)
        other = model.apply(model.schedule(ordering))
        assert other.predicted_bytes == ordering.lower_bound == size


def load(tiny, file=None, **settings):
    data = tiny.encode(file or tiny.convolutions())
    return TfliteModel.from_bytes(data, settings=Settings(**{"steps": 3, "named": "target" in settings, **settings}))


def optimized(model):
    return model.apply(model.schedule(order_program(model.program)))


@pytest.mark.parametrize("target", TABLES)
def test_order_plan_and_program_charge_the_target(tiny, target):
    model = load(tiny, target=target)
    assert model.program.statements[1].workspace == sum(requests(target, 0, model.graph.subgraphs[0], model.graph.subgraphs[0].operators[1]))
    assert model.predicted_bytes == head(model.graph, target)
    other = optimized(model)
    assert other.kernels == target
    assert other.predicted_bytes == head(other.graph, target, None, other.graph.plan) <= model.predicted_bytes
    row = next(r for r in model.extras(other, None)["devices"] if r["target"] == target)
    assert (row["before"], row["after"]) == (model.predicted_bytes, other.predicted_bytes)
    said = " ".join(model.notes)
    assert ("is estimated" in said and ABOUT[target] in said) is (target != "reference")
    assert ("portable reference" if target == "reference" else f"kernels of {target}") in other.snippet()


def test_measuring_here_says_nothing_of_another_head(tiny, tflm):
    model = load(tiny, target="esp-nn-1.2.1")
    other = optimized(model)
    found = model.verify(other)
    assert found.failures == ()
    assert found.bitwise_identical
    assert not found.measured
    assert (found.baseline_predicted, found.predicted_bytes) == (model.predicted_bytes, other.predicted_bytes)
    assert found.details["portable_heads"] == [head(m.graph, "reference", None, m.graph.plan) for m in (model, other)]
    assert any("that of esp-nn-1.2.1 is predicted" in note for note in found.notes)


# What a device prints.


def plan_of(graph, target) -> str:
    """As GreedyMemoryPlanner::PrintMemoryPlan does, with other lines around."""
    buffers = allocations(graph, target)
    _, offsets = simulate(buffers, graph.plan)
    lines = ["[12:00:00][I][app:012]: Project started"]
    for i, (b, at) in enumerate(zip(buffers, offsets)):
        mark = "*" if b.first == b.last else "ab"[i % 2]
        lines.append(f"[D] {mark} (id={i}): size={b.size}, offset={at}, first_used={b.first} last_used={b.last}")
    return "\n".join([*lines, "   0: aaaa...... (3k)", "done"])


def logged(tiny, text, file=None, **settings):
    return load(tiny, file, logs=(DeviceLog.parse(text, "board.log"),), **settings)


@pytest.mark.parametrize("make", ["convolutions", "branching", "streaming", "diamond"])
@pytest.mark.parametrize("target", ["reference", "esp-nn-1.2.3", "cmsis-nn-mve"])
def test_a_memory_plan_tells_the_scratch_whatever_the_kernels(tiny, make, target):
    file = getattr(tiny, make)
    named = load(tiny, file(), target=target)
    model = logged(tiny, plan_of(named.graph, target), file())
    assert isinstance(model.kernels, Listed)
    assert [s.workspace for s in model.program.statements] == [s.workspace for s in named.program.statements]
    assert model.predicted_bytes == named.predicted_bytes
    assert optimized(model).data == optimized(named).data
    assert optimized(model).predicted_bytes == optimized(named).predicted_bytes
    assert "the log board.log lists it" in model.notes[-1]


def test_scratch_of_control_flow_belongs_to_its_operator(tiny):
    """It spans the steps of the subgraphs that the operator runs."""
    file = tiny.branching()
    graph = load(tiny, file).graph
    listed = Listed("", graph, {(0, 0): (64, 32), (1, 0): (48,), (0, 1): (16,)})
    model = logged(tiny, plan_of(graph, listed), file)
    assert model.kernels.sizes == listed.sizes


def test_scratch_of_a_subgraph_that_nothing_runs_belongs_to_nobody(tiny):
    file = tiny.branching()
    file.subgraphs.append(tiny.Sub([tiny.T((1, 8)), tiny.T((1, 8))], [tiny.Op("ADD", (0, 0), (1,))], (0,), (1,), "unused"))
    graph = load(tiny, file).graph
    text = plan_of(graph, Listed("", graph, {(0, 1): (32,), (3, 0): (64,)}))
    assert "size=64, offset=0, first_used=-1 last_used=-1" in text
    assert logged(tiny, text, file).kernels.sizes == {(0, 1): (32,)}


def test_copies_ask_for_what_their_originals_ask(tiny):
    """Listed scratch goes with an operator into another order, and to one like it."""
    model = load(tiny)
    main = model.graph.subgraphs[0]
    listed = Listed("", model.graph, {(0, 1): (96,), (0, 3): (16, 32)})
    again = replace(main.operators[3], outputs=(len(main.tensors),))
    longer = replace(main, tensors=(*main.tensors, main.tensors[main.operators[3].outputs[0]]), operators=(*main.operators[::-1], again))
    assert [requests(listed, 0, longer, op) for op in longer.operators] == [(), (16, 32), (), (96,), (), (16, 32)]


def test_the_size_of_a_head_names_the_kernels(tiny):
    sizes = {target: head(load(tiny).graph, target) for target in TABLES}
    assert sizes["esp-nn-1.2.1"] not in (sizes["reference"], sizes["esp-nn-1.1.2"])
    for text in (
        f"Failed to resize buffer. Requested: {sizes['esp-nn-1.2.1']}, available 11876, missing: 7564",
        f"[RecordingMicroAllocator] Arena allocation head {sizes['esp-nn-1.2.1']} bytes",
    ):
        model = logged(tiny, text)
        assert model.kernels == next(t for t in TABLES if sizes[t] == sizes["esp-nn-1.2.1"])
        assert "the log board.log confirms the head" in model.notes[-1]
    with pytest.raises(InputError, match=r"board.log: the device asked for 77 B, which is what no known kernels ask for .*reference"):
        _ = logged(tiny, "Failed to resize buffer. Requested: 77, available 1, missing: 1").program
    contradicted = logged(tiny, "Arena allocation head 77 bytes", target="esp-nn-1.2.1")
    assert "contradicts: its head is 77 B" in contradicted.notes[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing here\n", "holds neither a memory plan"),
        ("a (id=1): size=16, offset=0, first_used=0 last_used=1", "incomplete at id=1"),
        ("a (id=0): size=16, offset=0, first_used=0 last_used=1\na (id=2): size=16, offset=0, first_used=0 last_used=1", "incomplete at id=2"),
        (f"a (id=0): size={2**40}, offset=0, first_used=0 last_used=1", "incomplete at id=0"),
    ],
)
def test_logs_that_say_nothing(text, message):
    with pytest.raises(InputError, match=message):
        DeviceLog.parse(text, "board.log")


def test_a_log_of_another_file(tiny):
    model = logged(tiny, plan_of(load(tiny).graph, "reference"), tiny.diamond())
    with pytest.raises(InputError, match=r"board.log: no memory plan in it has the tensors of this file"):
        _ = model.program
    text = plan_of(load(tiny).graph, "reference").replace("done", "* (id=10): size=16, offset=0, first_used=99 last_used=99")
    count = text.count("(id=") - 1
    with pytest.raises(InputError, match="used at step 99, which is no operator"):
        _ = logged(tiny, text.replace("(id=10): size=16", f"(id={count}): size=16")).program


def test_a_log_after_flashing_is_compared_with_the_prediction(tiny, tflm):
    first = load(tiny, target="esp-nn-1.2.1")
    other = optimized(first)
    assert other.predicted_bytes < first.predicted_bytes
    before, after = (DeviceLog.parse(plan_of(m.graph, "esp-nn-1.2.1"), f"{n}.log") for m, n in ((first, "old"), (other, "new")))
    found = replace(first, settings=replace(first.settings, logs=(after,))).verify(other)
    assert found.failures == ()
    assert found.details["device_logs"] == [
        {"log": "new.log", "file": "the rewritten file", "head": other.predicted_bytes, "predicted": other.predicted_bytes}
    ]
    # The scratch from the first log, the prediction for the second; and a single log of either file.
    for logs in ((before, after), (before,), (after,)):
        unnamed = load(tiny, logs=logs)
        found = unnamed.verify(TfliteModel(other.graph, unnamed.settings))
        assert found.failures == ()
        assert len(found.details["device_logs"]) == len(logs)
    wrong = DeviceLog.parse(plan_of(other.graph, "esp-nn-1.1.2"), "new.log")
    found = replace(first, settings=replace(first.settings, logs=(wrong,))).verify(other)
    assert found.failures[0].startswith("new.log: the head of the rewritten file on the device is ")
    strange = DeviceLog.parse(plan_of(load(tiny, tiny.diamond()).graph, "reference"), "x.log")
    found = replace(first, settings=replace(first.settings, logs=(strange,))).verify(other)
    assert found.failures == ("x.log: no memory plan in it is of one of these files",)


def test_only_the_size_of_a_head_after_flashing(tiny, tflm):
    first = load(tiny, target="esp-nn-1.2.1")
    other = optimized(first)
    for size, agrees in ((other.predicted_bytes, True), (first.predicted_bytes, True), (77, False)):
        log = DeviceLog.parse(f"Arena allocation head {size} bytes", "new.log")
        found = replace(first, settings=replace(first.settings, logs=(log,))).verify(other)
        assert (found.failures == ()) is agrees


# What a person lists.


def scratch_file(tmp_path, operators, schema="peakmem.scratch/1"):
    path = tmp_path / "scratch.json"
    path.write_text(json.dumps({"schema": schema, "operators": operators}))
    return str(path)


def loaded(tiny, tmp_path, **options):
    path = tmp_path / "model.tflite"
    path.write_bytes(tiny.encode(tiny.convolutions()))
    return frontend.load(path, complete_options(frontend, options))


def test_scratch_from_a_file(tiny, tmp_path):
    model = loaded(tiny, tmp_path, scratch=scratch_file(tmp_path, [{"output": 3, "bytes": 100}, {"output": "y", "bytes": [16, 0, 20]}]))
    assert [s.workspace for s in model.program.statements] == [112, 0, 0, 0, 16 + 32]
    other = optimized(model)
    assert sorted(s.workspace for s in other.program.statements) == [0, 0, 0, 48, 112]
    assert "scratch is charged as the file" in model.notes[-1]


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([{"output": 999, "bytes": 1}], r"operators\[0\]: no tensor is called 999"),
        ([{"output": True, "bytes": 1}], "no tensor is called True"),
        ([{"output": 0, "bytes": 1}], "no operator produces tensor 0"),
        ([{"output": 3, "bytes": 1}, {"output": 3, "subgraph": 4, "bytes": 1}], r"operators\[1\]: there is no subgraph 4"),
        ([{"output": 3, "bytes": -1}], "bytes must be a whole number"),
        ([{"output": 3, "bytes": [1, 2.5]}], "bytes must be a whole number"),
        ([{"output": 3}], "bytes must be a whole number"),
        ("none", "is not"),
        ([3], "is not"),
    ],
)
def test_scratch_files_that_are_wrong(tiny, tmp_path, operators, message):
    with pytest.raises(InputError, match=f"scratch.json: .*{message}"):
        _ = loaded(tiny, tmp_path, scratch=scratch_file(tmp_path, operators)).program


def test_options_that_contradict_or_cannot_be_read(tiny, tmp_path):
    with pytest.raises(UsageError, match="give one of them"):
        loaded(tiny, tmp_path, scratch=scratch_file(tmp_path, []), target="reference")
    with pytest.raises(UsageError, match=r"did you mean 'esp-nn-1\.2\.3'"):
        loaded(tiny, tmp_path, target="esp-nn-1.2.")
    with pytest.raises(InputError, match=r"no\.log: cannot be read"):
        loaded(tiny, tmp_path, device_log=(str(tmp_path / "no.log"),))
    (tmp_path / "not.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        loaded(tiny, tmp_path, scratch=str(tmp_path / "not.json"))
    with pytest.raises(InputError, match="is not"):
        loaded(tiny, tmp_path, scratch=scratch_file(tmp_path, [], schema="other/1"))


# Never worse.


def heads(graph):
    return {target: head(graph, target, None, graph.plan) for target in TABLES}


def risky(tiny, **settings):
    """The order that is best for the portable kernels is worse with those of an ESP32-S3."""
    return load(tiny, tiny.convolutions((4, 4, 8, 8)), **settings)


def test_without_a_target_no_known_kernels_need_more(tiny):
    model = risky(tiny)
    alone = optimized(risky(tiny, target="reference"))
    before, worse = heads(model.graph), heads(alone.graph)
    assert alone.predicted_bytes < model.predicted_bytes
    assert any(worse[t] > before[t] for t in TABLES)
    schedule = model.schedule(order_program(model.program))
    assert model.apply(schedule).data == model.data
    target = max(TABLES, key=lambda t: worse[t] - before[t])
    assert f"{before[target]:,} B -> {worse[target]:,} B with {target}; the file is left as it is" in schedule.notes[0]
    assert "--target" in schedule.notes[0]


def test_the_largest_scratch_holds_that_of_all_kernels(tiny):
    graph = load(tiny).graph
    main = graph.subgraphs[0]
    largest = [sum(requests(devices._largest(graph), 0, main, op)) for op in main.operators]
    assert largest == [max(sum(requests(t, 0, main, op)) for t in TABLES) for op in main.operators]
    assert min(largest[:4]) > 0 == largest[4]


def test_what_is_smaller_everywhere_is_taken_instead(tiny):
    """Of those planned with more scratch, the one whose arena is smallest for the portable kernels."""
    model = load(tiny)
    bad_outcome = Outcome({"": (0, 2, 1, 3, 4)}, tuple(4096 * (t == 3) for t in range(model.graph.tensor_count)), 1, False)
    given = dict(model.given)
    good = optimized(model)  # here the best for the portable kernels is fine with all
    order = tuple(model.graph.subgraphs[0].operators.index(op) for op in good.graph.subgraphs[0].operators)
    good_outcome = Outcome({"": order}, good.graph.plan, 0, False)
    asked = []

    def planned(kernels, near):
        asked.append((kernels if isinstance(kernels, str) else kernels.name, near))
        return good_outcome if near == "own" else replace(bad_outcome, orders=given)

    found, said = devices.never_worse(model.graph, model.mapped, planned, model.predicted_bytes)
    assert asked[0] == ("reference", "best")
    assert ("the largest of all known kernels", "own") in asked
    assert found is not None
    assert (found.orders, found.offsets) == (good_outcome.orders, good_outcome.offsets)
    assert found.head == head(good.graph, "reference", None, good.graph.plan) < model.predicted_bytes
    assert "this one is larger with none of the known kernels" in said[0]


def test_copies_that_are_dear_with_other_kernels_are_written_and_said(tiny):
    """Recomputation has a target of its own, so its file is written; who has not named the kernels is told."""
    program = load(tiny).program
    first, reader = program.statements[0], program.statements[3]
    again = Statement("again", op=first.op, reads=first.reads, writes=(len(program.buffers),), workspace=first.workspace, cost=first.cost)
    late = replace(reader, reads=tuple(len(program.buffers) if b == first.writes[0] else b for b in reader.reads))
    rows = [0, 1, 2, 0, 3, 4]
    statements = [again if i == 3 else late if i == 4 else program.statements[v] for i, v in enumerate(rows)]
    buffers = (*program.buffers, Buffer("copy", program.buffers[first.writes[0]].size))
    made = {b: i for i, s in enumerate(statements) for b in s.writes}
    statements = [replace(s, dependences=tuple(sorted({made[b] for b in s.reads if b in made}))) for s in statements]
    expansion = Expansion(Program(buffers, tuple(statements)), tuple(rows), (*range(len(program.buffers)), first.writes[0]))
    for settings in ({}, {"target": "reference"}):
        model = load(tiny, **settings)
        other = model.apply(Schedule({}, expansion=expansion))
        before, after = heads(model.graph), heads(other.graph)
        worst = max(TABLES, key=lambda t: after[t] - before[t])
        told = [note for note in other.notes if note.startswith("with ")]
        if settings or after[worst] <= before[worst]:
            assert not told
        else:
            assert told == [f"with {worst} the new file is larger: {before[worst]:,} B -> {after[worst]:,} B; name the kernels of the board with --target"]
    assert devices.warning(model.graph, model.graph) == ()
    assert devices.warning(optimized(model).graph, model.graph)[0].startswith("with ")


@pytest.mark.parametrize("no_plan", [False, True])
def test_real_models_are_never_worse(shared, no_plan):
    names = {"mww1_okay_nabu", "gen_swiftnet_cell_96", "mww2_okay_nabu", "mlperf_vww96_int8", "gen_inception_64", "gen_darts_v2_32"}
    for path in shared:
        if path.stem in names:
            model = TfliteModel.from_bytes(path.read_bytes(), path=path, settings=Settings(no_plan=no_plan))
            other = optimized(model)
            before, after = heads(model.graph), heads(other.graph)
            assert all(after[t] <= before[t] for t in TABLES), path.name
            if path.stem == "mww1_okay_nabu" and not no_plan:
                assert other.predicted_bytes <= 15808 < 16384
