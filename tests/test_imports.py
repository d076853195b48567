"""The plan of the house, read off the imports: nothing points up, nothing runs in a circle, ``proof`` knows the model alone.

Read are all import statements, those inside functions and those for typing as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {path.name: path for path in sorted(ROOT.glob("packages/*/src/*")) if (path / "__init__.py").is_file()}

FLOORS = (
    ("peakmem_native",),
    ("peakmem_check.model",),
    ("peakmem_check.jsonfile",),
    ("peakmem_check.proof",),
    ("peakmem_check",),
    ("peakmem.model",),
    ("peakmem.proof", "peakmem.system"),
    ("peakmem.arena", "peakmem.ordering"),
    ("peakmem.frontends",),
    ("peakmem.result",),
    ("peakmem.transform",),
    ("peakmem.api",),
    ("peakmem.report",),
    ("peakmem._moved", "peakmem"),
    ("peakmem_tflite", "peakmem_onnx", "peakmem_inductor"),
    ("peakmem_cli",),
)
"""From the ground up; a room may import those on lower floors only. The first prefix that fits decides."""


def modules() -> dict[str, Path]:
    found = {}
    for name, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((name, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Modules of ours that a module imports, with the line."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in MODULES:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: line {node.lineno}: imports are absolute here"
            if node.module in MODULES:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield (inner if inner in MODULES and inner != name else node.module), node.lineno


def floor_of(name: str) -> int:
    for i, rooms in enumerate(FLOORS):
        for room in rooms:
            if name == room or (name.startswith(room + ".") and room not in ("peakmem", "peakmem_check")):
                return i
    for i, rooms in enumerate(FLOORS):
        if name.partition(".")[0] in rooms:
            return i
    raise AssertionError(f"{name} is in no room of the plan")


def test_there_is_something_to_read() -> None:
    assert {"peakmem", "peakmem_check"} <= PACKAGES.keys()
    assert ("peakmem.ordering", 0) in {(m, 0) for m, _ in imports("peakmem.frontends.contract")}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_import_points_up(name: str) -> None:
    here = floor_of(name)
    for other, line in imports(name):
        assert floor_of(other) <= here, f"{name}: line {line} imports {other}, which lies above it"
        if floor_of(other) == here and name.partition(".")[0] == other.partition(".")[0] == "peakmem":
            rooms = [m.split(".")[1] for m in (name, other) if "." in m]
            assert len(set(rooms)) <= 1 or name == "peakmem", f"{name}: line {line} imports its neighbour {other}"


def test_no_import_runs_in_a_circle() -> None:
    graph = nx.DiGraph((name, other) for name in MODULES for other, _ in imports(name) if other != name)
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles


def test_proof_imports_the_model_and_nothing_else() -> None:
    allowed = ("peakmem_check.model", "peakmem_check.proof")
    for name in MODULES:
        if name.startswith("peakmem_check.proof"):
            for node in ast.walk(ast.parse(MODULES[name].read_text())):
                found = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names] if isinstance(node, ast.Import) else []
                for other in found:
                    assert other is not None
                    if other.partition(".")[0].startswith("peakmem"):
                        assert other.startswith(allowed), f"{name} imports {other}"


def test_the_checker_needs_the_standard_library_alone() -> None:
    import sys

    for name in MODULES:
        if name.startswith("peakmem_check"):
            for node in ast.walk(ast.parse(MODULES[name].read_text())):
                found = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names] if isinstance(node, ast.Import) else []
                for other in found:
                    top = other.partition(".")[0]
                    assert top == "peakmem_check" or top in sys.stdlib_module_names, f"{name} imports {other}"


def test_core_and_the_checker_name_no_frontend() -> None:
    for name in MODULES:
        if name.partition(".")[0] in ("peakmem", "peakmem_check"):
            for other, line in imports(name):
                if (name, other) != ("peakmem.system.compiled", "peakmem_native"):  # the one place that looks for it
                    assert other.partition(".")[0] in ("peakmem", "peakmem_check"), f"{name}: line {line} imports {other}"
