"""One small artifact for each frontend."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # `browser` is importable from the tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--beside", metavar="FRONTEND", action="append", help="of the tests here, those that say more where this frontend is installed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "beside(*frontends): says more where one of these frontends is installed; any, if none is named")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    frontends = config.getoption("--beside")
    if not frontends:
        return

    def kept(item: pytest.Item) -> bool:
        named = [mark.args for mark in item.iter_markers("beside")]
        return item.path.parent != HERE or any(not args or not set(args).isdisjoint(frontends) for args in named)

    config.hook.pytest_deselected(items=[item for item in items if not kept(item)])
    items[:] = filter(kept, items)

WIDE_TAPE = """#tape
in x 64
a 512 = x
c 512 = x
e 512 = x
b 16 = a
d 16 = c
f 16 = e
g 8 = b d f
out g
"""
"""Three wide values side by side: 1600 bytes; branch after branch needs far less."""


def program_document() -> dict[str, object]:
    """The network of `WIDE_TAPE` as ``peakmem.program/1``."""
    rows = [row.split() for row in WIDE_TAPE.splitlines()[2:-1]]
    sizes = {"x": 64} | {row[0]: int(row[1]) for row in rows}
    return {
        "schema": "peakmem.program/1",
        "buffers": [
            {"id": name, "bytes": size, "kind": {"x": "input", "g": "output"}.get(name, "intermediate")}
            for name, size in sizes.items()
        ],
        "statements": [
            {"id": f"make_{row[0]}", "reads": row[3:], "writes": [row[0]],
             "dependences": [f"make_{name}" for name in row[3:] if name != "x"]}
            for row in rows
        ],
    }


def make_tape(folder: Path) -> Path:
    path = folder / "wide.tape"
    path.write_text(WIDE_TAPE)
    return path


def make_program(folder: Path) -> Path:
    path = folder / "wide.json"
    path.write_text(json.dumps(program_document()))
    return path


def make_tflite(folder: Path) -> Path:
    """A real wake-word model, as a PyPI package carries it."""
    try:
        carried = distribution("pymicro-wakeword").locate_file("pymicro_wakeword/models/okay_nabu.tflite")
    except PackageNotFoundError:
        pytest.skip("needs a real model: pip install pymicro-wakeword==2.5.0")
    return Path(shutil.copy(str(carried), folder / "okay_nabu.tflite"))


def make_onnx(folder: Path) -> Path:
    """Three wide branches that are computed side by side and joined."""
    import onnx
    from onnx import TensorProto, helper

    if not hasattr(onnx, "load"):
        pytest.skip("needs onnx: pip install onnx")
    def weights(name: str, rows: int, columns: int, seed: int) -> onnx.TensorProto:
        values = [((seed + 7 * k) % 23 - 11) / 64 for k in range(rows * columns)]
        return helper.make_tensor(name, TensorProto.FLOAT, [rows, columns], values)

    # The branches differ, or the runtime's optimizer would make one of them.
    nodes = [helper.make_node("MatMul", ["x", f"widen{i}"], [f"wide{i}"], name=f"widen{i}") for i in range(3)]
    nodes += [
        helper.make_node(op, [f"wide{i}"], [f"act{i}"], name=f"act{i}") for i, op in enumerate(("Relu", "Tanh", "Abs"))
    ]
    nodes += [helper.make_node("MatMul", [f"act{i}", f"narrow{i}"], [f"n{i}"], name=f"narrow{i}") for i in range(3)]
    nodes += [
        helper.make_node("Add", ["n0", "n1"], ["n01"], name="add0"),
        helper.make_node("Add", ["n01", "n2"], ["y"], name="add1"),
    ]
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 4])],
        [weights(f"widen{i}", 16, 256, i) for i in range(3)] + [weights(f"narrow{i}", 256, 4, i) for i in range(3)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "branches.onnx"
    onnx.save(model, str(path))
    return path


@functools.cache
def compiled_wrapper() -> tuple[tempfile.TemporaryDirectory[str], list[Path]]:
    """Three wide branches, compiled by PyTorch once; the wrapper and the profile recorded beside it."""
    if find_spec("torch") is None:
        pytest.skip("needs PyTorch: pip install 'peakmem-inductor[torch]'")
    import peakmem_inductor
    import torch

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = torch.nn.ModuleList(torch.nn.Linear(16, 512) for _ in range(3))
            self.narrow = torch.nn.ModuleList(torch.nn.Linear(512, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = [torch.relu(layer(x)) for layer in self.wide]
            narrow = [layer(value) for layer, value in zip(self.narrow, wide)]
            return narrow[0] + narrow[1] + narrow[2]

    folder = tempfile.TemporaryDirectory(prefix="wrapper")
    torch.manual_seed(0)
    with torch.no_grad(), peakmem_inductor.dump(folder.name) as written:
        torch.compile(Branches().eval(), backend="peakmem")(torch.randn(32, 16))
    assert written()
    return folder, sorted(Path(folder.name).iterdir())


def make_inductor(folder: Path) -> Path:
    for file in compiled_wrapper()[1]:
        shutil.copy(file, folder)
    return next(folder.glob("*.py"))


SAMPLES = {
    "program": make_program,
    "tape": make_tape,
    "tflite": make_tflite,
    "onnx": make_onnx,
    "inductor": make_inductor,
}


@pytest.fixture
def samples() -> dict[str, Callable[[Path], Path]]:
    """Frontend -> a function that writes one small artifact into a folder, made without its runtime where possible."""
    return dict(SAMPLES)


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """A tape in a bad order."""
    return make_tape(tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The same network as a bare program."""
    return make_program(tmp_path)
