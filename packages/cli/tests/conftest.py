"""A bare program to work on, and the command line in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from peakmem.frontends import Frontend, Option, RuntimeStatus, Verification, registry
from peakmem.frontends.programfile import ProgramModel
from peakmem.frontends.programfile import frontend as programs
from peakmem.model import Program, RuntimeFailed, RuntimeMissing
from peakmem_cli.main import main

sys.path.append(str(Path(__file__).parents[2] / "check" / "tests"))  # for `generators`


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def branches(count: int = 3) -> dict[str, Any]:
    """Wide values made side by side and narrowed afterwards: an order that a person sees how to improve."""
    names = [f"{kind}{i}" for kind in ("wide", "narrow") for i in range(count)]
    buffers = [{"id": "x", "bytes": 64, "kind": "input"}]
    buffers += [{"id": name, "bytes": 512 if name.startswith("wide") else 16} for name in names]
    buffers.append({"id": "sum", "bytes": 8, "kind": "output"})
    statements: list[dict[str, Any]] = [
        {"id": f"widen{i}", "op": "widen", "reads": ["x"], "writes": [f"wide{i}"]} for i in range(count)
    ]
    statements += [
        {"id": f"reduce{i}", "op": "reduce", "reads": [f"wide{i}"], "writes": [f"narrow{i}"],
         "dependences": [f"widen{i}"], "cost": 512}
        for i in range(count)
    ]
    statements.append(
        {"id": "join", "reads": [f"narrow{i}" for i in range(count)], "writes": ["sum"],
         "dependences": [f"reduce{i}" for i in range(count)]}
    )
    return {"schema": "peakmem.program/1", "name": "branches", "buffers": buffers, "statements": statements}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "branches.json"
    path.write_text(json.dumps(branches()))
    return path


@pytest.fixture
def peakmem(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run one command line; returns its exit code, standard output and standard error."""

    def call(*arguments: object) -> Done:
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err + out
        return Done(code, out, err)

    return call


SNIPPET = "// toy\nint peak =\t7;\n\nrun();\n"
HINT = "pip install 'toy[{}]'"


class ToyModel(ProgramModel):
    """A bare program that pretends to have a runtime: it measures what is predicted."""

    frontend = "toy"

    def __init__(self, program: Program, path: Path | None, toy: ToyFrontend, notes: tuple[str, ...], engine: str) -> None:
        super().__init__(program, path)
        self.toy, self._notes, self.engine = toy, notes, engine

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def apply(self, schedule: Any) -> ToyModel:
        return ToyModel(super().apply(schedule).program, None, self.toy, self.toy.notes[1], self.engine)

    def verify(self, other: Any, *, progress: Any = None) -> Verification:
        if self.engine in self.toy.missing:
            raise RuntimeMissing(f"{self.engine} is not installed; try: {HINT.format(self.engine)}")
        if self.engine in self.toy.broken:
            raise RuntimeFailed(f"{self.engine} cannot run it; nothing was measured")
        before, after = self.predicted_bytes, other.predicted_bytes
        same = not self.toy.failures
        return Verification(
            self.engine, "1", "live_peak", before, after, before, after, same, "all 7 values", tuple(self.toy.failures),
            ("the toy is slow",),
        )  # fmt: skip

    def snippet(self) -> str:
        return SNIPPET


class ToyFrontend(Frontend):
    """Reads files that begin with ``toy``; the rest is a bare program. A test says what is missing or broken."""

    name = "toy"
    description = "a frontend for tests"
    options = (
        Option("engine", "choice", "What runs it.", default="quick", choices=("quick", "steady"), names_runtime=True),
        Option("no-frills", "flag", "Leave out the frills.", default=False),
        Option("rounds", "int", "How often.", default=1),
        Option("label", "text", "A name.", default=(), multiple=True),
    )

    def __init__(self) -> None:
        self.missing: set[str] = set()
        self.broken: set[str] = set()
        self.failures: tuple[str, ...] = ()
        self.uninstalled: set[str] = set()
        self.notes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"toy")

    def load(self, path: Path, options: Mapping[str, Any]) -> ToyModel:
        bare = path.with_suffix(".bare")
        bare.write_bytes(path.read_bytes()[3:])
        model = programs.load(bare, {})
        bare.unlink()
        return ToyModel(model.program, path, self, self.notes[0], options["engine"])

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        return tuple(
            RuntimeStatus(name, None if name in self.uninstalled else "1", HINT.format(name)) for name in ("quick", "steady")
        )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyFrontend:
    """The toy frontend, installed beside the others."""
    found = ToyFrontend()
    monkeypatch.setitem(sys.modules, "toy_of_the_tests", SimpleNamespace(frontend=found))
    points = [*registry.discover().values(), EntryPoint("toy", "toy_of_the_tests:frontend", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    return found


@pytest.fixture
def toyfile(tmp_path: Path) -> Path:
    """For the toy frontend, a program that another order and running something twice make smaller."""
    from generators import ladder

    document = ladder(2, 3).to_json()
    for row in document["statements"]:
        row["op"] = "Keep" if row["id"].startswith("k") else "Other"
    path = tmp_path / "stages.toy"
    path.write_text("toy" + json.dumps(document))
    return path
