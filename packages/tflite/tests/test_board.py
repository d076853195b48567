"""The number to copy: the tail by formula against the real one and public logs, two memories, several models, C source."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from peakmem.frontends import complete_options
from peakmem.model import InputError, UsageError
from peakmem.ordering import order_program
from peakmem.transform.split import floor, glance, lay_out
from peakmem_tflite import board, levers, sharing, tail
from peakmem_tflite.accesses import accesses
from peakmem_tflite.arena import allocations, head, planner_temp
from peakmem_tflite.frontend import frontend
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import with_plan, without_untouched
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_emptied
from peakmem_tflite.targets import TABLES


def load(data, **settings):
    return TfliteModel.from_bytes(data, settings=Settings(**{"steps": 3, **settings}))


def optimized(model):
    return model.apply(model.schedule(order_program(model.program)))


def recorded_tails(graphs):
    from peakmem_tflite.measure import Subject, _start

    return [row["tail"] for row in _start("tflm", [Subject("a model", g) for g in graphs], 0, None).found]


# The tail.


@pytest.mark.parametrize(
    ("members", "host", "device"),
    [
        ("1i", (4, 4), (4, 4)),
        ("2p1i", (24, 8), (12, 4)),
        ("1b1i", (8, 4), (8, 4)),
        ("1i1q", (16, 8), (16, 8)),
        ("5i1b", (24, 4), (24, 4)),
        ("3h1i1h1i", (20, 4), (20, 4)),
        ("6p1i1p", (64, 8), (32, 4)),
        ("1i1p2i3p2i1b", (64, 8), (40, 4)),
    ],
)
def test_structures_are_laid_out_as_in_c(members, host, device):
    assert (tail.HOST.structure(members), tail.DEVICE.structure(members)) == (host, device)


def test_the_tail_of_the_host_is_exact(tiny, tflm):
    files = [tiny.diamond(), tiny.streaming(), tiny.branching(), tiny.convolutions(), *(tiny.random_file(seed, 20) for seed in range(6))]
    graphs = [read(tiny.encode(file)) for file in files]
    assert [tail.tail(g, tail.HOST).size for g in graphs] == recorded_tails(graphs)


def test_the_tails_of_the_shared_models_are_exact(shared, tflm):
    graphs = [read(path.read_bytes()) for path in shared]
    wrong = [(p.name, tail.tail(g, tail.HOST).size, real) for p, g, real in zip(shared, graphs, recorded_tails(graphs)) if tail.tail(g, tail.HOST).size != real]
    assert not wrong


@pytest.mark.parametrize("make", ["diamond", "streaming", "convolutions", "branching"])
def test_the_smallest_arena_of_the_host_is_what_the_number_adds_up(tiny, tflm, make):
    """Head and tail, or planner and the tail there is while it plans; the interpreter may lose 16 bytes to alignment."""
    model = load(tiny.encode(getattr(tiny, make)()), steps=1)
    measured = model.verify(replace(model)).details["arena_before"]
    kept = tail.tail(model.graph, tail.HOST)
    needed = max(measured["head"] + kept.size, measured["planner_temp"] + kept.planning)
    assert 0 <= measured["smallest_arena"] - needed < 32


@pytest.mark.parametrize(
    ("name", "printed", "missed"),
    # What ESPHome printed: the arena less what was available when the head was to be reserved.
    [("mww2_okay_nabu", 14204, 0), ("mww2_vad", 7392, 20)],
)
def test_the_tail_of_public_logs(shared, name, printed, missed):
    (path,) = [p for p in shared if p.stem == name]
    graph = read(path.read_bytes())
    estimate = tail.tail(graph, tail.DEVICE, "esp-nn-1.2.1", lists_variables=False).planning
    assert printed - estimate == missed
    assert missed < board.margin(graph, estimate)


def test_the_smallest_arena_of_a_public_report(shared):
    """ResNet-8 was reported to run in 55,296 bytes and not in 54,272."""
    (path,) = [p for p in shared if p.stem == "mlperf_ic_resnet8_int8"]
    found = board.arena(read(path.read_bytes()), "reference")
    assert 54272 < found.head + found.tail <= found.size <= 55296


def test_what_no_formula_knows_is_named(tiny):
    file = tiny.File([tiny.Sub([tiny.T((1, 8)), tiny.T((1, 8))], [tiny.Op("mystery", (0,), (1,), custom=True)], (0,), (1,))])
    found = load(tiny.encode(file)).board
    assert found.unknown == ("mystery",)
    assert any("leaves out what mystery keep" in sentence for sentence in board.sentences(found))


def test_a_planned_variable_is_no_part_of_the_tail(tiny, tflm):
    T = tiny.T
    tensors = [T((1, 8), "INT8"), T((4, 8), "INT8", [[1] * 8] * 4), T((4, 3), "INT8", [[1] * 3] * 4), T((4,), "INT32", [0] * 4),
               T((1, 12), "INT8", variable=True), T((1, 4), "INT8")]  # fmt: skip
    graph = read(tiny.encode(tiny.File([tiny.Sub(tensors, [tiny.Op("SVDF", (0, 1, 2, 3, 4), (5,))], (0,), (5,))])))
    planned = read(with_plan(graph, [0, -1, -1, -1, 256, 64]))
    graphs = [graph, planned]
    assert [tail.tail(g, tail.HOST, plan=g.plan).size for g in graphs] == recorded_tails(graphs)
    assert tail.tail(graph).size > tail.tail(planned, plan=planned.plan).size


# The number.


@pytest.mark.parametrize("target", TABLES)
def test_the_number_holds_head_tail_planner_and_margin(tiny, target):
    model = load(tiny.encode(tiny.convolutions()), target=target, named=True)
    found = model.board
    assert found.head == model.predicted_bytes
    assert found.planner == planner_temp(model.graph, allocations(model.graph, target), pointer=4)
    assert found.size % 16 == 0
    assert found.size >= max(found.head + found.tail, found.before + found.planner) + found.margin
    text = model.snippet()
    for name, value in (("kHead", found.head), ("kTail", found.tail), ("kTensorArenaSize", found.size)):
        assert f"constexpr size_t {name} = {value};" in text
    assert f"tensor_arena_size: {found.size}" in text
    assert f"kTensorArenaSize = {found.size}: " in model.advice[0]
    assert "estimated for a 32-bit device" in model.advice[0]
    sizes = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) B", model.advice[0])]
    assert 0 <= found.size - sum(sizes) < 16
    assert model.extras(model, None)["board"]["before"]["tensor_arena_size"] == found.size


def test_who_named_no_kernels_is_told_the_largest(tiny):
    data = tiny.encode(tiny.convolutions())
    sizes = {t: load(data, target=t, named=True).board.size for t in TABLES}
    name = max(sizes, key=lambda t: sizes[t])
    assert f"up to kTensorArenaSize = {sizes[name]} with {name}" in load(data).advice[1]
    assert len(load(data, target="reference", named=True).advice) == 1


def test_a_planner_that_binds_is_said(tiny):
    model = load(tiny.encode(tiny.random_file(3, 4)))
    found = model.board
    assert found.planning > found.head + found.tail
    assert f"{found.planning - found.head - found.tail:,} B more while it is planned" in model.advice[0]
    assert f"constexpr size_t kPlanning = {found.planning - found.head - found.tail};" in model.snippet()


# Two memories.


def test_two_memories_in_order_of_traffic(tiny):
    data = tiny.encode(tiny.convolutions())
    one = load(data).board
    assert one.head > one.tail
    for size, best in ((one.size, (0, 0)), (one.size - 1, (0, 1)), (one.head - 1, (1, 0)), (1, (1, 1))):
        given = board.memories([f"sram={size}", "psram"])
        rows, counted = board.placings(load(data).graph, "reference", given)
        assert (rows[0].head, rows[0].tail) == best
        assert rows[0].fits
        assert {(r.head, r.tail) for r in rows} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert next(r.slow for r in rows if (r.head, r.tail) == (1, 1)) == counted.head + counted.tail
    rows, _ = board.placings(load(data).graph, "reference", board.memories(["a=1", "b=1"]))
    assert not any(r.fits for r in rows)


def test_the_source_for_two_memories(tiny):
    data = tiny.encode(tiny.convolutions())
    size = load(data).board.size
    text = load(data, memories=(f"sram={size - 1}", "psram")).snippet()
    assert "persistent_arena, kPersistentSize, non_persistent_arena, kNonPersistentSize" in text
    assert "non_persistent_arena[kNonPersistentSize];  // in sram" in text
    assert "// in psram\nalignas(16) static uint8_t tensor_arena[" in load(data, memories=("sram=1", "psram")).snippet()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["sram=1KiB"], "name two memories"),
        (["a", "b", "c"], "name two memories"),
        (["a=1", "a=2"], "name two memories"),
        (["=1", "b"], "give NAME=SIZE"),
        (["a=much", "b"], "much"),
    ],
)
def test_memories_that_are_wrong(tiny, tmp_path, given, message):
    path = tmp_path / "model.tflite"
    path.write_bytes(tiny.encode(tiny.diamond()))
    with pytest.raises(UsageError, match=message):
        frontend.load(path, complete_options(frontend, {"memory": tuple(given)}))


def test_accesses_are_counted(tiny):
    """A product of 4 x 8 weights reads its input 4 times; a sum reads each of its inputs once."""
    T = tiny.T
    tensors = [T((1, 8)), T((4, 8), data=[[1] * 8] * 4), T((1, 4)), T((1, 4), name="y")]
    file = tiny.File([tiny.Sub(tensors, [tiny.Op("FULLY_CONNECTED", (0, 1, -1), (2,)), tiny.Op("ADD", (2, 2), (3,))], (0,), (3,))])
    found = accesses(read(tiny.encode(file)), "reference")
    assert (found.head, found.tail) == (4 * 32 + 16 + 16 + 16 + 16, 0)
    assert (found.hottest, found.hottest_bytes) == ("t0", 128)


# Several models.


def tenants(*graphs):
    return [sharing.Tenant(f"{i}.tflite", f"model_{i}", g, "reference") for i, g in enumerate(graphs)]


def test_one_arena_holds_the_largest_head_and_all_tails(tiny):
    graphs = [read(tiny.encode(f)) for f in (tiny.convolutions(), tiny.diamond(), tiny.streaming())]
    found = sharing.share(tenants(*graphs))
    assert found.head == max(head(g, "reference") for g in graphs)
    assert found.tails[0] == tail.tail(graphs[0]).size
    # Allocator and planner are there once; the rest of a tail shifts by what rounding it takes.
    common = sum(tail.DEVICE.structure(m)[0] for m in ("8p1i", "1p2i4p2i1p1b", "5p1b3p"))
    for size, graph in zip(found.tails[1:], graphs[1:]):
        assert abs(tail.tail(graph).size - common - size) <= 32
    assert found.size < found.apart
    text = sharing.source(tenants(*graphs), found)
    assert text.count("MicroAllocator::Create(") == 1
    assert text.count("AllocateTensors()") == 3
    assert "MicroResourceVariables::Create(allocator, 1)" in text


def test_a_single_model_shares_with_itself_alone(tiny):
    graph = read(tiny.encode(tiny.diamond()))
    assert sharing.share(tenants(graph)).size == board.arena(graph, "reference").size


def test_models_that_share_are_measured_one_by_one(tiny, tflm, tmp_path):
    models = []
    for name in ("convolutions", "diamond"):
        path = tmp_path / f"{name}.tflite"
        path.write_bytes(tiny.encode(getattr(tiny, name)()))
        models.append(frontend.load(path, complete_options(frontend, {})))
    found = models[0].share(models[1:])
    assert found.failures == ()
    assert found.document["measured_heads"] == [m.predicted_bytes for m in models]
    assert f"kTensorArenaSize = {found.document['tensor_arena_size']}" in found.answer
    assert "not measured" in found.notes[0]


def test_state_in_the_head_cannot_be_shared(tiny):
    file = tiny.File([tiny.Sub(
        [tiny.T((1, 4)), tiny.T((1, 4), variable=True), tiny.T((1, 4))], [tiny.Op("ADD", (0, 1), (2,))], (0,), (2,),
    )])  # fmt: skip
    graph = read(tiny.encode(file))
    sharing.share(tenants(graph, graph))
    planned = read(with_plan(graph, [0, 16, 32]))
    with pytest.raises(InputError, match="another model would write over its state"):
        sharing.share(tenants(graph, planned))


def test_names_for_c_are_all_different():
    assert sharing.identifiers(["a-b", "a_b", "a b", "1x", "ä"]) == ["a_b", "a_b_2", "a_b_3", "model_1x", "model__"]


# C source.


def test_the_array_holds_the_file(tiny, tmp_path):
    data = tiny.encode(tiny.diamond())
    model = load(data)
    text = model.c_array("a model")
    assert text == model.c_array("a model")
    body = text[text.index("{") : text.index("}")]
    assert bytes(int(byte, 16) for byte in re.findall(r"0x([0-9a-f]{2})", body)) == data
    assert f"const unsigned int a_model_len = {len(data)};" in text
    assert model.digest in text
    assert "alignas(16) const unsigned char a_model[]" in text
    assert "extern" not in model.c_array("a", language="c")


@pytest.mark.parametrize(("language", "compiler"), [("c++", "g++"), ("c", "gcc")])
def test_a_compiler_takes_the_array(tiny, tmp_path, language, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    path = tmp_path / ("model.cc" if language == "c++" else "model.c")
    path.write_text(load(tiny.encode(tiny.diamond())).c_array("model", language=language))
    subprocess.run([compiler, "-Wall", "-Werror", "-c", str(path), "-o", str(tmp_path / "model.o")], check=True)


# Tensors that nothing touches.


def idle(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors += [tiny.T((1, 300), name="left over"), tiny.T((1, 200), name="too")]
    return file


def test_dropped_tensors_take_nothing(tiny, tflm):
    model = load(tiny.encode(idle(tiny)), drop_untouched=True)
    clean = optimized(load(tiny.encode(tiny.diamond())))
    other = optimized(model)
    assert other.predicted_bytes == clean.predicted_bytes < model.predicted_bytes
    assert [t.shape for t in other.graph.subgraphs[0].tensors[-2:]] == [(0,), (0,)]
    found = model.verify(other)
    assert found.failures == ()
    assert found.as_predicted
    assert found.bitwise_identical
    assert found.compared.startswith("all ")
    assert "tensors" in found.compared
    assert not model.structure(other).difference
    assert optimized(load(other.data, drop_untouched=True)).data == other.data


def test_only_untouched_tensors_may_be_emptied(tiny):
    graph = read(tiny.encode(idle(tiny)))
    data = bytearray(without_untouched(graph))
    check_emptied(graph, bytes(data))
    data[-1] ^= 1
    with pytest.raises(InputError, match="the old file changed"):
        check_emptied(graph, bytes(data))
    other = read(tiny.encode(tiny.diamond()))
    with pytest.raises(InputError):
        check_emptied(other, without_untouched(graph))


# Levers.


def test_what_could_help_is_named_where_nothing_else_can(tiny):
    model = load(tiny.encode(tiny.cells(1)), named=True)
    ordering = order_program(model.program)
    schedule = model.schedule(ordering)
    said = [note for note in schedule.notes if note.startswith("beyond order and plan: ")]
    assert ordering.certificate is not None
    assert len(said) == 3
    assert "bands" in said[0]
    assert "running operators twice" in said[1]
    assert "8-bit activations instead of floats" in said[2]
    # Figures: the floor, and a quarter of each tensor, rounded.
    quarter = int(re.search(r"about ([\d,]+) B", said[2])[1].replace(",", ""))
    assert model.apply(schedule).predicted_bytes / 4 <= quarter < model.apply(schedule).predicted_bytes
    assert not any(note.startswith("beyond") for note in load(tiny.encode(tiny.cells(1)), no_plan=True).schedule(order_program(model.program, effort=0)).notes)


def test_bands_are_named_with_what_a_short_search_of_them_needs(tiny):
    """The figure is that of a split that can be made, and is the lever's own; where nothing can be gained the floor says so."""
    model = load(tiny.encode(tiny.convolutions()), named=True)
    ordering = order_program(model.program)
    source, macs = model.splittable(), sum(s.cost for s in model.program.statements)
    best = levers.Best(model.program, model.graph, {0: ordering.orders[""]}, "reference", ordering.peak, bands=source)
    said = levers.bands(best)
    found = glance(source, ordering.orders[""], ordering.peak, macs // 10)
    assert found.points, said
    made = model.apply_split(lay_out(source, found.points[0].order, found.points[0].regions))
    need = order_program(made.program).peak
    assert int(re.search(r"about ([\d,]+) B", said)[1].replace(",", "")) == need < ordering.peak
    assert any(said in note for note in model.schedule(ordering).notes)
    assert levers.bands(replace(best, bands=None)) == ""
    at_floor = levers.bands(replace(best, head=floor(source).size))
    assert f"no split of it needs less than {floor(source).size:,} bytes" in at_floor
    assert levers.bands(replace(best, head=floor(source).size + 1)).endswith("looks at more orders)")


def test_integers_need_no_smaller_elements(tiny):
    model = load(tiny.encode(tiny.convolutions()), named=True)
    best = levers.Best(model.program, model.graph, {}, "reference", 10**9)
    assert levers.smaller_elements(best) == ""
    assert "can go no lower" in levers.recomputation(best)
    assert "cannot help" in levers.recomputation(replace(best, head=0))
