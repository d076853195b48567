"""What stands in a report, once, and at a width that can be read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peakmem_cli.screen import LONGEST_NAME, shorten

from .conftest import SNIPPET

Call = Callable[..., Any]
PLAN = ("--max-extra-macs", "100%")


# source text for a device


@pytest.mark.usefixtures("toy")
def test_quiet_prints_the_source_text_alone(peakmem: Call, toyfile: Path) -> None:
    done = peakmem("optimize", toyfile, "--snippet", "-q")
    assert (done.code, done.out, done.err) == (0, SNIPPET, "")


@pytest.mark.usefixtures("toy")
def test_source_text_stands_behind_the_report_and_an_empty_line(peakmem: Call, toyfile: Path) -> None:
    report = peakmem("optimize", toyfile).out
    assert peakmem("optimize", toyfile, "--snippet").out == f"{report}\n{SNIPPET}"
    assert peakmem("optimize", toyfile, "--snippet", "--json", "-q").document["snippet"] == SNIPPET


@pytest.mark.usefixtures("toy")
def test_source_text_goes_into_a_file(peakmem: Call, toyfile: Path, tmp_path: Path) -> None:
    out = tmp_path / "arena.h"
    done = peakmem("optimize", toyfile, "--snippet-out", out)
    assert out.read_text() == SNIPPET
    assert SNIPPET not in done.out
    assert done.out.endswith(f"wrote {out}\n")
    assert peakmem("optimize", toyfile, "--snippet-out", out).code == 2  # exists
    assert peakmem("optimize", toyfile, "--snippet-out", out, "-o", out, "--force").code == 2


def test_a_refused_result_has_no_source_text(peakmem: Call, toy: Any, toyfile: Path, tmp_path: Path) -> None:
    toy.failures = ("value 3 differs",)
    out = tmp_path / "arena.h"
    for flags in ((), ("-q",)):
        done = peakmem("optimize", toyfile, "--snippet", "--snippet-out", out, *flags)
        assert done.code == 1
        assert done.err == "peakmem: value 3 differs; nothing written\n"
        assert "int peak" not in done.out
        assert done.out.startswith("live_peak ")
        assert not out.exists()
    assert "snippet" not in peakmem("optimize", toyfile, "--snippet", "--json").document


# nothing is said twice


@pytest.mark.parametrize("command", [["optimize"], ["recompute", *PLAN], ["verify"]])
def test_what_differs_is_said_once(peakmem: Call, toy: Any, toyfile: Path, tmp_path: Path, command: list[str]) -> None:
    toy.failures = ("value 3 differs at step 1", "the end of it differs")
    rest = [toyfile] if command == ["verify"] else ["-o", tmp_path / "out"]
    done = peakmem(command[0], toyfile, *command[1:], *rest)
    assert done.code == 1
    for failure in toy.failures:
        assert (done.out + done.err).count(failure) == 1
    quiet = peakmem(command[0], toyfile, *command[1:], *rest, "-q")
    assert quiet.err == done.err
    document = peakmem(command[0], toyfile, *command[1:], *rest, "--json")
    assert document.err == done.err


def test_why_nothing_was_realized_is_said_once(
    peakmem: Call, toy: Any, toyfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peakmem.model import InputError

    def refuse(*_: object) -> None:
        raise InputError("a toy computes everything once")

    monkeypatch.setattr("peakmem.programfile.ProgramModel.apply", refuse)
    for output in ([], ["-o", tmp_path / "out"]):
        done = peakmem("recompute", toyfile, *PLAN, *output)
        assert done.code == (1 if output else 0)
        assert (done.out + done.err).count("a toy computes everything once") == 1


# a recomputation says of its run what an optimization says


def test_a_recomputation_says_what_was_compared_and_all_notes(peakmem: Call, toy: Any, toyfile: Path) -> None:
    toy.notes = ("the file is old",), ("the new file is larger",)
    notes = ["the file is old", "the new file is larger", "the toy is slow"]
    done = peakmem("recompute", toyfile, *PLAN)
    assert done.code == 0
    assert done.out.splitlines()[1] == "all 7 values: bitwise identical"
    assert [line.removeprefix("note: ") for line in done.out.splitlines() if line.startswith("note: ")] == notes
    document = peakmem("recompute", toyfile, *PLAN, "--json").document
    assert document["notes"] == notes
    assert document["runtime"]["compared"] == "all 7 values"
    whole = peakmem("optimize", "--recompute", toyfile, *PLAN, "--json").document
    assert whole["notes"] == notes
    assert "notes" not in whole["recompute"]
    front = peakmem("recompute", toyfile)  # no plan chosen: nothing made, nothing run
    assert [line for line in front.out.splitlines() if line.startswith("note: ")] == ["note: the file is old"]


# long names


def long_names(document: dict[str, Any], length: int) -> dict[str, str]:
    """Give every buffer and statement a long name that tells only by its end what it is; old name -> new name."""
    new = {row["id"]: "part/" * (length // 5) + row["id"] for key in ("buffers", "statements") for row in document[key]}
    for row in document["buffers"]:
        row["id"] = new[row["id"]]
    for row in document["statements"]:
        row["op"] = row.get("op", "Op")
        row["id"] = new[row["id"]]
        for key in ("reads", "writes", "dependences", "overwrites"):
            row[key] = [new[name] for name in row[key]] if key in row else []
    return new


def test_names_keep_both_ends() -> None:
    assert shorten("a" * LONGEST_NAME) == "a" * LONGEST_NAME
    for width in (9, 10, LONGEST_NAME):
        short = shorten("begin" + "x" * 100 + "end", width)
        assert len(short) == width
        assert short.startswith("beg")
        assert "..." in short
        assert short.endswith("end")


@pytest.mark.usefixtures("toy")
def test_a_frontend_without_a_distribution_has_certificates_too(peakmem: Call, toyfile: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    assert peakmem("certify", toyfile, "-o", proof).code == 0
    assert json.loads(proof.read_text())["artifact"]["version"] == "unknown"
    assert peakmem("check", toyfile, proof).code == 0


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    "command",
    [["inspect"], ["optimize"], ["certify", "--explain"], ["recompute"], ["recompute", *PLAN]],
    ids=" ".join,
)
def test_long_names_are_short_in_text_and_whole_in_json(peakmem: Call, toyfile: Path, command: list[str]) -> None:
    document = json.loads(toyfile.read_text()[3:])
    new = long_names(document, 200)
    plain = peakmem(command[0], toyfile, *command[1:])
    toyfile.write_text("toy" + json.dumps(document))
    done = peakmem(command[0], toyfile, *command[1:])
    assert done.code == 0
    assert not [name for name in new.values() if name in done.out]
    assert "part/part/part/part/par..." in done.out
    # No line grows by more than its names may.
    for before, after in zip(plain.out.splitlines(), done.out.splitlines(), strict=True):
        names = after.count("...")
        assert len(after) <= len(before) + LONGEST_NAME * max(names, 3)
    shown = peakmem(command[0], toyfile, *command[1:], "--json").out
    assert any(name in shown for name in new.values())
    assert "..." not in shown


def on_a_terminal(columns: int, *arguments: object) -> list[str]:
    """What a command prints on a terminal of some width, without its colours."""
    import pty
    import termios

    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (50, columns))
    process = subprocess.Popen(
        [sys.executable, "-m", "peakmem_cli", *map(str, arguments)], stdout=follower, stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # so Linux ends a terminal
            break
        if not part:
            break
        seen += part
    os.close(leader)
    assert process.wait(timeout=600) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()).replace("\r", "").splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="opens a pseudo-terminal the Linux way")
@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_tables_keep_figures_and_both_ends_of_names_on_a_narrow_terminal(program: Path, columns: int) -> None:
    document = json.loads(program.read_text())
    long_names(document, 60)
    program.write_text(json.dumps(document))
    lines = on_a_terminal(columns, "inspect", program)
    rows = [line.split() for line in lines if "intermediate" in line]
    assert [row[2:4] for row in rows] == [["512", "B"]] * 3
    for name, *_ in rows:
        begin, _, end = name.partition("...")
        assert begin == ("part/" * 12)[: len(begin)]
        assert re.fullmatch(r"[part/]*wide[0-2]", end)
    assert len({row[0] for row in rows}) == 3
    assert "\u2026" not in "".join(lines)
    assert max(len(line) for line in lines if "intermediate" in line) <= max(columns, 60)
