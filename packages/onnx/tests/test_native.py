"""Deployments through the C interface: the allocator with planned places, arenas, and the texts for C and C++ that make them."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import helper
from peakmem.api import load, optimize
from peakmem.model import Schedule, UsageError
from peakmem_onnx.capi import PLACES, library_of_the_wheel
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.replaying import SOURCE, Places, places_of, recorded, unavailable
from peakmem_onnx.runtime import ask, counting_library, scratch
from peakmem_onnx.snippets import native_snippet
from peakmem_onnx.ways import PORTABLE

from .conftest import SHARED, branches, model, needs_runtime, pypi_model, value
from .test_models import with_if
from .test_orders import random_dag
from .test_ways import confirm

pytestmark = [needs_runtime, pytest.mark.skipif(bool(unavailable()), reason=f"no C interface here: {unavailable()}")]
HEADERS = SHARED / "include"
MODELS = sorted(path.name for path in SHARED.glob("*.onnx"))
needs_headers = pytest.mark.skipif(not HEADERS.exists(), reason="the shared data folder with ONNX Runtime's headers is not there")
needs_counting = pytest.mark.skipif(counting_library() is None, reason="allocations cannot be counted here")


# -- places ----------------------------------------------------------------------------------------------------------


def test_places_of_what_was_recorded():
    found = places_of([128, 64, -1, 64, -2, 192, -3])
    assert found.sizes == (128, 64, 64, 192)
    assert found.offsets[3] is None  # never given back: an output
    assert (found.outputs, found.bytes, found.lower_bound, found.total) == (192, 192, 192, 384)
    assert places_of([]) == Places((), (), 0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_places_in_use_at_once_never_overlap(seed):
    source = random.Random(seed)
    trace, live, count = [], [], 0
    for _ in range(120):
        if live and source.random() < 0.5:
            trace.append(-1 - live.pop(source.randrange(len(live))))
        else:
            trace.append(64 * source.randrange(1, 50))
            live.append(count)
            count += 1
    trace += [-1 - number for number in live[1:]]
    found = places_of(trace)
    number, now = 0, set()
    for entry in trace:
        if entry < 0:
            now.discard(-1 - entry)
            continue
        now.add(number)
        number += 1
        spans = sorted((found.offsets[i], found.offsets[i] + found.sizes[i]) for i in now if found.offsets[i] is not None)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert all(end <= found.bytes for _, end in spans)


@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_of_replayed_places_are_the_predicted_ones(store, seed):
    m = load(store(random_dag(seed)), frontend="onnx", ort_level="none", deploy="replay")
    assert m.quantity == "replay_bytes"
    check = confirm(m.verify(m.apply(Schedule({"": m.executed(m.graph)}))))
    assert check.details["executed_order"] == "exact"


@pytest.mark.parametrize("level", ["none", "all"])
def test_a_file_for_replay(store, tmp_path, level):
    m = load(store(branches()), frontend="onnx", ort_level=level, deploy="replay")
    result = optimize(m, time_limit=600)
    confirm(result.verification)
    assert not result.realized_optimal
    result.model.save(tmp_path / "out.onnx")
    again = load(tmp_path / "out.onnx", frontend="onnx", deploy="replay")
    assert again.places == result.model.places
    rows = {row["name"]: row for row in result.to_json()["onnx"]["scenarios"]}
    assert rows["new order, replayed places"]["modelled_bytes"] == result.model.predicted_bytes
    assert rows["new order, default session"]["modelled_bytes"] == result.model.bytes_under(PORTABLE, result.model.executed)
    text = result.model.snippet()
    assert "peakmem_open(Ort::Env &env)" in text
    assert "PEAKMEM_MEASURED" not in text
    confirm(m.verify(again))
    with pytest.raises(UsageError, match="say --deploy replay"):
        load(store(branches()), frontend="onnx", ort_level=level).verify(load(tmp_path / "out.onnx", frontend="onnx"))


def test_bodies_are_recorded_too(store):
    m = load(store(with_if()), frontend="onnx", ort_level="none", deploy="replay")
    check = m.verify(m)
    assert check.failures == ()
    assert check.optimized_bytes == m.predicted_bytes


DEPLOYMENTS = ({"deploy": "replay"}, {"deploy": "arena"}, {"deploy": "arena", "snippet_language": "c"})
FOLDED = {"light_resnet50.onnx": 0, "light_shufflenet.onnx": 1, "light_squeezenet.onnx": 2}
"""Their weights become constants, up to a hundred megabytes of them that are read and written many times: one deployment each."""


@needs_counting
@pytest.mark.parametrize("name", MODELS)
def test_shared_models_hold_what_was_predicted(name):
    for options in [DEPLOYMENTS[FOLDED[name]]] if name in FOLDED else DEPLOYMENTS:
        m = load(SHARED / name, frontend="onnx", **options)
        assert taken(m) == m.predicted_bytes


RECURRENT = {
    "silero_vad": 512, "silero_vad_half": 512, "silero_vad_16k_op15": 512, "silero_vad_op18_ifless": 512, "silero_vad_openvino_16k": 576,
    "silero_vad_16k_sequence": 0,
}  # fmt: skip
"""Samples; of a whole sequence, four windows."""


@needs_counting
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_hold_what_was_predicted(name):
    path = pypi_model("silero-vad")[0].with_name(f"{name}.onnx")
    if not path.exists():
        pytest.skip(f"this version of the package silero-vad has no {path.name}")
    names = [one.name for one in onnx.load(path).graph.input]
    shape = (f"input=1,{RECURRENT[name]}", "state=2,1,128") if RECURRENT[name] else ("input=4,576",)
    feed = ("sr=16000",) if "sr" in names else ()
    for deploy in ("arena", "replay"):
        m = load(path, frontend="onnx", ort_level="none", shape=shape, feed=feed, deploy=deploy)
        assert taken(m) == m.predicted_bytes


def taken(m) -> int:
    """What a session takes that runs a file in its way."""
    with scratch() as folder:
        (folder / "m.onnx").write_bytes(m.serialized())
        step = {"do": "measure", "level": "none", **m.session, "model": str(folder / "m.onnx"), "feeds_files": write_feeds(m.one_of_each, folder)}
        return ask(folder, [step], preload=counting_library())[0]["taken"]


def same_weights():
    """Weights of one shape that the graph makes: where the executed order is not the file's, or dead storage is kept, there are many."""
    nodes, weights = [], [onnx.numpy_helper.from_array(np.array([64, 64, 3, 3]), "shape")]
    last = "x"
    for k in range(5):
        nodes += [
            helper.make_node("ConstantOfShape", ["shape"], [f"w{k}"], value=helper.make_tensor("v", 1, [1], [0.1])),
            helper.make_node("Conv", [last, f"w{k}"], [f"y{k}"], pads=[1, 1, 1, 1]),
        ]
        last = f"y{k}"
    return model(sorted(nodes, key=lambda node: node.op_type), [value("x", [1, 64, 2, 2])], [value(last, [1, 64, 2, 2])], weights)


