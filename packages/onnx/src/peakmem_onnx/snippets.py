"""Source text that opens a session which does what the model promises: Python, or one text that is C11 and C++17 at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate

from peakmem_onnx.replaying import SOURCE, Places
from peakmem_onnx.ways import ARENA, NODES, PORTABLE, Way

_SNIPPET = """\
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # the file is optimized already
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # run the file's order
options.enable_cpu_mem_arena = False
options.enable_mem_pattern = False
options.enable_mem_reuse = False
options.intra_op_num_threads = {threads}
session = ort.InferenceSession({path!r}, options, providers=["CPUExecutionProvider"])
"""

_ARENA = """\
import onnxruntime as ort
# One arena for the process; with this first region its runs take the least in all. Its sessions run one at a time.
memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
ort.create_and_register_allocator(
    memory, ort.OrtArenaCfg({{"initial_chunk_size_bytes": {chunk}, "max_dead_bytes_per_chunk": 1}})
)
options = ort.SessionOptions()
options.add_session_config_entry("session.use_env_allocators", "1")
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # the file is optimized already
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # run the file's order
options.enable_mem_pattern = False
options.enable_mem_reuse = False
options.intra_op_num_threads = {threads}
session = ort.InferenceSession({path!r}, options, providers=["CPUExecutionProvider"])
"""

_PORTABLE = """\
// The file is optimized already, so ONNX Runtime must not optimize it again; arena and memory patterns stay off.
// C++
Ort::SessionOptions options;
options.SetGraphOptimizationLevel(ORT_DISABLE_ALL);
options.SetExecutionMode(ORT_SEQUENTIAL);
options.DisableCpuMemArena();
options.DisableMemPattern();
options.SetIntraOpNumThreads({threads});
Ort::Session session(env, ORT_TSTR({text}), options);

// C, with const OrtApi* ort; every call returns an OrtStatus* to be checked
OrtSessionOptions* options;
ort->CreateSessionOptions(&options);
ort->SetSessionGraphOptimizationLevel(options, ORT_DISABLE_ALL);
ort->SetSessionExecutionMode(options, ORT_SEQUENTIAL);
ort->DisableCpuMemArena(options);
ort->DisableMemPattern(options);
ort->SetIntraOpNumThreads(options, {threads});
ort->CreateSession(env, ORT_TSTR({text}), options, &session);

// JavaScript (onnxruntime-node)
const session = await ort.InferenceSession.create({text}, {{
  executionProviders: ["cpu"],
  graphOptimizationLevel: "disabled",
  executionMode: "sequential",
  enableCpuMemArena: false,
  enableMemPattern: false,
  intraOpNumThreads: {threads},
}});
"""
_NODES = """\
# {path} was measured node by node. A session reaches its order and bytes only where it honours the recipe's options;
# peakmem verify without --executor nodes tells.
"""

_HEAD = """\
// One text for C11 and C++17: peakmem_open opens the session. Link with onnxruntime (and pthread, in C).
#ifdef __cplusplus
#include <onnxruntime_cxx_api.h>
#else
#include <onnxruntime_c_api.h>
#endif
#include <stdio.h>
#include <stdlib.h>

"""

_CHECK = """\

