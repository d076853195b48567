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
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == code
    assert done.stderr == ("" if code == 0 else done.stderr.splitlines()[0] + "\n")


@POSIX
@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_harm_nothing(program: Path, tmp_path: Path, closing: str) -> None:
    out = tmp_path / "out.json"
    line = f'"$0" -m peakmem_cli optimize "$1" -o "$2" {closing}'
    done = subprocess.run(["sh", "-c", line, sys.executable, program, out], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(out.read_text())["schema"] == "peakmem.program/1"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["inspect"], ["optimize", "--json"]])
def test_a_full_output_is_one_sentence(program: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, str(program)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600
        )
    assert done.returncode == 2
    assert done.stderr == "peakmem: the output cannot be written (No space left on device)\n"


@POSIX
def test_a_terminated_command_leaves_nothing_behind(tmp_path: Path) -> None:
    # A stand-in for a runtime: the command runs a child and writes a file when SIGTERM arrives.
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys, tempfile\n"
        "from peakmem_cli import main\n"
        "def work(arguments):\n"
        "    with tempfile.TemporaryDirectory(dir=sys.argv[1]):\n"
        "        child = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
        "        subprocess.run([sys.executable, '-c', child])\n"
        "main._run = work\n"
        "main.run()\n"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert list(folder.iterdir())
        process.terminate()
        _, said = process.communicate(timeout=600)
    assert (process.returncode, said) == (143, "peakmem: terminated\n")
    assert not list(folder.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


HITS = """
import signal, sys
from peakmem_cli.streams import prepare
class Hit(BaseException): pass
armed, hits = False, 0
def hit(number, frame):
    global armed, hits
    if armed:
        armed, hits = False, hits + 1
        raise Hit
signal.signal(signal.SIGALRM, hit)
prepare()
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
for n in range(20000):
    try:
        armed = True
        print(f"{n}\\n", end="", flush=True)  # one write, so that no two numbers run together
        armed = False
    except Hit:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print(hits, file=sys.stderr)
"""


@POSIX
def test_a_signal_after_a_write_does_not_write_it_again() -> None:
    """Its handler may raise when the bytes are gone already; then they must not stay in the buffer."""
    done = subprocess.run([sys.executable, "-c", HITS], capture_output=True, text=True, timeout=600, check=True)
    assert int(done.stderr) > 10
    numbers = [int(line) for line in done.stdout.splitlines()]
    assert len(set(numbers)) == len(numbers)
