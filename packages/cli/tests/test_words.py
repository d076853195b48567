"""What is typed and what is said: help, completion, standard input, colours, progress, sentences about wrong files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peakmem
import pytest
from peakmem.report import words
from peakmem_cli.screen import Screen, pace

from .conftest import branches
from .test_reports import on_a_terminal

Call = Callable[..., Any]


def test_help_by_every_name(peakmem: Call) -> None:
    whole, of_one = peakmem("--help").out, peakmem("inspect", "--help").out
    assert peakmem("-h").out == peakmem("help").out == whole
    assert peakmem("inspect", "-h").out == peakmem("help", "inspect").out == of_one
    unknown = peakmem("help", "inspekt")
    assert (unknown.code, unknown.out) == (2, "")


def test_a_folder_is_led_to_survey(peakmem: Call, tmp_path: Path) -> None:
    for command in ("inspect", "optimize"):
        done = peakmem(command, tmp_path)
        assert (done.code, done.out) == (2, "")
        assert f"{tmp_path}: is a folder" in done.err and "peakmem survey" in done.err


def test_a_program_file_of_another_version_is_called_so(peakmem: Call, program: Path) -> None:
    program.write_text(json.dumps(branches() | {"schema": "peakmem.program/2"}))
    done = peakmem("inspect", program)
    assert done.code == 2
    assert "is a program file of another version, peakmem.program/2; this peakmem reads peakmem.program/1" in done.err


def test_figures_of_unknown_kinds_are_refused_and_files_with_equals_signs_have_a_way(
    peakmem: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, said in (("lifetime=x.svg", "did you mean 'lifetimes'?"), ("qqq=x.svg", "a file of that name is written ./qqq=x.svg")):
        done = peakmem("report", program, "--figure", text)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    assert peakmem("report", program, "--figure", "./qqq=x.svg").code == 0
    assert {p.name for p in tmp_path.iterdir()} == {program.name, "qqq=x.svg"}


@pytest.mark.parametrize("given", ["the certificate", "nothing"])
def test_a_certificate_may_come_from_standard_input(peakmem: Call, program: Path, tmp_path: Path, given: str) -> None:
    proof = tmp_path / "proof.json"
    assert peakmem("certify", program, "-o", proof).code == 0
    done = subprocess.run(
        [sys.executable, "-m", "peakmem_cli", "check", str(program), "-"],
        input=proof.read_bytes() if given == "the certificate" else b"", capture_output=True, check=False,
    )  # fmt: skip
    if given == "nothing":
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"peakmem: standard input: ") and done.stderr.count(b"\n") == 1
    else:
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"valid: ")


def test_shells_complete_commands() -> None:
    asked = {**os.environ, "_PEAKMEM_COMPLETE": "complete_bash", "COMP_WORDS": "peakmem opt", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "peakmem_cli"], env=asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["optimize"]


@pytest.mark.skipif(sys.platform != "linux", reason="opens a pseudo-terminal the Linux way")
def test_no_color_means_no_escapes_at_all(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    def raw(*arguments: object) -> bytes:
        leader, follower = pty.openpty()
        process = subprocess.Popen([sys.executable, "-m", "peakmem_cli", *map(str, arguments)], stdout=follower, stderr=subprocess.DEVNULL)
        os.close(follower)
        seen = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
        os.close(leader)
        assert process.wait(timeout=600) == 0
        return seen

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert b"\x1b[" in raw("inspect", program), "nothing would be shown by the rest"
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b[" not in raw("inspect", program)
    assert b"\x1b[" not in raw("inspect", "--help")


@pytest.mark.skipif(sys.platform != "linux", reason="opens a pseudo-terminal the Linux way")
def test_a_survey_fits_60_columns(tmp_path: Path) -> None:
    for name in ("a_model_with_a_long_name_that_ends_in_v1.json", "a_model_with_a_long_name_that_ends_in_v2.json"):
        (tmp_path / name).write_text(json.dumps(branches()))
    lines = on_a_terminal(60, "survey", tmp_path)
    table = lines[2:]
    assert max(map(len, table)) <= 60
    assert [sum(f"{i}.json" in line for line in table) for i in (1, 2)] == [1, 1]


def test_progress_says_how_long_and_of_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem_cli import screen

    assert pace(12.4, 60.0) == "12 s of 60 s"
    assert pace(61.0, 60.0) == "61 s"  # measuring goes on after searching
    assert pace(3.0, None) == "3 s"
    drawn: list[Any] = []

    class Status:
        def __init__(self, line: Any) -> None:
            drawn.append(line)

        def start(self) -> None: ...
        def stop(self) -> None: ...

    class Terminal:
        def status(self, line: Any) -> Status:
            return Status(line)

    clock = iter([100.0, 107.0, 161.0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(screen, "_console", lambda **_: Terminal())
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(clock))
    with Screen().progress(60.0) as tell:
        assert tell is not None
        assert drawn[0].__rich__().plain == "7 s of 60 s: working"
        tell("searching \x1b[31m")
        assert drawn[0].__rich__().plain == "61 s: searching \\x1b[31m"


def test_prices_that_nobody_knows_are_not_nothing() -> None:
    assert words.more(0, 0) == words.cost(0, 0) == words.UNPRICED
    assert words.more(5, 0) == "5 more MACs"
    assert words.more(0, 100) == "0.000 % more MACs"
    assert words.cost(0, 100) == "no more MACs"


def test_a_result_is_one_line(program: Path) -> None:
    shown = repr(peakmem.optimize(peakmem.load(program)))
    assert "\n" not in shown and len(shown) < 200
    assert shown == "<Result of program: live_peak 1,600 -> 608 B, optimal, predicted>"
