"""Children: what they say comes through, limits hold, and nothing that was started outlives the call."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from peakmem.model import RuntimeFailed
from peakmem.system.process import Children, Finished, run_child

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups and signals are POSIX")

FORKING = "import os, sys, time\npid = os.fork()\nif not pid:\n    time.sleep(600)\nprint(pid, flush=True)\n"


def python(code: str, **settings) -> Finished:
    return run_child([sys.executable, "-c", code], what="it", **{"limit": 60.0, **settings})


def ended(pid: int) -> bool:
    """No such process, or one that waits for its parent to notice its end.

    A process that was killed closes its files, which is what `run_child` waits for, a moment before that.
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


@pytest.mark.parametrize("then", ["while True: pass", "os._exit(9)"])
def test_the_time_limit_ends_all_of_them(tmp_path, then):
    """A fork holds the pipes of a child that crashed, so the answer would never end."""
    told = tmp_path / "pid"
    with pytest.raises(RuntimeFailed, match=r"^it did not end within 1 s; nothing was measured$"):
        python(FORKING + f"open({str(told)!r}, 'w').write(str(pid))\n{then}", limit=1.0)
    assert wait_until(lambda: ended(int(told.read_text())))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a family of processes has computed")
def test_the_limit_counts_what_is_computed_and_hardly_what_is_waited(monkeypatch):
    """Sleeping longer than the limit is no fault; children compute for their parent, those that ended too."""
    assert python("import time; time.sleep(2.5); print('slept')", limit=1.5).out == b"slept\n"
    spin = "import time\nwhile time.process_time() < {}: pass"
    child = f"import subprocess, sys\nfor _ in range(100): subprocess.run([sys.executable, '-c', {spin.format(1)!r}])"
    with pytest.raises(RuntimeFailed, match="within 3 s"):
        python(child, limit=3.0)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('said', flush=True)\nwhile True: pass"
    found = python(deaf, limit=1.0, grace=0.2)
    assert (found.late, found.code, found.out) == (True, -signal.SIGKILL, b"said\n")
    told = python("import sys, signal\nsignal.signal(15, lambda *_: sys.exit(7))\nwhile True: pass", limit=1.0, grace=30.0)
    assert (told.late, told.code) == (True, 7)
    monkeypatch.setattr("peakmem.system.process.seconds_of", lambda pid: None)  # where only the wall has a clock
    with pytest.raises(RuntimeFailed, match="within 1 s"):
        python("import time; time.sleep(600)", limit=1.0)


def test_answers_come_through(tmp_path):
    code = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]); sys.exit('no')"
    assert python(code, given=b"abc" * 100_000) == Finished(1, b"cba" * 100_000, b"no\n")
    assert python(f"import time; time.sleep(1.2); {code}", given=b"abc" * 1_000_000) == Finished(1, b"cba" * 1_000_000, b"no\n")
    found = python("import os; print(os.getcwd(), os.environ.get('SAY'), 'HOME' in os.environ)", folder=tmp_path, environment={"SAY": "x"})
    assert found.out.decode() == f"{tmp_path} x False\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; print('first\\n  last one \\n\\n \\n', file=sys.stderr)", "last one"),
        ("import sys; print('x' * 1000, file=sys.stderr)", "x" * 300),
        ("import sys; sys.stderr.buffer.write(b'\\xff!')", "\ufffd!"),
        ("raise SystemExit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
    ],
)
def test_last_words(code, words):
    assert python(code).last_words == words


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of another process")
def test_the_memory_limit():
    """What is given arrives once the limit is set."""
    code = "import sys; sys.stdin.read(); block = bytearray(1 << 30); print('had it')"
    assert python(code, memory=4 << 30).out == b"had it\n"
    found = python(code, memory=600 << 20)
    assert (found.code, found.last_words) == (1, "MemoryError")


def test_what_cannot_be_started():
    with pytest.raises(RuntimeFailed, match=r"^the tool cannot be started \(No such file or directory\); nothing was measured$"):
        run_child(["/no/such/program"], what="the tool", limit=1)


def test_children_can_be_stopped(tmp_path):
    """They may still say what they have; none begins afterwards."""
    ready = tmp_path / "ready"
    code = f"""
import pathlib, signal, sys, time
def end(number, frame):
    print("what there is", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
pathlib.Path({str(ready)!r}).touch()
time.sleep(600)
"""
    children, found = Children(), []
    thread = threading.Thread(target=lambda: found.append(python(code, among=children, limit=None)))
    thread.start()
    assert wait_until(ready.exists)
    assert not children.stopped
    children.stop()
    thread.join(300)
    assert found == [Finished(7, b"what there is\n", b"")]
    assert children.stopped
    assert python("import time; time.sleep(600)", among=children).code == -15
    assert not children._running


def test_children_that_do_not_listen_are_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch()\ntime.sleep(600)"
    )
    children, found = Children(), []
    thread = threading.Thread(target=lambda: found.append(python(code, limit=300.0, among=children)))
    thread.start()
    assert wait_until(ready.exists)
    children.stop()
    thread.join(0.5)
    assert thread.is_alive(), "it was to ignore SIGTERM"
    children.kill()
    thread.join(300)
    assert [one.code for one in found] == [-signal.SIGKILL]
