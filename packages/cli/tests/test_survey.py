"""``peakmem survey``: a folder of models, a process for each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from peakmem_cli.fleet.models import Model
from peakmem_cli.fleet.rows import row_of
from peakmem_cli.screen import shorten, telling

from .conftest import branches

Call = Callable[..., Any]
TAPE = b"#tape\nin x 100\na 50 = x\nb 10 = a\nc 70 = x\nd 10 = c b\nout d\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two programs that an order makes smaller, one that cannot get smaller, a broken one, and files of other kinds."""
    place = tmp_path / "models"
    (place / "deep" / "er").mkdir(parents=True)
    (place / ".hidden").mkdir()
    (place / "b.json").write_text(json.dumps(branches(2)))
    (place / "deep" / "a.json").write_text(json.dumps(branches(4)))
    (place / "deep" / "er" / "one.json").write_text(json.dumps(branches(1)))
    (place / "broken.json").write_text(json.dumps(branches(2))[:-40])
    (place / "notes.txt").write_text("no model")
    (place / ".hidden" / "c.json").write_text(json.dumps(branches(2)))
    (place / "again.json").symlink_to("b.json")
    return place


def test_every_model_is_a_row_and_the_first_line_counts_them(peakmem: Call, folder: Path) -> None:
    (folder / "broken.json").unlink()
    done = peakmem("survey", folder, "-j", 2)
    assert done.code == 0, done.err
    first, title, *rest = done.out.splitlines()
    # again.json is b.json under another name, and comes first
    assert first == "3 models: 2 need less, deep/a.json the most (-70.5 %); 3 certified optimal; 0 measured"
    assert title == "live_peak of each model before and after, in bytes; not run:"
    rows = [line.split() for line in rest if ".json" in line]
    assert [r[0] for r in rows] == ["again.json", "deep/a.json", "deep/er/one.json"]
    for name, row in zip(("b.json", "deep/a.json", "deep/er/one.json"), rows):
        alone = peakmem("optimize", folder / name, "--json").document
        assert row[1:3] == [f"{alone['live_peak_before']:,}", f"{alone['live_peak_after']:,}"]
        assert "certified optimal" in " ".join(row)


def test_rows_that_share_nothing_have_all_columns(peakmem: Call, folder: Path) -> None:
    (folder / "broken.json").unlink()
    (folder / "b.json").write_text(json.dumps({**branches(2), "quantity": "bytes_above_entry"}))
    title, *rest = peakmem("survey", folder).out.splitlines()[1:]
    assert title == "bytes of each model before and after; not run:"
    assert [line.split()[1] for line in rest if ".json" in line] == ["bytes_above_entry", "live_peak", "live_peak"]


def test_shortened_names_stay_apart_where_they_can() -> None:
    names = {"light_shufflenet.onnx", "light_squeezenet.onnx", "unet.onnx"}
    width = telling(names, 12)
    assert width > 12
    assert len({shorten(name, width) for name in names}) == 3
    assert len({shorten(name, width - 1) for name in names}) == 2
    assert telling(names, 30) == 30
    alike = {f"{'m' * 40}_{middle}_{'z' * 40}" for middle in ("left", "right")}
    assert telling(alike, 12) == 12


def test_a_broken_model_is_a_row_and_the_exit_code(peakmem: Call, folder: Path) -> None:
    done = peakmem("survey", folder)
    assert done.code == 2
    assert done.out.startswith("4 models: 2 need less")
    assert "1 failed" in done.out.splitlines()[0]
    assert f"{folder / 'broken.json'}: " in done.err
    assert done.err.count("\n") == 1


def test_json_holds_what_optimize_says(peakmem: Call, folder: Path) -> None:
    document = peakmem("survey", folder, "--json").document
    assert document["schema"] == "peakmem.survey/1"
    assert (document["models"], document["complete"], document["certified_optimal"], document["failed"]) == (4, True, 3, 1)
    rows = {Path(row["model"]).name: row for row in document["rows"]}
    assert rows["broken.json"]["result"] is None
    assert rows["broken.json"]["error"]
    alone = peakmem("optimize", folder / "deep" / "a.json", "--json").document
    found = rows["a.json"]["result"]
    for key in set(alone) - {"seconds"}:
        assert found[key] == alone[key], key


def test_gates(peakmem: Call, folder: Path) -> None:
    (folder / "broken.json").unlink()
    done = peakmem("survey", folder, "--budget", 590)
    assert done.code == 1
    assert "over budget: 2 of 3 models need more than 590 B: again.json, deep/a.json" in done.err
    assert peakmem("survey", folder, "--budget", "2KB").code == 0
    assert peakmem("survey", folder, "--require-optimal").code == 0


