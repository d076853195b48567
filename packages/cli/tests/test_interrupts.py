"""Ctrl-C, SIGTERM and a closed terminal: what was found is kept, nothing is half written, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
POSIX = pytest.mark.skipif(os.name != "posix", reason="sends signals the POSIX way")
PLAN = ("--max-extra-macs", "100%")


def press_ctrl_c(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


# before there is a result


def test_checking_the_certificate(peakmem: Call, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is there, its proof is not checked and so not shown."""
    monkeypatch.setattr("peakmem.proof.accept", press_ctrl_c)
    done = peakmem("optimize", program)
    assert (done.code, done.err) == (0, "")
    first = done.out.splitlines()[0]
    assert "1,600 B -> " in first
    assert "best found, lower bound 576 B" in first  # what the largest statement touches
    assert "certified" not in done.out
    assert "note: the certificate is left out, since checking it was interrupted" in done.out


def test_rewriting_the_artifact(peakmem: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem.frontends.programfile import ProgramModel

    rewrite, calls = ProgramModel.apply, []

    def once(model: ProgramModel, schedule: Any) -> Any:
        calls.append(1)
        return press_ctrl_c() if len(calls) == 1 else rewrite(model, schedule)

    monkeypatch.setattr(ProgramModel, "apply", once)
    out = tmp_path / "out.json"
    done = peakmem("optimize", program, "-o", out)
    assert (done.code, done.err) == (0, "")
    assert json.loads(out.read_text())["schema"] == "peakmem.program/1"


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("place", ["run.expand", "run.order_expansion"])
def test_realizing_a_plan_keeps_the_front(
    peakmem: Call, toyfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    points = peakmem("recompute", toyfile, "--json").document["points"]
    module, name = place.split(".")
    monkeypatch.setattr(sys.modules[f"peakmem.transform.recompute.{module}"], name, press_ctrl_c)
    out, front = tmp_path / "out", tmp_path / "front.json"
    done = peakmem("recompute", toyfile, *PLAN, "-o", out, "--front", front)
    assert done.code == 1
    assert done.err == f"peakmem: {out}: not written: interrupted before the plan was realized\n"
    document = json.loads(front.read_text())
    assert document["points"] == points
    assert document["interrupted"]
    assert not out.exists()


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("place", ["order", "front"])
def test_no_plan_is_ruled_out_by_ctrl_c(
    peakmem: Call, toyfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from dataclasses import replace

    from peakmem.frontends import steps

    ordered, pareto = steps.order_program, sys.modules["peakmem.transform.recompute.pareto"]
    if place == "order":
        monkeypatch.setattr(steps, "order_program", lambda *a, **k: replace(ordered(*a, **k), interrupted=True))
    else:
        monkeypatch.setattr(pareto, "greedy", press_ctrl_c)
    out = tmp_path / "out"
    done = peakmem("recompute", toyfile, *PLAN, "-o", out)
    assert (done.code, done.err) == (1, f"peakmem: {out}: not written: interrupted before a plan was found\n")
    assert "interrupted" in done.out


@pytest.mark.usefixtures("toy")
def test_no_plan_is_ruled_out_by_the_time_limit(peakmem: Call, toyfile: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = peakmem("recompute", toyfile, *PLAN, "-o", out, "--time-limit", "0")
    assert done.code == 1
    assert "no plan within the limits given was found in time" in done.err


@pytest.mark.usefixtures("toy")
def test_measuring_a_recomputation_keeps_it(
    peakmem: Call, toyfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .conftest import ToyModel

    monkeypatch.setattr(ToyModel, "verify", press_ctrl_c)
    out = tmp_path / "out"
    done = peakmem("recompute", toyfile, *PLAN, "-o", out)
    assert (done.code, done.err) == (0, "")
    assert "not measured: not run (interrupted)" in done.out
    assert out.exists()


# once there is one


@POSIX
@pytest.mark.parametrize("command", [["optimize", "-o"], ["certify", "-o"], ["recompute", "--front"]])
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_it_is_written(
    peakmem: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], times: int
) -> None:
    """Once is too late to lose anything; twice ends the command."""
    out = tmp_path / "out.json"
    replace = os.replace

    def interrupted(source: str, target: str) -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        replace(source, target)

    before = signal.getsignal(signal.SIGINT)
    plain = peakmem(command[0], program).out
    monkeypatch.setattr(os, "replace", interrupted)
    done = peakmem(command[0], program, command[1], out)
    assert signal.getsignal(signal.SIGINT) is before
    if times == 1:
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines()[0] == plain.splitlines()[0]
        assert done.out.endswith(f"wrote {out}\n")
        assert json.loads(out.read_text())
    else:
        assert done.code == 130
        assert not out.exists()
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


# from outside


@POSIX
def test_ctrl_c_while_the_modules_are_imported_has_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "peakmem_cli", "frontends"], capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as a terminal starts it
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


WAITING = """
import os, signal, sys, tempfile, time
from peakmem_cli import main
def work(arguments):
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("ready", flush=True)
        time.sleep(float(sys.argv[2]))
    print("done")
    return 0
main._run = work
main.run()
"""


@POSIX
@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_ends_it_like_sigterm_unless_nohup_says_not(tmp_path: Path, ignored: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), "1" if ignored else "60"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == ((0, "done\n", "") if ignored else (129, "", "peakmem: terminated\n"))
    assert not list(folder.iterdir())


def test_errors_of_the_system_are_not_called_ours(
    peakmem: Call, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere")

    monkeypatch.setattr("peakmem.frontends.steps.order_program", full)
    monkeypatch.delenv("PEAKMEM_DEBUG", raising=False)
    done = peakmem("optimize", program)
    assert (done.code, done.err) == (2, "peakmem: /somewhere: No space left on device\n")