@needs_counting
def test_a_file_for_an_arena_in_c_is_numbered_for_it(store, tmp_path):
    """In the order of a default session a file made for Python may hold every weight at once."""
    path = store(same_weights())
    options = {"frontend": "onnx", "ort_level": "none", "deploy": "arena"}
    m = load(path, snippet_language="c", **options)
    python = load(path, **options)
    assert m.predicted_bytes < 5 * 64 * 64 * 3 * 3 * 4 <= python.bytes_under(PORTABLE)
    result = optimize(m, time_limit=5)
    confirm(result.verification)
    assert result.model.predicted_bytes <= m.predicted_bytes
    result.model.save(tmp_path / "out.onnx")
    again = load(tmp_path / "out.onnx", snippet_language="c", **options)
    assert (again.serialized(), again.layout) == ((tmp_path / "out.onnx").read_bytes(), result.model.layout)
    with pytest.raises(UsageError, match="say --deploy arena --snippet-language c"):
        python.verify(load(tmp_path / "out.onnx", **options))
    code = "import sys, peakmem_onnx; peakmem_onnx.session(sys.argv[1], check=True)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out.onnx")], check=True)


# -- programs in C and C++ -------------------------------------------------------------------------------------------

MAIN = """
static void put(const void *data, size_t size) { fwrite(data, 1, size, stdout); }
static void *get(const char *path, size_t size) {
  FILE *file = fopen(path, "rb");
  void *data = malloc(size + 1);
  if (!file || fread(data, 1, size, file) != size) exit(2);
  fclose(file);
  return data;
}
int main(void) {
  const OrtApi *ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  OrtMemoryInfo *memory;
  peakmem_check(ort, ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
#ifdef __cplusplus
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "test");
  Ort::Session made = peakmem_open(env);
  OrtSession *session = made;
#else
  OrtEnv *env;
  peakmem_check(ort, ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "test", &env));
  OrtSession *session = peakmem_open(ort, env);
#endif
  const char *outputs[] = {OUTPUTS};
  OrtValue *results[COUNT];
  OrtValue *kept[COUNT] = {0};
  for (int shapes = 0; shapes < TURNS; shapes++) {
    INPUTS
    for (int turn = 0; turn < 3; turn++) {
      for (int i = 0; i < COUNT; i++) results[i] = NULL;
      peakmem_check(ort, ort->Run(session, NULL, names, (const OrtValue *const *)values, GIVEN, outputs, COUNT, results));
      for (int i = 0; i < COUNT; i++) {
        void *data;
        size_t count;
        OrtTensorTypeAndShapeInfo *info;
        peakmem_check(ort, ort->GetTensorMutableData(results[i], &data));
        peakmem_check(ort, ort->GetTensorTypeAndShape(results[i], &info));
        peakmem_check(ort, ort->GetTensorShapeElementCount(info, &count));
        ort->ReleaseTensorTypeAndShapeInfo(info);
        if (!turn) put(data, count * 4);
        if (kept[i]) ort->ReleaseValue(kept[i]);
        kept[i] = results[i]; /* to the end of the next run, as programs do */
      }
    }
  }
  REPORT
  for (int i = 0; i < COUNT; i++) ort->ReleaseValue(kept[i]);
#ifndef __cplusplus
  ort->ReleaseSession(session);
  ort->ReleaseEnv(env);
#endif
  return 0;
}
"""
REPORT = 'fprintf(stderr, "%zu %zu %zu %zu", peakmem_plan.hits, peakmem_plan.outputs, peakmem_plan.misses, peakmem_plan.touched);'


