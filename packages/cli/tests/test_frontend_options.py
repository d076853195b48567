"""What a frontend's options and runtimes mean to the commands: a toy frontend says what is missing or broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
MEASURING = (["optimize"], ["recompute"], ["optimize", "--recompute"])


@pytest.mark.parametrize("command", [*MEASURING, ["verify"]])
def test_a_runtime_that_was_named_and_is_missing_ends_the_command(
    peakmem: Call, toy: Any, toyfile: Path, command: list[str]
) -> None:
    toy.uninstalled = toy.missing = {"steady"}
    files = [toyfile, toyfile] if command == ["verify"] else [toyfile]
    done = peakmem(*command, *files, "--engine", "steady")
    assert (done.code, done.out) == (2, "")
    assert done.err == "peakmem: --engine: steady is not installed; try: pip install 'toy[steady]'\n"


@pytest.mark.parametrize("command", MEASURING)
@pytest.mark.parametrize("fault", ["missing", "broken"])
def test_a_runtime_that_was_named_and_fails_later_ends_the_command_too(
    peakmem: Call, toy: Any, toyfile: Path, tmp_path: Path, command: list[str], fault: str
) -> None:
    """Installed by its version, yet it does not start."""
    setattr(toy, fault, {"steady"})
    out = tmp_path / "out"
    plan = [] if command == ["optimize"] else ["--max-extra-macs", "100%"]
    done = peakmem(*command, toyfile, "--engine", "steady", *plan, "-o", out)
    assert (done.code, done.out) == (2, "")
    assert "steady" in done.err
    assert done.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("fault", ["missing", "broken"])
def test_a_runtime_by_default_that_fails_leaves_the_prediction(
    peakmem: Call, toy: Any, toyfile: Path, fault: str
) -> None:
    setattr(toy, fault, {"quick"})
    done = peakmem("optimize", toyfile)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].endswith("; predicted")
    assert "not measured: quick " in done.out
    assert peakmem("verify", toyfile, toyfile).code == 2  # it has no other answer


def test_commands_that_run_nothing_do_without_the_runtime_named(peakmem: Call, toy: Any, toyfile: Path) -> None:
    toy.uninstalled = toy.missing = {"steady"}
    for command in (["inspect"], ["certify"], ["optimize", "--no-measure"], ["recompute", "--no-measure"]):
        done = peakmem(*command, toyfile, "--engine", "steady")
        assert (done.code, done.err) == (0, ""), command


@pytest.mark.usefixtures("toy")
def test_other_options_ask_for_no_runtime(peakmem: Call, toy: Any, toyfile: Path) -> None:
    toy.missing = {"quick"}
    done = peakmem("optimize", toyfile, "--rounds", "3", "--no-frills", "--label", "a")
    assert (done.code, done.err) == (0, "")
    assert "not measured: quick is not installed" in done.out


@pytest.mark.usefixtures("toy")
def test_the_help_shows_what_can_be_typed(peakmem: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    commands = ([], ["optimize", "--frontend", "toy"], ["recompute", "--frontend", "toy"], ["certify"], ["frontends"])
    for command in commands:
        shown = peakmem(*command, "--help").out
        assert not re.findall(r"<(?!path>)\w+>|\b(?:BOOL|BOOLEAN)\b", shown, re.IGNORECASE), command
    shown = peakmem("optimize", "--frontend", "toy", "--help").out
    rows = {option: re.search(rf"--{option} +(.*?)  +\S", shown) for option in ("engine", "rounds", "label")}
    assert {option: row and row[1] for option, row in rows.items()} == {
        "engine": "quick|steady", "rounds": "N", "label": "TEXT",
    }  # fmt: skip
    assert re.search(r"--no-frills +Leave out the frills", shown)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["optimize", "FILE", "--frontend", "tyo"], "did you mean 'toy'?"),
        (["optimize", "FILE", "--frontend", "TFLIT"], "did you mean 'tflite'?"),  # installed or not
        (["optimize", "FILE", "--frontend=porgram"], "did you mean 'program'?"),
        (["optimize", "FILE", "--engine", "stead"], "did you mean 'steady'?"),
        (["optimize", "FILE", "--ruonds", "3"], "did you mean '--rounds'?"),
        (["optimize", "FILE", "--snipet"], "did you mean '--snippet'?"),
        (["recompute", "FILE", "--threshold", "Kepe=64"], "did you mean 'Keep'?"),
        (["optimise", "FILE"], "Did you mean 'optimize'?"),
        (["--versoin"], "did you mean '--version'?"),
        (["--json", "optimize", "FILE"], "options stand behind the command: peakmem optimize --json"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_known_one(
    peakmem: Call, toyfile: Path, arguments: list[str], suggested: str
) -> None:
    done = peakmem(*(str(toyfile) if a == "FILE" else a for a in arguments))
    assert done.code == 2
    assert done.out == "" or "--json" in arguments
    assert suggested in done.err
    assert done.err.count("\n") == 1
    assert "pip install" not in done.err


def test_options_are_not_alike_by_their_dashes(peakmem: Call) -> None:
    assert "did you mean" not in peakmem("--jsn").err


def test_a_name_like_no_other_gets_no_suggestion_and_no_package_to_install(peakmem: Call, program: Path) -> None:
    done = peakmem("inspect", program, "--frontend", "cobol")
    assert "no frontend is called 'cobol'" in done.err
    assert "did you mean" not in done.err
    assert "pip install" not in done.err
