"""Starting up: nothing heavy is imported before it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "scipy", "networkx", "ortools", "pandas", "torch", "onnx", "onnxruntime", "tflite")


def loaded_after(*arguments: str) -> set[str]:
    code = (
        "import sys, contextlib, io\n"
        "from peakmem_cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): code = main(sys.argv[1:])\n"
        "assert code == 0, code\n"
        "import json; print(json.dumps(sorted(m for m in sys.modules if '.' not in m)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=600, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("arguments", [("--help",), ("optimize", "--help"), ("frontends",), ("--version",)])
def test_help_and_listing_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    modules = loaded_after(*arguments)
    assert "peakmem" in modules
    assert not modules & set(HEAVY)


def test_the_command_line_does_not_import_click_itself() -> None:
    sources = (Path(__file__).parents[1] / "src").rglob("*.py")
    assert not [p for p in sources if "import click" in p.read_text() or "from click" in p.read_text()]


def test_runs_as_a_module_and_survives_a_closed_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "peakmem_cli", "--version"], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.startswith("peakmem ")
    reader, writer = os.pipe()
    os.close(reader)
    closed = subprocess.run(
        [sys.executable, "-m", "peakmem_cli", "frontends"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600
    )
    os.close(writer)
    assert "Traceback" not in closed.stderr
    assert "internal error" not in closed.stderr


def test_progress_stays_off_when_standard_error_is_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text('{"schema":"peakmem.program/1","buffers":[],"statements":[{"id":"a"}]}')
    done = subprocess.run(
        [sys.executable, "-m", "peakmem_cli", "optimize", str(path)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0
    assert done.stderr == ""