def quoted(names):
    return ", ".join(f'"{name}"' for name in names)


def program(tmp_path, language, text, sets, outputs, report="", main=MAIN):
    """Compile the snippet with a main function that runs all sets, each three times; the command."""
    names = list(sets[0])
    lines = [f"static const char *names[] = {{{quoted(names)}}};", f"static OrtValue *values[{len(names)}];"]
    for number, feeds in enumerate(sets):
        lines.append(f"if (shapes == {number}) {{")
        for i, array in enumerate(feeds.values()):
            file = tmp_path / f"in{number}_{i}.bin"
            file.write_bytes(np.ascontiguousarray(array).tobytes())
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            shape = ", ".join(map(str, array.shape)) or "1"
            lines.append(
                f"int64_t shape{i}[] = {{{shape}}}; peakmem_check(ort, ort->CreateTensorWithDataAsOrtValue(memory, "
                f'get("{file}", {array.nbytes}), {array.nbytes}, shape{i}, {array.ndim}, '
                f"(ONNXTensorElementDataType){kind}, &values[{i}]));"
            )
        lines.append("}")
    words = {"INPUTS": "\n    ".join(lines), "OUTPUTS": quoted(outputs), "COUNT": len(outputs), "GIVEN": len(names), "TURNS": len(sets),
             "REPORT": report}
    for word, meaning in words.items():
        main = main.replace(word, str(meaning))
    source = text + main
    suffix, compiler, standard = {"c": (".c", "gcc", "-std=gnu11"), "c++": (".cpp", "g++", "-std=c++17")}[language]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    path = tmp_path / f"program{suffix}"
    path.write_text(source)
    binary = tmp_path / f"program_{language}"
    library = library_of_the_wheel()
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)  # under the name that it gives itself
    done = subprocess.run(
        [compiler, standard, "-O1", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}", str(path), "-o", str(binary), str(library),
         f"-Wl,-rpath,{tmp_path}", "-lpthread"], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return binary