static void peakmem_check(const OrtApi *ort, OrtStatus *status) {
  if (!status) return;
#ifdef __cplusplus
  (void)ort;
  Ort::ThrowOnError(status);
#else
  fprintf(stderr, "onnxruntime: %s\\n", ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
  exit(1);
#endif
}

// The file is optimized already, so ONNX Runtime must not optimize it again; memory patterns stay off.
static void peakmem_configure(const OrtApi *ort, OrtSessionOptions *options) {
  peakmem_check(ort, ort->SetSessionGraphOptimizationLevel(options, ORT_DISABLE_ALL));
  peakmem_check(ort, ort->SetSessionExecutionMode(options, ORT_SEQUENTIAL));
  peakmem_check(ort, ort->DisableMemPattern(options));
  peakmem_check(ort, ort->SetIntraOpNumThreads(options, {threads}));
  peakmem_check(ort, ort->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
}
"""

_OPEN = """\

#ifdef __cplusplus
static inline Ort::Session peakmem_open(Ort::Env &env) {
  Ort::SessionOptions options;
  const OrtApi *ort = &Ort::GetApi();
  peakmem_configure(ort, options);
  peakmem_before(ort, env);
  Ort::Session session(env, ORT_TSTR({text}), options);
  peakmem_after();
  return session;
}
#else
static inline OrtSession *peakmem_open(const OrtApi *ort, OrtEnv *env) {
  OrtSessionOptions *options;
  OrtSession *session;
  peakmem_check(ort, ort->CreateSessionOptions(&options));
  peakmem_configure(ort, options);
  peakmem_before(ort, env);
  peakmem_check(ort, ort->CreateSession(env, ORT_TSTR({text}), options, &session));
  peakmem_after();
  ort->ReleaseSessionOptions(options);
  return session;
}
#endif
"""

_REGION = """\

// One arena for the process; with this first region its runs take the least in all. Its sessions run one at a time.
static void peakmem_before(const OrtApi *ort, OrtEnv *env) {
  static int registered;
  const char *keys[] = {"initial_chunk_size_bytes", "max_dead_bytes_per_chunk"};
  const size_t values[] = {{chunk}, 1};
  OrtArenaCfg *settings;
  OrtMemoryInfo *memory;
  if (registered++) return;
  peakmem_check(ort, ort->CreateArenaCfgV2(keys, values, 2, &settings));
  peakmem_check(ort, ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  peakmem_check(ort, ort->CreateAndRegisterAllocator(env, memory, settings));
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseArenaCfg(settings);
}

static void peakmem_after(void) {}
"""

_PLAN = """\

// Requests of a run{told}
static const size_t peakmem_sizes[] = {{sizes}};
static const size_t peakmem_offsets[] = {{offsets}};
static const size_t peakmem_ends[] = {{ends}};
static size_t peakmem_scratch[2 * {count} + {shapes}];
static PeakmemPlan peakmem_plan;  // .misses and .missed_bytes tell what had no place since the session was opened
static OrtMemoryInfo *peakmem_memory;
static OrtAllocator peakmem_allocator;

static void *ORT_API_CALL peakmem_ort_alloc(OrtAllocator *self, size_t size) {
  (void)self;
  return peakmem_alloc(&peakmem_plan, size);
}

static void ORT_API_CALL peakmem_ort_free(OrtAllocator *self, void *block) {
  (void)self;
  peakmem_free(&peakmem_plan, block);
}

static const OrtMemoryInfo *ORT_API_CALL peakmem_ort_info(const OrtAllocator *self) {
  (void)self;
  return peakmem_memory;
}

// One allocator for the process. What a session takes while it is made, it keeps, so places are given only afterwards.
static void peakmem_before(const OrtApi *ort, OrtEnv *env) {
  if (!peakmem_memory) {
    peakmem_init(&peakmem_plan, peakmem_sizes, peakmem_offsets, peakmem_ends, {shapes}, {bytes}, peakmem_scratch);
    peakmem_allocator.version = 15;  // of the fields set here; later ones stay unset
    peakmem_allocator.Alloc = peakmem_ort_alloc;
    peakmem_allocator.Free = peakmem_ort_free;
    peakmem_allocator.Info = peakmem_ort_info;
    peakmem_check(ort, ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &peakmem_memory));
    peakmem_check(ort, ort->RegisterAllocator(env, &peakmem_allocator));
  }
  peakmem_arm(&peakmem_plan, 0);
}

static void peakmem_after(void) { peakmem_arm(&peakmem_plan, 1); }
"""


def snippet(path: str, *, threads: int, way: Way, chunk: int = 0) -> str:
    """Lines of Python that open the session, or settings for other languages; `peakmem_onnx.session` does the same as a function.

    ``chunk`` is the first region of a planned arena, in bytes.
    """
    if way is PORTABLE:
        return _PORTABLE.format(text=json.dumps(path), threads=threads)
    if way is ARENA:
        return _ARENA.format(path=path, threads=threads, chunk=chunk)
    return (_NODES.format(path=path) if way is NODES else "") + _SNIPPET.format(path=path, threads=threads)


def native_snippet(path: str, *, threads: int, deployed: Sequence[Places] | int, shapes: Sequence[str] = ()) -> str:
    """A text that is C11 and C++17, with a function ``peakmem_open``.

    ``deployed`` is where the requests of a run go, for each of the ``shapes``, or the bytes of the first region of an arena.
    """
    if isinstance(deployed, int):
        middle = _filled(_REGION, chunk=deployed)
        core = ""
    else:
        sizes = [str(size) for one in deployed for size in one.sizes]
        offsets = ["PEAKMEM_OUTPUT" if at is None else str(at) for one in deployed for at in one.offsets]
        ends = ", ".join(map(str, accumulate(len(one.sizes) for one in deployed)))
        told = "".join(f"\n// shape {k}: {shape}" for k, shape in enumerate(shapes)) if len(deployed) > 1 else ""
        middle = _filled(_PLAN, told=told, sizes=_lines(sizes), offsets=_lines(offsets), ends=ends, count=len(offsets), shapes=len(deployed),
                         bytes=max(one.bytes for one in deployed))
        core = SOURCE.read_text().partition("\n#ifdef PEAKMEM_MEASURED")[0] + "\n"
    return _HEAD + core + _filled(_CHECK, threads=threads) + middle + _filled(_OPEN, text=json.dumps(path))


def _filled(template: str, **values: object) -> str:
    """The template with ``{name}`` replaced; other braces are C's."""
    for name, value in values.items():
        template = template.replace("{" + name + "}", str(value))
    return template


def _lines(items: Sequence[str]) -> str:
    """Items of an array, twelve a line; one where there is none, for C has no empty arrays."""
    rows = [", ".join(items[i : i + 12]) for i in range(0, len(items), 12)]
    return "\n    " + ",\n    ".join(rows or ["0"]) + ",\n"