def test_the_markdown_table(peakmem: Call, folder: Path, tmp_path: Path) -> None:
    (folder / "broken.json").rename(folder / "a|b<i>.json")
    out = tmp_path / "table.md"
    assert peakmem("survey", folder, "-o", out, "-q").code == 2
    rows = [line for line in out.read_text().splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1, "as many cells in every row"
    assert sum(row.startswith("| a\\|b&lt;i>.json |") for row in rows) == 1
    assert "exists already" in peakmem("survey", folder, "-o", out).err
    first = out.read_bytes()
    peakmem("survey", folder, "-o", out, "--force", "-j", 1)
    assert out.read_bytes() == first
    assert peakmem("survey", folder, "-o", tmp_path / "table.csv").code == 2


def test_what_cannot_be_surveyed(peakmem: Call, folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, sentence in (
        ([empty], "no model here that an installed frontend recognises"),
        ([tmp_path / "nowhere"], "does not exist"),
        ([folder / "notes.txt"], "no installed frontend recognises this file"),
        ([folder, "--frontend", "programm"], "program"),
        ([folder, "--jobs", 0], "--jobs"),
        ([folder, "--option", "keep-inputs"], "is not FRONTEND:NAME"),
        ([folder, "--option", "tapes:keep-inputs"], "no frontend is called 'tapes'"),
        ([folder, "--option", "program:keep-inputs"], "the frontend program has no option 'keep-inputs'"),
    ):
        done = peakmem("survey", *arguments)
        assert done.code == 2
        assert sentence in done.err
        assert done.out == ""


def test_options_go_to_the_models_of_their_frontend(peakmem: Call, tmp_path: Path) -> None:
    """They are part of what a row answers to, so that a survey with others does not go on from it."""
    pytest.importorskip("peakmem_tape", reason="the plugin of the tests is not installed")
    place = tmp_path / "models"
    place.mkdir()
    (place / "a.tape").write_bytes(TAPE)
    (place / "b.json").write_text(json.dumps(branches(2)))
    rows = tmp_path / "rows.jsonl"
    for more in ([], ["--option", "tape:align=64"], ["--option", "tape:align=64"]):
        done = peakmem("survey", place, "-o", rows, "--resume", *more)
        assert done.code == 0, done.err
        assert [json.loads(line)["name"] for line in rows.read_text().splitlines()].count("b.json") == 1
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    tapes = [line["result"]["live_peak_before"] for line in lines if line["name"] == "a.tape"]
    assert len(tapes) == 2
    assert tapes[1] == peakmem("optimize", place / "a.tape", "--align", 64, "--json").document["live_peak_before"] > tapes[0]
    for text, sentence in (("tape:keep-inputs=1", "takes no value"), ("tape:align", "needs a value"), ("tape:only=none", "is none of all, last"), ("tape:align=x", "tape:align: 'x' is not a size")):
        done = peakmem("survey", place, "--option", text)
        assert (done.code, done.out) == (2, "")
        assert sentence in done.err


    done = peakmem("survey", place, "--option", "tape:align=64", "--option", "tape:align=32")
    assert (done.code, "tape:align is given twice" in done.err) == (2, True)


def test_a_number_that_is_none_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem import frontends
    from peakmem.model import UsageError
    from peakmem_cli.commands.survey import options_by_frontend

    options = (frontends.Option("threads", "int", "", default=1), frontends.Option("dim", "text", "", default=(), multiple=True))
    monkeypatch.setattr(frontends, "get_frontend", lambda name: SimpleNamespace(options=options))
    assert options_by_frontend(["x:threads=2", "x:dim=a=1", "x:dim=b:c = 2"]) == {"x": ["--threads=2", "--dim=a=1", "--dim=b:c = 2"]}
    for text in ("two", "", "\u00b2", "1.5"):
        with pytest.raises(UsageError, match="is no whole number"):
            options_by_frontend([f"x:threads={text}"])


def test_rows_answer_for_what_the_files_hold_that_options_name(tmp_path: Path) -> None:
    from peakmem_cli.commands.survey import _contents

    file = tmp_path / "a = b:c"
    given = ["--align=64", f"--inputs={file}", f"--inputs={tmp_path / 'none'}", "--inputs=" + "x" * 5000, "--keep", "--inputs=\0"]
    assert _contents(given) == []
    keys = []
    for data in (b"1", b"2", b"1"):
        file.write_bytes(data)
        keys.append(_contents(given))
    assert keys[0] == keys[2] != keys[1]
    assert len(keys[0]) == 1


def test_a_process_that_ends_without_an_answer_is_named() -> None:
    model = Model(Path("x/m.tflite"), "m.tflite", "tflite")
    assert row_of(model, -signal.SIGSEGV, "", "").error == f"ended without an answer (signal {int(signal.SIGSEGV)})"
    assert row_of(model, 0, "nothing", "").code == 2
    assert row_of(model, 2, "", "peakmem: x/m.tflite: is damaged\n").error == "is damaged"


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a process")
def test_ctrl_c_shows_what_is_done_and_leaves_no_process(folder: Path, tmp_path: Path) -> None:
    from generators import ladder

    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "a.json").write_text(json.dumps(branches(2)))
    (slow / "b.json").write_text(json.dumps(ladder(3000, 3).to_json()))
    arguments = [sys.executable, "-m", "peakmem_cli", "survey", str(slow), "-j", "1", "--time-limit", "inf"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 600
        mark = str(slow / "b.json")
        while not _processes(mark) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert _processes(mark), "the second model never began"
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=600)
    assert run.returncode == 130, err
    assert out.startswith("2 models: 1 needs less, a.json the most")
    assert out.splitlines()[0].endswith("1 not done, interrupted")
    assert not _processes(mark)


def _processes(mark: str) -> list[str]:
    """Command lines that name a file."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in words:
            found.append(" ".join(words))
    return found
