"""Small ONNX models, built here; real ones where they can be found."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
if not hasattr(onnx, "helper"):
    pytest.skip("onnx is not installed (a folder of that name was imported instead)", allow_module_level=True)
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from peakmem_onnx import runtime  # noqa: E402
from peakmem_onnx.graph import Graph  # noqa: E402
from peakmem_onnx.orders import priority_order  # noqa: E402
from peakmem_onnx.runtime import runtime_version  # noqa: E402

sys.path.append(str(Path(__file__).parents[2] / "check" / "tests"))
from warm import Nursery  # noqa: E402

needs_runtime = pytest.mark.skipif(runtime_version() is None, reason="ONNX Runtime is not installed")
SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "onnx"
FLOAT, INT32, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL


def need_runtime_for(path: Path) -> None:
    """Skip where this release of ONNX Runtime itself takes no such file: a later version of the format, an operator on a type that it lacks."""
    import onnxruntime

    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        pytest.skip(f"onnxruntime {runtime_version()} does not load it: {error}")


def value(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int, seed: int = 0) -> Any:
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(data, name)


def model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], weights: Sequence[Any] = (), **more: Any) -> Any:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    opsets = more.pop("opset_imports", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


@pytest.fixture(autouse=True)
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of processes is measured where that is what is tested: it takes a dozen processes."""
    monkeypatch.setattr("peakmem_onnx.process.measure_process", lambda *_, **__: [])


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    found = Nursery(runtime.run_child, "peakmem_onnx.child", ("numpy", "onnxruntime", "peakmem_onnx.child"), {"PEAKMEM_ONNX_CHILD": "1"})
    yield found
    found.close()


@pytest.fixture(autouse=True)
def warm_children(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are forked where everything is imported already; ``test_process`` starts them as users do."""
    monkeypatch.setattr(runtime, "run_child", nursery)


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., Path]:
    def put(proto: Any, name: str = "model.onnx") -> Path:
        path = tmp_path / name
        path.write_bytes(proto.SerializeToString())
        return path

    return put


def branches(width: int = 4, channels: int = 8) -> Any:
    """Branches of unequal depth that meet in a Concat: their order matters."""
    nodes = [helper.make_node("Conv", ["x", "w_in"], ["s"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    weights = [weight("w_in", channels, 3, 3, 3)]
    ends = []
    for i in range(width):
        wide = channels * (i + 1)
        weights += [weight(f"w{i}a", wide, channels, 1, 1, seed=i), weight(f"w{i}b", 4, wide, 1, 1, seed=i + 50)]
        nodes += [
            helper.make_node("Conv", ["s", f"w{i}a"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"r{i}"]),
            helper.make_node("Conv", [f"r{i}", f"w{i}b"], [f"b{i}"]),
        ]
        ends.append(f"b{i}")
    nodes.append(helper.make_node("Concat", ends, ["y"], axis=1))
    return model(nodes, [value("x", [1, 3, 16, 16])], [value("y", [1, 4 * width, 16, 16])], weights)


def random_topological(graph: Graph, source: random.Random) -> tuple[int, ...]:
    """A random order that ONNX Runtime runs as written."""
    missing = [len(p) for p in graph.predecessors]
    after: list[list[int]] = [[] for _ in graph.nodes]
    for v, before in enumerate(graph.predecessors):
        for u in before:
            after[u].append(v)
    ready = [v for v, m in enumerate(missing) if m == 0]
    order = []
    while ready:
        v = ready.pop(source.randrange(len(ready)))
        order.append(v)
        for w in after[v]:
            missing[w] -= 1
            if missing[w] == 0:
                ready.append(w)
    return priority_order(graph, order)


def random_orders(graph: Graph, source: random.Random, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Random orders of a graph and all its bodies, by body path."""
    orders = {prefix.rstrip("/"): random_topological(graph, source)}
    for v, node in enumerate(graph.nodes):
        for k, (_, body) in enumerate(node.bodies):
            orders.update(random_orders(body, source, f"{prefix}{v}/{k}/"))
    return orders


PYPI = {
    "silero-vad": ("silero_vad/data/silero_vad.onnx", ("input=1,288", "state=2,1,128")),
    "basic-pitch": ("basic_pitch/saved_models/icassp_2022/nmp.onnx", ("serving_default_input_2:0=1,43844,1",)),
    "magika": ("magika/models/standard_v3_3/model.onnx", ("bytes=1,2048",)),
    "rapidocr-onnxruntime det": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", ("x=1,3,320,320",)),
    "rapidocr-onnxruntime rec": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", ("x=1,3,48,320",)),
    "rapidocr-onnxruntime cls": ("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", ("x=1,3,48,192",)),
}


def pypi_model(name: str) -> tuple[Path, tuple[str, ...]]:
    """Path and shapes of a real model; skips where its package is not installed."""
    distribution = name.split()[0]
    file, shapes = PYPI[name]
    try:
        path = Path(str(metadata.distribution(distribution).locate_file(file)))
    except metadata.PackageNotFoundError:
        pytest.skip(f"the package {distribution} is not installed (pip install --no-deps {distribution})")
    if not path.exists():
        pytest.skip(f"the package {distribution} has no {file} in this version")
    return path, shapes
