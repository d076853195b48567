"""Nothing that measures outlives the command: not the process started, nor what it forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups and signals are POSIX")

INTERPRETER = """
import os, pathlib, time
class InterpreterConfig:
    kPreserveAllTensors = kAllocationRecording = None
class Interpreter:
    @staticmethod
    def from_bytes(data, **settings):
        here = pathlib.Path(os.environ["PIDS"])
        (here / "half").write_text(f"{os.getppid()} {os.getpid()}")
        (here / "half").rename(here / "pids")
        time.sleep(600)
"""
"""A TFLite Micro that never ends; it tells the numbers of the measuring process and of its fork."""

SCRIPT = """
import os, pathlib, signal, sys
import peakmem_tflite.measure as measure
def terminate(number, frame):
    raise SystemExit(3)  # as the command line does: an exception, so that temporary files go
signal.signal(signal.SIGTERM, terminate)
model = {"path": sys.argv[1], "bare": sys.argv[1], "inputs": 1, "outputs": 1, "tensors": [], "span": [], "calls": [],
         "planner_temp": 0, "after_planning": [0], "arena": 1024}
measure._child({"runtime": "tflm", "models": [model], "steps": 1, "limit": 600, "seconds": 600})
"""


def ended(pid: int) -> bool:
    """No such process, or one that waits for its parent to notice its end.

    A process that was killed closes its files, which is what the measuring process waits for, a moment before that.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(condition, seconds: float = 300) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def measuring(tmp_path):
    """A process in the midst of measuring: itself, and the numbers of the two below it."""
    package = tmp_path / "stub" / "tflite_micro"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "runtime.py").write_text(INTERPRETER)
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(script)], stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(package.parent), "PIDS": str(tmp_path)},
    )  # fmt: skip
    children: list[int] = []
    try:
        assert wait_until(lambda: pids.exists() or process.poll() is not None)
        assert pids.exists(), process.stderr.read().decode()
        children += map(int, pids.read_text().split())
        assert not any(map(ended, children))
        yield process, children
    finally:
        process.kill()
        process.communicate()
        for pid in children:
            if not ended(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_fork_before_the_command_ends(measuring, number):
    process, children = measuring
    process.send_signal(number)
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert wait_until(lambda: all(map(ended, children)))


def test_who_lost_the_command_ends_too(measuring):
    """SIGKILL leaves it no time to end anything."""
    process, children = measuring
    process.kill()
    process.communicate(timeout=600)
    assert wait_until(lambda: all(map(ended, children)))
