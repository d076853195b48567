"""A bare program to work on, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from peakmem_cli.main import main


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