def executed(binary):
    done = subprocess.run([str(binary)], capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, [int(part) for part in done.stderr.decode().split() if part.isdigit()]


def python_outputs(path, sets):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return b"".join(array.tobytes() for feeds in sets for array in session.run(None, feeds))


@needs_headers
@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("name", [name for name in MODELS if name in ("aspp_like.onnx", "nas_like.onnx", "light_squeezenet.onnx")])
def test_the_text_for_replay_runs(tmp_path, language, name):
    m = load(SHARED / name, frontend="onnx", deploy="replay")
    m.save(tmp_path / "m.onnx")
    sets = m.origin.feeds[:1]
    text = m.snippet(str(tmp_path / "m.onnx"))
    binary = program(tmp_path, language, text, sets, m.graph.outputs, REPORT)
    outputs, (hits, planned, misses, touched) = executed(binary)
    assert outputs == python_outputs(tmp_path / "m.onnx", sets)
    assert misses == 0
    (places,) = m.places
    assert hits + planned == 3 * len(places.sizes)
    assert touched == places.bytes


@needs_headers
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_text_for_a_planned_arena_runs(store, tmp_path, language):
    m = load(store(branches()), frontend="onnx", ort_level="none", deploy="arena", snippet_language="c")
    m.save(tmp_path / "m.onnx")
    assert str(m.layout[0]) in m.snippet()
    binary = program(tmp_path, language, m.snippet(str(tmp_path / "m.onnx")), m.origin.feeds[:1], m.graph.outputs)
    assert executed(binary)[0] == python_outputs(tmp_path / "m.onnx", m.origin.feeds[:1])


def open_dimension():
    proto = branches()
    for each in (*proto.graph.input, *proto.graph.output):
        each.type.tensor_type.shape.dim[2].dim_param = "h"
    del proto.graph.value_info[:]
    return proto


@needs_headers
@pytest.mark.parametrize("language", ["c", "c++"])
def test_other_shapes_come_from_the_c_library_and_the_plan_is_found_again(store, tmp_path, language):
    path = store(open_dimension())
    planned = {"x": np.ones((1, 3, 16, 16), np.float32)}
    other = {"x": np.ones((1, 3, 24, 16), np.float32)}
    (places,) = recorded(path.read_bytes(), [planned], {"level": "none", "threads": 1})
    text = native_snippet(str(path), threads=1, deployed=[places])
    binary = program(tmp_path, language, text, [planned, other, planned], ["y"], REPORT)
    outputs, (hits, named, misses, touched) = executed(binary)
    assert outputs == python_outputs(path, [planned, other, planned])
    each = len(places.sizes)
    assert hits + named >= 6 * each  # the planned shape: every request, before and after
    assert 0 < misses <= 3 * each
    assert touched == places.bytes


@needs_headers
@pytest.mark.parametrize("language", ["c", "c++"])
def test_every_planned_shape_has_its_places(store, tmp_path, language):
    path = store(open_dimension())
    shapes = [{"x": np.full((1, 3, height, 16), height, np.float32)} for height in (16, 24, 8)]
    places = recorded(path.read_bytes(), shapes, {"level": "none", "threads": 1})
    text = native_snippet(str(path), threads=1, deployed=places, shapes=["h=16", "h=24", "h=8"])
    assert "// shape 2: h=8" in text
    turns = [shapes[k] for k in (0, 1, 2, 0, 2, 1, 1)]
    binary = program(tmp_path, language, text, turns, ["y"], REPORT)
    outputs, (hits, named, misses, touched) = executed(binary)
    assert outputs == python_outputs(path, turns)
    assert misses == 0
    assert hits + named == 3 * sum(len(places[k].sizes) for k in (0, 1, 2, 0, 2, 1, 1))
    assert touched == max(one.bytes for one in places)


ALIKE = """
#include <assert.h>
int main(void) {
  /* Both begin with 64, 128; then the first asks for 256 and the second for 512. */
  static const size_t sizes[] = {64, 128, 256, 64, 128, 512}, offsets[] = {0, 64, 192, 640, 512, 0}, ends[] = {3, 6};
  static size_t scratch[14];
  static PeakmemPlan plan;
  peakmem_init(&plan, sizes, offsets, ends, 2, 704, scratch);
  peakmem_arm(&plan, 1);
  for (int said = 0; said < 2; said++) {
    for (int turn = 0; turn < 4; turn++) {
      void *blocks[3];
      int second = turn & 1;
      if (said) peakmem_shape(&plan, second);
      for (int i = 0; i < 3; i++) blocks[i] = peakmem_alloc(&plan, sizes[3 * second + i]);
      for (int i = 0; i < 3; i++) peakmem_free(&plan, blocks[i]);
    }
    fprintf(stderr, "%zu ", plan.misses);
    peakmem_arm(&plan, 1);
  }
  return 0;
}
"""


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_shape_can_be_said_where_two_begin_alike(tmp_path, language):
    compiler, standard = {"c": ("gcc", "-std=gnu11"), "c++": ("g++", "-std=c++17")}[language]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / ("alike.c" if language == "c" else "alike.cpp")
    source.write_text("#include <stdio.h>\n#include <stdlib.h>\n" + SOURCE.read_text().partition("\n#ifdef PEAKMEM_MEASURED")[0] + ALIKE)
    subprocess.run([compiler, standard, "-Wall", "-Wextra", "-Werror", str(source), "-o", str(tmp_path / "alike"), "-lpthread"], check=True)
    guessed, said = executed(tmp_path / "alike")[1]
    assert guessed == 2  # the first shape's places are in the way of the second one's last request, twice
    assert said == 0


THREADS = """
#include <thread>
int main() {
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "test");
  Ort::Session session = peakmem_open(env);
  bool same = true;
  auto work = [&](float fill) {
    std::vector<float> x(3 * 16 * 16, fill), first;
    int64_t shape[] = {1, 3, 16, 16};
    auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    const char *in[] = {"x"}, *out[] = {"y"};
    for (int i = 0; i < 200; i++) {
      Ort::Value value = Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), shape, 4);
      auto y = session.Run(Ort::RunOptions{nullptr}, in, &value, 1, out, 1);
      const float *data = y[0].GetTensorData<float>();
      std::vector<float> now(data, data + y[0].GetTensorTypeAndShapeInfo().GetElementCount());
      if (first.empty()) first = now;
      if (now != first) same = false;
    }
  };
  std::thread a(work, 1.f), b(work, -2.f), c(work, .5f);
  a.join(); b.join(); c.join();
  fprintf(stderr, "%d %zu", (int)same, peakmem_plan.holding);
  return 0;
}
"""


@needs_headers
def test_threads_share_no_byte(store, tmp_path):
    m = load(store(branches()), frontend="onnx", ort_level="none", deploy="replay")
    m.save(tmp_path / "m.onnx")
    binary = program(tmp_path, "c++", m.snippet(str(tmp_path / "m.onnx")), m.origin.feeds[:1], m.graph.outputs, main=THREADS)
    assert executed(binary)[1] == [1, 0]


@needs_headers
def test_the_functions_stand_where_they_are_looked_for(tmp_path):
    checks = "".join(f"_Static_assert(offsetof(OrtApi, {name}) == {place} * sizeof(void *), \"{name}\");\n" for name, place in PLACES.items())
    source = tmp_path / "places.c"
    source.write_text(f"#include <stddef.h>\n#include <onnxruntime_c_api.h>\n{checks}")
    done = subprocess.run(["gcc", "-fsyntax-only", f"-I{HEADERS}", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_the_c_interface_replay_is_refused(store, monkeypatch):
    from peakmem.model import RuntimeMissing

    monkeypatch.setattr("peakmem_onnx.compile.unavailable", lambda: "there is none")
    with pytest.raises(RuntimeMissing, match="--deploy replay: what a session asks for cannot be recorded: there is none"):
        load(store(branches()), frontend="onnx", deploy="replay")
