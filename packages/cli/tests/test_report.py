"""``peakmem report``: what it writes, what it refuses, and how it ends."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


def heading(path: Path) -> str:
    """The first line of a page, as text."""
    found = re.search(r"<h1>(.*?)</h1>", path.read_text())
    assert found is not None
    return unescape(re.sub(r"<[^>]*>", "", found[1]))


def test_the_page_begins_with_the_answer(peakmem: Call, program: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    before = program.read_bytes()
    done = peakmem("report", program, "-o", page)
    assert (done.code, done.err) == (0, "")
    first = done.out.splitlines()[0]
    assert first == peakmem("optimize", program, "-q").out.strip() == heading(page)
    assert done.out.splitlines()[1:] == [f"wrote {page}"]
    text = page.read_text()
    assert str(tmp_path) not in text and "branches.json" in text and "option --time-limit" in text
    assert program.read_bytes() == before
    again = tmp_path / "again.html"
    assert peakmem("report", program, "-o", again, "-q").out.strip() == first
    assert again.read_bytes() == page.read_bytes()


def test_figures_are_files_of_their_own(peakmem: Call, program: Path, tmp_path: Path) -> None:
    memory, bars = tmp_path / "memory.svg", tmp_path / "bars.svg"
    done = peakmem("report", program, "--figure", memory, "--figure", f"lifetimes={bars}")
    assert (done.code, done.out.splitlines()[1:]) == (0, [f"wrote {memory}", f"wrote {bars}"])
    titles = [ET.parse(p).getroot()[0].text for p in (memory, bars)]
    assert titles == ["branches.json: memory over steps", "branches.json: lifetimes, after"]
    arena = tmp_path / "arena.svg"
    page = tmp_path / "page.html"
    done = peakmem("report", program, "-o", page, "--figure", f"arena={arena}")
    assert done.code == 1
    assert page.exists() and not arena.exists()
    assert f"{arena}: not written: arena: there is none" in done.err


def test_bad_usage_is_a_sentence(peakmem: Call, program: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    for arguments, reason in (
        ([program], "give -o FILE.html or --figure FILE.svg"),
        ([program, "-o", page], "exists already; give --force"),
        ([program, "-o", program, "--force"], "is the input file"),
        ([program, "--figure", tmp_path / "m.png"], "is not a .svg file"),
        ([program, "--figure", tmp_path / "m.svg", "-o", tmp_path / "m.svg"], "is named for two outputs"),
        ([program, "-o", tmp_path / "no" / "page.html"], "does not exist"),
        ([program, "-o", tmp_path / "p.pdf"], "p.pdf is not a .html file"),
        ([program, "-o", tmp_path / "p.html", "--cap", "3"], "need --recompute"),
        ([program, program, "-o", tmp_path / "p.html", "--recompute"], "goes with one file"),
        ([tmp_path / "absent.json", "-o", tmp_path / "p.html"], "cannot be read"),
        ([program, tmp_path / "absent.json", "-o", tmp_path / "p.html"], "cannot be read"),
    ):
        done = peakmem("report", *arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert reason in done.err and done.err.count("\n") == 1
    assert page.read_text() == "mine"
    assert not (tmp_path / "p.html").exists()
    assert peakmem("report", program, "-o", page, "--force").code == 0
    assert page.read_text() != "mine"


def test_two_files_are_compared_and_neither_is_replaced(peakmem: Call, program: Path, tmp_path: Path) -> None:
    better, page = tmp_path / "better.json", tmp_path / "page.html"
    answer = peakmem("optimize", program, "-o", better, "-q").out
    done = peakmem("report", program, better, "-o", page)
    assert (done.code, done.out.splitlines()[0]) == (0, answer.strip())
    assert heading(page) == answer.strip()
    assert "better.json" in page.read_text()
    refused = peakmem("report", program, better, "-o", better, "--force")
    assert (refused.code, "is the input file" in refused.err) == (2, True)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**json.loads(program.read_text()), "quantity": "bytes_above_entry"}))
    refused = peakmem("report", program, other, "-o", tmp_path / "p.html")
    assert (refused.code, refused.out) == (2, "") and "is no version of" in refused.err


def test_optimize_writes_the_page_beside_the_artifact(peakmem: Call, program: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "better.json", tmp_path / "page.html"
    done = peakmem("optimize", program, "-o", out, "--report", page)
    assert done.code == 0 and f"wrote {page}" in done.out
    assert heading(page) == done.out.splitlines()[0]
    refused = peakmem("optimize", program, "--report", tmp_path / "page.pdf")
    assert (refused.code, refused.out) == (2, "") and "is not a .html file" in refused.err
    refused = peakmem("optimize", program, "--report", page)
    assert (refused.code, refused.out) == (2, "") and "give --force" in refused.err


def test_recomputation_brings_its_front(peakmem: Call, toyfile: Path, toy: Any, tmp_path: Path) -> None:
    page, front = tmp_path / "page.html", tmp_path / "front.svg"
    done = peakmem("report", toyfile, "--recompute", "--max-extra-macs", "100%", "-o", page, "--figure", f"front={front}")
    assert (done.code, done.err) == (0, "")
    assert heading(page) == done.out.splitlines()[0]
    text = page.read_text()
    assert "Running operators twice" in text and "option --max-extra-macs" in text and "measured on quick 1" in text
    assert ET.parse(front).getroot().tag.endswith("svg")
    second = tmp_path / "second.html"
    done = peakmem("optimize", toyfile, "--recompute", "--max-extra-macs", "100%", "--report", second)
    assert done.code == 0 and f"wrote {second}" in done.out
    assert "Running operators twice" in second.read_text()


def test_what_differs_is_written_down_and_the_answer_is_no(peakmem: Call, toyfile: Path, toy: Any, tmp_path: Path) -> None:
    toy.failures = ("value 'k' differs",)
    page = tmp_path / "page.html"
    done = peakmem("report", toyfile, "-o", page)
    assert done.code == 1 and "value 'k' differs" in done.err
    text = page.read_text()
    assert "What differs" in text and "bitwise identical" not in heading(page)
    out, second = tmp_path / "out.toy", tmp_path / "second.html"
    done = peakmem("optimize", toyfile, "-o", out, "--report", second)
    assert done.code == 1 and "nothing else written" in done.err
    assert second.exists() and not out.exists()


def test_why_nothing_was_measured_is_said(peakmem: Call, toyfile: Path, toy: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    toy.missing = {"quick"}
    assert peakmem("report", toyfile, "-o", page).code == 0
    assert "quick is not installed; try: pip install" in unescape(page.read_text())
    assert peakmem("report", toyfile, "-o", page, "--force", "--no-measure").code == 0
    assert "option --no-measure" in page.read_text()
    toy.uninstalled = {"steady"}
    done = peakmem("report", toyfile, "--engine", "steady", "-o", tmp_path / "p.html")
    assert (done.code, done.out) == (2, "") and "steady is not installed" in done.err


@pytest.mark.parametrize("command", ["report", "optimize"])
def test_help_names_the_page(peakmem: Call, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "FILE.html" in peakmem(command, "--help").out
