"""What runs ONNX Runtime: a process of its own, told by a JSON file what to do and answering with another.

Started as ``python -m peakmem_onnx.child JOB ANSWER``. A crash of the runtime ends only this process.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

TRACE_ROOM = 4_000_000
ENDLESS = "a run did not end within"
"""How the message begins when a run was ended; another try would end like it."""


def options_for(job: dict[str, Any]) -> Any:
    """Session options of a job: level, threads, the three memory switches, the order."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[job["level"]])
    options.intra_op_num_threads = job.get("threads", 1)
    options.inter_op_num_threads = job.get("inter_threads", 1)
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_reuse = job.get("reuse", False)
    options.enable_mem_pattern = job.get("pattern", False)
    options.enable_cpu_mem_arena = job.get("arena", False)
    if job.get("priority", False):
        if not hasattr(ort, "ExecutionOrder"):
            raise RuntimeError("this ONNX Runtime cannot be told to run a file's order; use --executor nodes")
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    if job.get("external"):
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", job["external"])
    if job.get("chunk"):
        plan_arena(job["chunk"], **job.get("arena_options", {}))
        options.enable_cpu_mem_arena = True
        options.add_session_config_entry("session.use_env_allocators", "1")
    for name, value in job.get("config", {}).items():
        options.add_session_config_entry(name, value)
    return options


def plan_arena(size: int, **more: int) -> None:
    """Give this process the arena of `peakmem_onnx.arena`, with a first region of ``size`` bytes; once in its life.

    ``more`` are further settings of ``onnxruntime.OrtArenaCfg``.
    """
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(
        memory, ort.OrtArenaCfg({"initial_chunk_size_bytes": size, "max_dead_bytes_per_chunk": 1, **more})
    )


def open_session(data: bytes, options: Any) -> Any:
    import onnxruntime as ort

    return readable(ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]))


def readable(session: Any) -> Any:
    """The session, or one around it where Python cannot read its outputs."""
    return Bits(session) if any(value.type in BITS for value in session.get_outputs()) else session


BITS = {"tensor(bfloat16)": 16, **{f"tensor(float8{kind})": 8 for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}}
"""Types of elements that ONNX Runtime's Python package does not read, or not in every release, and their bits."""


