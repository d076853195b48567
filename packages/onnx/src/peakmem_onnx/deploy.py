"""Sessions that do what the model promises."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peakmem.model import Refused

from peakmem_onnx import protos
from peakmem_onnx.graph import Graph, read_graph
from peakmem_onnx.orders import default_order, file_order
from peakmem_onnx.ways import ARENA, RECIPE, Way, way_of


def session(
    path: str | Path,
    *,
    threads: int | None = None,
    check: bool = False,
    feeds: Mapping[str, Any] | None = None,
    arena: int = 0,
    **settings: Any,
) -> Any:
    """An ``onnxruntime.InferenceSession`` that runs the file's order with the memory it was optimized for.

    Parameters
    ----------
    path : str or Path
        A model written by peakmem.
    threads : int, optional
        Intra-op threads; by default those the model was optimized with.
    check : bool
        First run the model once in a profiled session and compare the executed order with the one intended.
    feeds : mapping, optional
        Inputs for that run; by default random ones made from the inputs' types.
    arena : int
        Bytes of the first region of a planned arena for a file that was not written for one; `peakmem optimize` tells them where it pays.
    **settings
        Further attributes of ``onnxruntime.SessionOptions``.

    Raises
    ------
    Refused
        When ``check`` finds another order; the message names the first node that differs.
    RuntimeMissing
        Without ONNX Runtime.
    """
    from peakmem_onnx.runtime import require_runtime

    require_runtime()
    path = Path(path)
    proto = protos.read_model(path)
    recipe = protos.read_marker(proto) or {}
    count = threads if threads is not None else int(recipe.get("threads", 1))
    way = way_of(str(recipe.get("deploy", "python")), language=str(recipe.get("language", "auto")))
    if arena and way is RECIPE:
        way = ARENA
    if way.planned:
        _register(path, arena or int(recipe.get("chunk", 0)))
    if check:
        _check(path, proto, count, way, feeds, settings)
    import onnxruntime as ort

    return ort.InferenceSession(str(path), _options(count, way, settings), providers=["CPUExecutionProvider"])


def _options(threads: int, way: Way, settings: Mapping[str, Any]) -> Any:
    import onnxruntime as ort

    if way in (RECIPE, ARENA) and not hasattr(ort, "ExecutionOrder"):
        raise Refused("this ONNX Runtime cannot be told to run a file's order; make the file with --deploy portable")

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    if way in (RECIPE, ARENA):
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = way.planned
    if way.planned:
        options.add_session_config_entry("session.use_env_allocators", "1")
    options.enable_mem_pattern = False
    options.enable_mem_reuse = way.reuse
    options.intra_op_num_threads = threads
    for name, value in settings.items():
        setattr(options, name, value)
    return options


def _register(path: Path, size: int) -> None:
    """Plan the arena of this process; the same size again is fine."""
    from peakmem_onnx.child import plan_arena

    if not size:
        raise Refused(f"{path}: does not say how large its arena is; write it again with --deploy arena")
    if size not in _PLANNED:
        if _PLANNED:
            raise Refused(f"{path}: this process has an arena that begins with {_PLANNED[0]} bytes already, and a process has one; use another")
        try:
            plan_arena(size)
        except Exception as error:
            raise Refused(f"{path}: ONNX Runtime does not give this process a planned arena: {error}") from None
        _PLANNED.append(size)


_PLANNED: list[int] = []
"""First regions of the arena of this process: none or one."""


def _check(
    path: Path, proto: Any, threads: int, way: Way, feeds: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> None:
    import onnxruntime as ort

    from peakmem_onnx.child import executed_order
    from peakmem_onnx.feeds import make_feeds

    shapes = (protos.read_marker(proto) or {}).get("shapes", {})  # of inputs that the file leaves open
    inputs = dict(feeds) if feeds is not None else make_feeds(protos.with_shapes(proto, shapes), {}, path)[0]
    options = _options(threads, way, settings)
    with tempfile.TemporaryDirectory(prefix="peakmem-onnx-") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        probe = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        probe.run(None, inputs)
        executed = executed_order(Path(probe.end_profiling()))
    difference = order_difference(read_graph(proto.graph), executed, default_order if way.numbered else file_order)
    if difference:
        raise Refused(f"{path}: {difference}")


def order_difference(graph: Graph, executed: Sequence[str], ordered: Callable[[Graph], Sequence[int]]) -> str:
    """Where an executed order (names, bodies included, runs repeated) leaves what ``ordered`` says; empty if nowhere."""
    for level in _levels(graph):
        names = [level.nodes[v].name for v in ordered(level)]
        own = set(names)
        ran = [name for name in executed if name in own]
        if len(ran) % len(names):
            return f"{len(ran)} executions of {len(names)} nodes were seen"
        for i, name in enumerate(ran):
            if name != names[i % len(names)]:
                return f"ONNX Runtime ran {name!r} where {names[i % len(names)]!r} was due"
        if level is graph and not ran:
            return "no executed node was seen"
    return ""


def _levels(graph: Graph) -> list[Graph]:
    return [graph, *(inner for node in graph.nodes for _, body in node.bodies for inner in _levels(body) if body.nodes)]
