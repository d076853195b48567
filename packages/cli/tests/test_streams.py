"""The exit code is right and nothing is damaged, whatever becomes of the standard streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "peakmem_cli"]
POSIX = pytest.mark.skipif(os.name != "posix", reason="closes streams the POSIX way")


@POSIX
@pytest.mark.parametrize(("budget", "code"), [("10", 1), ("1MB", 0)])
def test_who_reads_only_the_beginning_gets_the_answer_as_exit_code(program: Path, budget: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "optimize", str(program), "--budget", budget],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == code
    assert done.stderr == ("" if code == 0 else done.stderr.splitlines()[0] + "\n")


@POSIX
@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_harm_nothing(program: Path, tmp_path: Path, closing: str) -> None:
    out = tmp_path / "out.json"
    line = f'"$0" -m peakmem_cli optimize "$1" -o "$2" {closing}'
    done = subprocess.run(["sh", "-c", line, sys.executable, program, out], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(out.read_text())["schema"] == "peakmem.program/1"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["inspect"], ["optimize", "--json"]])
def test_a_full_output_is_one_sentence(program: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, str(program)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr == "peakmem: the output cannot be written (No space left on device)\n"