class Bits:
    """A session whose outputs of these types come as whole numbers of the same bits."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, names: Any, feeds: Any, options: Any = None) -> list[Any]:
        import onnxruntime as ort

        given = {name: fed if isinstance(fed, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(fed) for name, fed in feeds.items()}
        return [self._array(value) for value in self._session.run_with_ort_values(names, given, options)]

    @staticmethod
    def _array(value: Any) -> Any:
        import numpy as np

        bits = BITS.get(value.data_type())
        if bits is None:
            return value.numpy()
        shape = value.shape()
        size = math.prod(shape) * bits // 8
        return np.frombuffer(ctypes.string_at(value.data_ptr(), size) if size else b"", f"uint{bits}").reshape(shape)


def run_limited(session: Any, names: Any, feeds: Any, job: dict[str, Any]) -> Any:
    """One run that ends within the seconds of computing that the job allows each thread: a Loop need not end by itself."""
    import time

    import onnxruntime as ort

    limit = job.get("limit", 0)
    options, over = ort.RunOptions(), threading.Event()
    for name, value in job.get("run_config", {}).items():
        options.add_run_config_entry(name, value)
    if limit <= 0:
        return session.run(names, feeds, options)

    def watch() -> None:
        begin = time.process_time()
        while not over.wait(0.1):
            # Not by the clock: a machine that does other things beside must not make a model an endless one.
            if time.process_time() - begin > limit * max(1, job.get("threads", 1)):
                options.terminate = True
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        return session.run(names, feeds, options)
    except Exception:
        if options.terminate:
            raise RuntimeError(f"{ENDLESS} {limit:g} s of computing (--run-limit gives it more)") from None
        raise
    finally:
        over.set()


def compile_model(job: dict[str, Any]) -> dict[str, Any]:
    """Let the runtime optimize a model and save what it made of it; run it to see its order.

    The order is the default one: what happens today without peakmem. Input sets that the model refuses are named.
    """
    options = options_for(job)
    options.optimized_model_filepath = job["output"]
    options.enable_profiling = True
    options.profile_file_prefix = job["profile"]
    session = open_session(Path(job["model"]).read_bytes(), options)
    accepted: dict[int, str] = {}
    for index, feeds in enumerate(_all_feeds(job)):
        try:
            run_limited(session, None, feeds, job)
            accepted[index] = ""
        except Exception as error:
            if not index and ENDLESS in str(error):  # without the first set the model is refused
                raise
            accepted[-1 - index] = str(error)
    return {"order": executed_order(Path(session.end_profiling())), "accepted": accepted}


def first(job: dict[str, Any]) -> dict[str, Any]:
    """Which set of inputs is the first one that a model runs with; -1 where none is."""
    session = open_session(Path(job["model"]).read_bytes(), options_for(job))
    for index, path in enumerate(job["feeds_files"]):
        try:
            run_limited(session, None, _feeds(path), job)
        except Exception as error:
            if ENDLESS in str(error):
                break
            continue
        return {"first": index}
    return {"first": -1}


def describe(job: dict[str, Any]) -> dict[str, Any]:
    """Types of all values and their shapes as the planner knows them; every value is an output of ``job["model"]``.

    A scalar and a value of unknown rank both come as ``[]``.
    """
    session = open_session(Path(job["model"]).read_bytes(), options_for(job))
    return {
        "values": {
            value.name: {"type": value.type, "planned": None if value.shape is None else list(value.shape)}
            for value in (*session.get_inputs(), *session.get_outputs())
        }
    }


def statistics(job: dict[str, Any]) -> dict[str, Any]:
    """Run with ONNX Runtime's own statistics: per node its workspace, its outputs' exact shapes, its runs."""
    options = options_for(job)
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", job["stats"])
    options.enable_profiling = True
    options.profile_file_prefix = job["profile"]
    session = open_session(Path(job["model"]).read_bytes(), options)
    for feeds in _all_feeds(job):
        run_limited(session, None, feeds, job)
    profile = Path(session.end_profiling())
    del session
    rows: dict[str, list[int]] = {}
    for line in Path(job["stats"]).read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, _, _, dynamic, workspace = line.rsplit(",", 4)
        rows[name.rsplit("_", 1)[0]] = [int(dynamic), int(workspace)]
    shapes: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    for event in _kernels(profile):
        found = [next(iter(o.items())) for o in event["args"].get("output_type_shape", ())]
        name = event["name"].removesuffix("_kernel_time")
        counts[name] = counts.get(name, 0) + 1
        before = shapes.get(name)
        if before is None:
            shapes[name] = [[kind, shape] for kind, shape in found]
        else:  # executed again, in a Loop or with other inputs: the larger one counts
            for row, (_, shape) in zip(before, found, strict=True):
                row[1] = max(row[1], shape, key=math.prod)
    return {"stats": rows, "shapes": shapes, "counts": counts}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Run with the allocations counted; the executed order; the outputs' bytes to a file.

    Every set of inputs is run twice. The first run of a process may also take scratch memory that a thread keeps for
    good (matrix products of small integers do), so both peaks are told.
    """
    import numpy as np

    data = Path(job["model"]).read_bytes()
    options = None if job.get("capi") else options_for(job)
    if job.get("profile") and options is not None and not job.get("nodes"):
        options.enable_profiling = True
        options.profile_file_prefix = job["profile"]
    session: Any
    loading: list[int] = []
    if job.get("capi"):
        from peakmem_onnx.capi import Session

        session, loading = _traced(lambda: Session(job))
        names = session.outputs()
    elif job.get("nodes"):
        from peakmem_onnx.nodewise import NodeByNode

        session = NodeByNode(data, lambda single: open_session(single, options), job["types"])
        names = session.outputs
    else:
        session, loading = _traced(lambda: open_session(data, options)) if job.get("chunk") else (open_session(data, options), [])
        names = [o.name for o in session.get_outputs()]
    planned = bool(job.get("chunk"))
    counter = _counter()
    peaks: list[list[int]] = []
    held: list[int] = []
    trace: list[int] = []
    outputs: dict[str, Any] = {}
    replayed: list[dict[str, int]] = []
    for index, feeds in enumerate(_all_feeds(job)):
        peaks.append([])
        copied = 0
        if job.get("replay"):
            session.arm()
        if job.get("nodes"):
            run, given = session.run, session.take(feeds)
        else:
            run, given = partial(session.run, None), feeds
            # The Python binding copies texts into tensors of its own for the length of the run; the caller's, so not
            # counted.
            copied = sum(-(-32 * array.size // 64) * 64 for array in feeds.values() if isinstance(array, np.ndarray) and array.dtype == object)
        for turn in range(2):
            if counter is not None:
                room = TRACE_ROOM if job.get("trace") else 0
                buffer = (ctypes.c_int64 * room)() if room else None
                result = (ctypes.c_int64 * 5)()
                counter.peakmem_start(buffer, ctypes.c_int64(room))
                values = run(given)
                counter.peakmem_stop(result)
                if result[3]:
                    raise RuntimeError("more live allocations than the counting library can follow")
                peaks[-1].append(result[0] - copied)
                held.append(result[1])
                if buffer is not None and not trace:
                    trace = list(buffer[: result[4]])
            else:
                values = run(given)
            if turn == 0:
                arrays = values
                if job.get("nodes") or job.get("capi"):
                    arrays = [v.numpy() for v in (values.values() if job.get("nodes") else values)]
                for name, value in zip(names, arrays, strict=True):
                    if isinstance(value, np.ndarray) and value.dtype != object:
                        outputs[f"{index}/{name}"] = plain(value.copy() if planned else value)
                    else:
                        outputs[f"{index}/{name}"] = np.frombuffer(repr(value).encode(), dtype=np.uint8)
                del arrays, value
            if not planned:  # else they are held to the end of the next run, as most programs do
                del values
        if job.get("replay"):
            replayed.append(session.counts())
    answer: dict[str, Any] = {"peaks": peaks, "held": held, "counted": counter is not None, "trace": trace}
    if job.get("replay"):  # of the inputs planned for: their part of the block, and what comes from the C library beside
        answer["replayed"] = replayed
        sets = job["replay"]["sets"]
        answer["taken"] = max(replayed[k]["touched"] for k in sets) + max(peaks[k][1] for k in sets)
    if job.get("chunk"):  # what the arena took from the system: its region, and others if that was too small
        answer["taken"] = sum(size for size in loading if size == job["chunk"]) + sum(held)
    if job.get("nodes"):
        answer["order"] = session.order
    elif job.get("profile"):
        profile = Path(session.end_profiling())
        answer["order"] = executed_order(profile)
        in_use = [int(e["args"]["mem_in_use_peak"]) for e in _kernels(profile) if "mem_in_use_peak" in e["args"]]
        answer["arena_peak"] = max(in_use, default=None)
    if job.get("outputs"):
        keys = sorted(outputs)
        np.savez(job["outputs"], **{str(i): outputs[key] for i, key in enumerate(keys)})
        answer["keys"] = keys
    return answer


def record(job: dict[str, Any]) -> dict[str, Any]:
    """What runs of a session of the C interface ask for and give back, as `peakmem_onnx.capi.Session.recorded` has it."""
    from peakmem_onnx.capi import Session

    session = Session(job)
    return {"traces": [session.recorded(feeds, TRACE_ROOM) for feeds in _all_feeds(job)]}


def values(job: dict[str, Any]) -> dict[str, Any]:
    """Digests of the values of a model, in as many sessions as ``job["chunks"]`` has entries.

    Each chunk adds outputs to the model: its bytes are appended to the file's, which protobuf reads as one message.
    A set of inputs that the model refuses has its error in ``refused``.
    """
    data = Path(job["model"]).read_bytes()
    digests: dict[str, list[str]] = {}
    refused: dict[int, str] = {}
    for chunk in job["chunks"]:
        session = open_session(data + bytes.fromhex(chunk["suffix"]), options_for(job))
        for index, path in enumerate(job["feeds_files"]):
            try:
                found = run_limited(session, chunk["names"], _feeds(path), job)
            except Exception as error:
                refused[index] = str(error)
                continue
            for name, value in zip(chunk["names"], found, strict=True):
                digests.setdefault(name, []).append(_digest(value))
            del found
    return {"digests": digests, "refused": refused}


def process(job: dict[str, Any]) -> dict[str, Any]:
    """What this process takes to open one session and run it with every set of inputs: resident bytes above imports and inputs."""
    import gc
    import time

    open_one: Callable[[], Any]
    sets = _all_feeds(job)
    if job.get("capi"):
        from peakmem_onnx import capi

        api = capi.Interface()
        open_one = partial(capi.Session, job, api)
    else:
        import onnxruntime as ort

        options = options_for(job)
        open_one = lambda: readable(ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"]))  # noqa: E731
    base = _resident("VmRSS")
    _forget_peak()
    session = open_one()
    load = _resident("VmHWM") - base
    prepared: Callable[[Any], Callable[[], Any]] = partial(capi.Run, session, None) if job.get("capi") else partial(partial, session.run, None)
    runs = [prepared(feeds) for feeds in sets]
    gc.collect()
    before = _resident("VmRSS")
    _forget_peak()
    seconds: list[float] = []
    for _ in range(job["runs"]):
        if len(seconds) > 1 and sum(seconds) > 5:
            break
        seconds.append(0.0)
        for run in runs:
            begin = time.process_time()
            values = run()
            seconds[-1] += time.process_time() - begin
            del values
    growth = _resident("VmHWM") - before
    return {"load": load, "growth": growth, "peak": max(load, before - base + growth), "loaded": before - base, "seconds": min(seconds)}


def time_runs(job: dict[str, Any]) -> dict[str, Any]:
    """Wall seconds of the fastest run of each of several models, whose runs alternate."""
    import time

    sessions = [open_session(Path(path).read_bytes(), options_for(job)) for path in job["models"]]
    feeds = next(iter(_all_feeds(job)))
    seconds: list[list[float]] = [[] for _ in sessions]
    for turn in range(1 + job["runs"]):
        if turn > 3 and sum(map(sum, seconds)) > job["most"]:
            break
        for session, taken in zip(sessions, seconds, strict=True):
            begin = time.perf_counter()
            run_limited(session, None, feeds, job)
            if turn:  # the first run makes room
                taken.append(time.perf_counter() - begin)
    return {"seconds": [min(taken) for taken in seconds], "runs": len(seconds[0])}


def _resident(key: str) -> int:
    """Bytes of an entry of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise RuntimeError(f"the system does not tell {key}")


def _forget_peak() -> None:
    """From here on VmHWM speaks of what follows."""
    Path("/proc/self/clear_refs").write_text("5")


def plain(array: Any) -> Any:
    """An array of a type that numpy has not by itself as whole numbers of the same bits."""
    return array.view(f"uint{8 * array.dtype.itemsize}") if array.dtype.isbuiltin == 2 else array


def _digest(value: Any) -> str:
    import numpy as np

    if not isinstance(value, np.ndarray) or value.dtype == object:
        return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()
    digest = hashlib.sha256(f"{value.dtype} {value.shape} ".encode())
    digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def load(job: dict[str, Any]) -> dict[str, Any]:
    """What opening a session takes of the C library; see `_traced`."""
    data = Path(job["model"]).read_bytes()
    options = options_for(job)
    session, trace = _traced(lambda: open_session(data, options))
    del session
    return {"trace": trace}


def requests(job: dict[str, Any]) -> dict[str, Any]:
    """What opening a session takes of the C library and gives back, and then each run of each set of inputs; see `_traced`.

    Outputs go when the next run has ended, or, with ``job["drop"]``, before it begins.
    """
    data, options, sets = Path(job["model"]).read_bytes(), options_for(job), _all_feeds(job)
    counter = _counter()
    if counter is None:
        raise RuntimeError("nothing is counted here")
    buffer, result = (ctypes.c_int64 * TRACE_ROOM)(), (ctypes.c_int64 * 5)()
    counter.peakmem_length.restype = ctypes.c_int64
    counter.peakmem_start(buffer, ctypes.c_int64(TRACE_ROOM))
    session = open_session(data, options)
    ends = [counter.peakmem_length()]
    kept: list[Any] = []
    for feeds in sets:
        for _ in range(job["turns"]):
            if job.get("drop"):
                kept.clear()
            kept[:] = [run_limited(session, None, feeds, job)]
            ends.append(counter.peakmem_length())
    counter.peakmem_stop(result)
    if result[3] or result[4] > TRACE_ROOM:
        raise RuntimeError("more allocations than the counting library can follow")
    trace = list(buffer[: ends[-1]])
    return {"phases": [trace[begin:end] for begin, end in pairwise([0, *ends])]}


def held(job: dict[str, Any]) -> dict[str, Any]:
    """What the arenas of a process hold by their own account, the log: after opening a session, and after each run of each set.

    Bytes of the regions, oldest first, and bytes reserved beside them (constants).
    """
    import onnxruntime as ort

    log = Path(job["log"])
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(stream, number)
    capi = job.get("capi")
    session: Any
    if capi:
        from peakmem_onnx.capi import Interface, Session

        session = Session(job, Interface(verbose=True))
    else:
        ort.set_default_logger_severity(0 if job.get("run_config") else 1)  # what is given back is told in more words
        session = open_session(Path(job["model"]).read_bytes(), options_for(job))
    told = [_arenas(log)]
    kept: list[Any] = []
    for feeds in _all_feeds(job):
        for _ in range(job["turns"]):
            if job.get("drop"):
                kept.clear()
            kept[:] = [session.run(None, feeds) if capi else run_limited(session, None, feeds, job)]
            told.append(_arenas(log))
    return {"phases": told}


def _arenas(log: Path) -> dict[str, Any]:
    text = log.read_text(errors="replace")
    return {
        "regions": [int(size) for size in re.findall(r"Extended allocation by (\d+) bytes", text)],
        "given_back": [int(size) for size in re.findall(r"Arena shrunk by (\d+) bytes", text)],
        "reserved": sum(int(size) for size in re.findall(r"Reserving memory in BFCArena for Cpu size: (\d+)", text)),
    }


def _traced(work: Callable[[], Any]) -> tuple[Any, list[int]]:
    """What ``work`` returns, and what it takes and gives back: sizes, and -1 - the number of what is given back."""
    counter = _counter()
    if counter is None:
        return work(), []
    buffer, result = (ctypes.c_int64 * TRACE_ROOM)(), (ctypes.c_int64 * 5)()
    counter.peakmem_start(buffer, ctypes.c_int64(TRACE_ROOM))
    value = work()
    counter.peakmem_stop(result)
    return value, list(buffer[: result[4]])


def executed_order(profile: Path) -> list[str]:
    """Names of the nodes in the order in which they ran, bodies included, from a profiling file."""
    return [event["name"].removesuffix("_kernel_time") for event in _kernels(profile)]


def _kernels(profile: Path) -> list[dict[str, Any]]:
    events = json.loads(profile.read_text())
    kernels = [e for e in events if e.get("cat") == "Node" and e.get("name", "").endswith("_kernel_time")]
    return sorted(kernels, key=lambda e: e["ts"])


def _counter() -> Any:
    try:
        library = ctypes.CDLL(None)
        library.peakmem_start.restype = None
        return library
    except AttributeError:
        return None


def _all_feeds(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [_feeds(path) for path in job["feeds_files"]]


def _feeds(path: str) -> dict[str, Any]:
    import numpy as np

    feeds: dict[str, Any] = {}
    with np.load(path, allow_pickle=False) as archive:
        for i, (name, number) in enumerate(zip(json.loads(str(archive["names"])), archive["types"], strict=True)):
            array = archive[str(i)]
            if number:  # an element type that numpy has not by itself
                import onnxruntime as ort

                feeds[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(number))
            else:
                feeds[name] = array.astype(object) if array.dtype.kind == "U" else array
    return feeds


JOBS = {"compile": compile_model, "describe": describe, "statistics": statistics, "measure": measure, "values": values, "process": process,
        "record": record, "load": load, "time": time_runs, "requests": requests, "held": held, "first": first}


def _stand_still(arguments: list[str]) -> None:
    """Start over without address-space randomization, where the system allows it.

    ONNX Runtime's layout optimizer (level all) visits nodes in the order of their addresses, so that one model comes
    out differently from run to run.
    """
    if not sys.platform.startswith("linux") or os.environ.get("PEAKMEM_ONNX_CHILD"):
        return
    no_randomize = 0x0040000
    try:
        if ctypes.CDLL(None).personality(ctypes.c_ulong(no_randomize)) == -1:
            return
    except (OSError, AttributeError):
        return
    os.environ["PEAKMEM_ONNX_CHILD"] = "1"
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "peakmem_onnx.child", *arguments])


def main(arguments: list[str]) -> int:
    _stand_still(arguments)
    job = json.loads(Path(arguments[0]).read_text())
    answers: list[dict[str, Any]] = []
    for step in job["steps"]:
        try:
            answers.append(JOBS[step["do"]](step))
        except Exception as error:
            endless = ENDLESS in str(error)
            answers.append({"error": str(error) if endless else f"{type(error).__name__}: {error}"})
            if not step.get("optional"):
                if endless:  # its session would write out a profile of a million events, which takes as long as the run did
                    _answer(arguments[1], answers)
                    os._exit(0)
                break
    _answer(arguments[1], answers)
    return 0


def _answer(path: str, answers: list[dict[str, Any]]) -> None:
    temporary = path + ".part"
    Path(temporary).write_text(json.dumps(answers))
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
