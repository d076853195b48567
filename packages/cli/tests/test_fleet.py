"""A fleet of models: rows that stream, resume, share out and merge; limits; tables; what got worse; signals."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peakmem_cli.fleet import rows as rowfiles
from peakmem_cli.fleet.against import compare
from peakmem_cli.fleet.models import Choice, Model, find, readable
from peakmem_cli.fleet.rows import Row, RowFile, merge, read_rows
from peakmem_cli.fleet.run import Task, run_all, run_task
from peakmem_cli.fleet.tables import FLAT, comma_separated, html
from peakmem_cli.interrupts import later

from .conftest import branches

Call = Callable[..., Any]
POSIX = pytest.mark.skipif(os.name != "posix", reason="sends signals the POSIX way")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "models"
    (place / "old").mkdir(parents=True)
    (place / "a.json").write_text(json.dumps(branches(2)))
    (place / "b.json").write_text(json.dumps(branches(3)))
    (place / "old" / "c.json").write_text(json.dumps(branches(4)))
    return place


def row(name: str, before: int = 100, after: int = 90, *, optimal: bool = True, code: int = 0, key: str = "k", **runtime: Any) -> Row:
    """A row as `peakmem optimize` would make it."""
    said = {
        "name": None, "version": None, "quantity": "live_peak", "baseline_bytes": None, "baseline_predicted": before,
        "predicted_bytes": after, "optimized_bytes": None, "measured": False, "bitwise_identical": None,
    }  # fmt: skip
    result = {
        "schema": "peakmem.result/1", "statements": 3, "realized_optimal": optimal, "realized_bound": after if optimal else after - 1,
        "runtime": said | runtime,
    }  # fmt: skip
    return Row(Model(Path("m") / name, name, "program", "0" * 64), code, result, "", key)


def test_a_process_that_was_ended_after_it_answered_is_an_error_with_an_answer() -> None:
    answer = row("a").result
    assert answer is not None
    ended = rowfiles.row_of(Model(Path("m/a"), "a", "program"), -15, json.dumps(answer), "", report="a.html")
    assert (ended.code, ended.report, ended.after) == (2, None, 90)
    assert ended.error == "ended by signal 15 after its answer"
    fine = rowfiles.row_of(Model(Path("m/a"), "a", "program"), 0, json.dumps(answer), "", report="a.html")
    assert (fine.code, fine.report, fine.error) == (0, "a.html", "")


@POSIX
@pytest.mark.parametrize("said", [True, False])
def test_the_limit_of_a_model_ends_it_and_keeps_what_it_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: bool) -> None:
    """A process that computes for ever, deaf to SIGTERM, after its answer or before it."""
    script = tmp_path / "model.py"
    answer = json.dumps(row("a").result) if said else ""
    script.write_text(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint({answer!r}, flush=True)\nwhile True: pass\n")
    monkeypatch.setattr("peakmem_cli.fleet.run.GRACE", 0.5)
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))
    found = run_task(Task(Model(tmp_path / "a.json", "a.json", "program"), (), "k", limit=1.0))
    assert found is not None
    assert (found.code, found.error) == (2, "did not end within 1 s (--model-limit)")
    assert (found.result is not None) == said


def failed(name: str, key: str = "k") -> Row:
    return Row(Model(Path("m") / name, name, "program", "0" * 64), 2, None, "is damaged", key)


# which files


def test_patterns_choose_files_of_folders_and_never_those_given(folder: Path) -> None:
    def names(*paths: Path, **choice: Any) -> list[str]:
        return [model.name for model in find(paths, Choice(**choice))]

    assert names(folder) == ["a.json", "b.json", "old/c.json"]
    assert names(folder, exclude=["old/*"]) == ["a.json", "b.json"]
    assert names(folder, include=["*/c.*", "a*"]) == ["a.json", "old/c.json"]
    assert names(folder / "a.json", exclude=["*"]) == [str(folder / "a.json")]


def test_shards_share_all_models_out_and_keep_them_when_the_folder_grows(folder: Path) -> None:
    def shares(of: int) -> list[set[str]]:
        return [{m.name for m in find([folder], Choice(shard=(i, of)))} for i in range(1, of + 1)]

    for of in (1, 2, 3):
        parts = shares(of)
        assert set.union(*parts) == {"a.json", "b.json", "old/c.json"}
        assert sum(map(len, parts)) == 3
    before = shares(2)
    (folder / "new.json").write_text(json.dumps(branches(5)))
    assert all(old == new - {"new.json"} for old, new in zip(before, shares(2)))


def test_json_files_that_are_no_programs_are_passed_over(folder: Path) -> None:
    (folder / "alexa.json").write_text('{"type": "micro", "model": "alexa.tflite", "micro": {"tensor_arena_size": 22348}}')
    (folder / "answer.json").write_text('{"schema": "peakmem.result/1", "statements": 3, "buffers": []}')
    (folder / "cut.json").write_text(json.dumps(branches(2))[:-40])
    assert [m.name for m in find([folder], Choice())] == ["a.json", "b.json", "cut.json", "old/c.json"]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_damaged_program_is_a_row_wherever_it_was_cut(peakmem: Call, tmp_path: Path, indent: int | None) -> None:
    place = tmp_path / "damaged"
    place.mkdir()
    graph = {"name": "g", "statements": [{"id": 0, "text": "a", "deps": [], "reads": [], "writes": [0]}], "buffers": [{"id": 0, "bytes": 4, "kind": "output"}]}
    whole, ours = json.dumps(graph, indent=indent), json.dumps(branches(2), indent=indent)
    (place / "statements_only.json").write_text(whole[: whole.index("writes")])
    (place / "no_head.json").write_text("\0" + whole[1:])
    (place / "schema_only.json").write_text(ours[: ours.index("buffers")])
    (place / "blank.json").write_text("")
    (place / "gltf.json").write_text('{"buffers": [{"byteLength": 4}], "meshes": [], "statements": "none"}')
    (place / "ast.json").write_text('{"statements": [{"kind": "assign", "value": [1]}]}')
    document = peakmem("survey", place, "--json").document
    assert {row["name"] for row in document["rows"]} == {"statements_only.json", "no_head.json", "schema_only.json"}
    assert all(row["error"] and row["exit_code"] == 2 and row["result"] is None for row in document["rows"])


@POSIX
def test_names_of_any_bytes(peakmem: Call, folder: Path, tmp_path: Path) -> None:
    odd = folder / os.fsdecode(b"x\xff.json")
    try:
        (folder / "a.json").rename(odd)
    except OSError:
        pytest.skip("this file system takes only names that are UTF-8")
    outputs = [tmp_path / f"t.{kind}" for kind in ("jsonl", "md", "csv", "html")]
    arguments = [argument for path in outputs for argument in ("-o", path)]
    done = peakmem("survey", folder, "--exclude", "[bo]*", *arguments, "--reports", tmp_path / "pages")
    assert done.code == 0, done.err
    for path in outputs:
        assert r"x\xff.json" in path.read_text("utf-8").replace("\\\\", "\\")
    assert read_rows(outputs[0])[0].model.name == r"x\xff.json"


# rows


def test_rows_are_read_as_they_were_written_and_a_torn_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written = [row("a"), failed("b"), row("c", runtime="x")]
    file = RowFile(path, resume=False)
    for one in written:
        file.add(one)
    file.close()
    assert read_rows(path) == written
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"schema": "peakmem.ro')
    assert read_rows(path) == written
    again = RowFile(path, resume=True)
    assert again.known == written
    again.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "sentence"),
    [("[]", "is no row"), ('{"schema": "peakmem.row/2"}', "is no row"), ('{"schema": "peakmem.row/1"}', "damaged row"), ("{", "line 1")],
)
def test_what_is_no_row_is_refused(peakmem: Call, tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    done = peakmem("merge", path)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err and done.err.count("\n") == 1


def test_resume_runs_only_what_is_new_or_changed(peakmem: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem_cli.fleet import run

    path, ran = tmp_path / "rows.jsonl", []
    really = run.run_task

    def counted(task: Task, stop: Any = None) -> Row | None:
        ran.append(task.model.name)
        return really(task, stop)

    monkeypatch.setattr(run, "run_task", counted)
    options = ("-o", path, "--exclude", "b*", "--time-limit", 30)
    first = peakmem("survey", folder, *options)
    assert first.code == 0 and sorted(ran) == ["a.json", "old/c.json"]
    assert peakmem("survey", folder, *options).code == 2, "an output that exists needs --resume or --force"
    ran.clear()
    (folder / "a.json").rename(folder / "named_anew.json")
    again = peakmem("survey", folder, *options, "--resume")
    assert ran == [] and "2 of them known from an earlier run" in again.out and "named_anew.json" in again.out
    (folder / "named_anew.json").write_text(json.dumps(branches(1)))
    assert peakmem("survey", folder, *options, "--resume").code == 0
    assert ran == ["named_anew.json"]
    ran.clear()
    peakmem("survey", folder, *options[:-1], 31, "--resume", "-q")
    assert sorted(ran) == ["named_anew.json", "old/c.json"], "other options, other answers"


def test_json_lines_print_rows_and_nothing_else(peakmem: Call, folder: Path) -> None:
    done = peakmem("survey", folder, "--json-lines")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert {r["name"] for r in found} == {"a.json", "b.json", "old/c.json"}
    assert {r["schema"] for r in found} == {rowfiles.SCHEMA}
    assert peakmem("survey", folder, "--json-lines", "--json").code == 2


def test_shards_merge_to_the_whole(peakmem: Call, folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.jsonl" for i in (1, 2)]
    for i, path in enumerate(files, 1):
        assert peakmem("survey", folder, "--shard", f"{i}/2", "-o", path).code == 0
    merged, tables = peakmem("merge", *files), tmp_path / "all.md"
    assert merged.code == 0
    assert merged.out.startswith("3 models: 3 need less")
    assert peakmem("merge", *reversed(files), "-o", tables, "-o", tmp_path / "all.jsonl").code == 0
    assert [line.split()[1] for line in tables.read_text().splitlines()[4:]] == ["a.json", "b.json", "old/c.json"]
    assert len(read_rows(tmp_path / "all.jsonl")) == 3
    assert "one of the files" in peakmem("merge", *files, "-o", files[0], "--force").err
    for share in ("0/2", "3/2", "1", "1/0", "a/b"):
        assert peakmem("survey", folder, "--shard", share).code == 2


def test_of_rows_with_one_key_the_last_stands() -> None:
    first, last, other = row("a", after=90), row("a", after=80), row("a", after=70, key="other options")
    assert merge([[first], [last, other]]) == [last, other]


# tables


def test_csv_is_flat_typed_and_harmless_in_a_spreadsheet() -> None:
    rows = [row("=1+1", measured=True, bitwise_identical=True, baseline_bytes=104, optimized_bytes=96), failed("b,c")]
    read = list(csv.DictReader(comma_separated(rows, "", "").decode().splitlines()))
    assert tuple(read[0]) == FLAT
    assert read[0]["model"] == "'=1+1" and read[1]["model"] == "b,c"
    assert (read[0]["before_bytes"], read[0]["after_bytes"], read[0]["measured"]) == ("104", "96", "true")
    assert read[1]["before_bytes"] == "" and read[1]["error"] == "is damaged"


def test_parquet_holds_what_csv_holds(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'peakmem-cli[parquet]'")
    from peakmem_cli.fleet.tables import flat
    from peakmem_cli.fleet.tables import parquet as written

    rows = [failed("a"), row("b")]
    path = tmp_path / "t.parquet"
    path.write_bytes(written(rows, "", ""))
    assert parquet.read_table(path).to_pylist() == [flat(one) for one in rows]


def test_html_leads_to_a_page_for_each_model_and_escapes_names(peakmem: Call, folder: Path, tmp_path: Path) -> None:
    import re

    table, pages = tmp_path / "t.html", tmp_path / "pages of models"
    assert peakmem("survey", folder, "-o", table, "--reports", pages).code == 0
    links = re.findall(r'href="([^"]+)"', table.read_text())
    assert len(links) == len(set(links)) == 3
    for link in links:
        assert "live_peak" in (tmp_path / link.replace("%20", " ")).read_text()
    evil = html([failed("<script>\u202e"), row('"><img src=x>')], "<b>", "").decode()
    assert "<script" not in evil and "<img" not in evil and "\u202e" not in evil and "<b>" not in evil


def test_tables_of_unknown_kinds_are_refused_before_any_work(peakmem: Call, folder: Path, tmp_path: Path) -> None:
    for arguments in (("-o", "t.txt"), ("-o", "a.jsonl", "-o", "b.jsonl"), ("--resume",), ("--gate",), ("--reports", folder / "a.json")):
        done = peakmem("survey", folder, *(tmp_path / a if str(a).startswith(("t.", "a.", "b.")) else a for a in arguments))
        assert (done.code, done.out) == (2, ""), arguments
        assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [folder]


# against an earlier survey


def test_what_got_worse_is_said_and_is_a_gate(peakmem: Call, tmp_path: Path) -> None:
    then, now = tmp_path / "then.jsonl", tmp_path / "now.jsonl"

    def write(path: Path, *rows: Row) -> None:
        path.write_text("".join(r.to_line() for r in rows))

    write(then, row("more"), row("less"), row("open"), row("broke"), row("same"), row("gone"))
    write(now, row("more", after=95), row("less", after=80), row("open", optimal=False), failed("broke"), row("same"), row("new"))
    done = peakmem("merge", now, "--against", then)
    assert "against the earlier survey: 3 worse, 1 better, 1 new, 1 gone" in done.out
    assert "  worse: more: live_peak 90 B -> 95 B (+5.6 %)" in done.out
    assert "  worse: open: no longer certified optimal" in done.out
    assert "  worse: broke: failed: is damaged" in done.out
    gated = peakmem("merge", now, "--against", then, "--gate", "--json")
    assert gated.code == 1
    assert gated.document["against"]["new"] == ["new"]
    write(now, row("more"), row("less", after=80))
    assert peakmem("merge", now, "--against", then, "--gate").code == 0


def test_a_measured_row_that_is_predicted_now_is_worse() -> None:
    measured = {"measured": True, "bitwise_identical": True, "baseline_bytes": 100, "optimized_bytes": 90}
    assert compare([row("a")], [row("a", **measured)], complete=True).worse == ("a: no longer measured",)
    differs = row("a", **(measured | {"bitwise_identical": False}))
    assert compare([differs], [row("a", **measured)], complete=True).worse == ("a: no longer bitwise identical",)
    assert compare([], [row("a")], complete=False).gone == ()


# limits and signals


def test_a_model_that_never_ends_is_one_row(peakmem: Call, folder: Path) -> None:
    from generators import random_program

    (folder / "b.json").write_text(json.dumps(random_program(2, 800).to_json()))
    done = peakmem("survey", folder, "--exclude", "old/*", "--time-limit", "inf", "--model-limit", 6, "--json")
    assert done.code == 2
    rows = {r["name"]: r for r in done.document["rows"]}
    assert rows["a.json"]["exit_code"] == 0
    assert rows["b.json"]["error"] == "did not end within 6 s (--model-limit)"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_a_model_that_takes_too_much_memory_is_one_row(peakmem: Call, folder: Path) -> None:
    done = peakmem("survey", folder / "a.json", "--memory", "64MiB", "--json")
    assert done.code == 2
    (found,) = done.document["rows"]
    assert found["result"] is None and found["error"]


@POSIX
def test_sigterm_writes_everything_found(folder: Path, tmp_path: Path) -> None:
    from generators import random_program

    (folder / "b.json").write_text(json.dumps(random_program(2, 800).to_json()))
    lines, table = tmp_path / "rows.jsonl", tmp_path / "t.csv"
    arguments = [sys.executable, "-m", "peakmem_cli", "survey", str(folder), "-j", "1", "--time-limit", "inf", "-o", str(lines), "-o", str(table)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        waited = threading.Event()
        for _ in range(6000):
            if lines.exists() and lines.read_bytes().endswith(b"\n"):
                break
            waited.wait(0.1)
        else:
            pytest.fail("no row came")
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=600)
    assert run.returncode == 143, err
    assert out.splitlines()[0].startswith("3 models: 1 needs less, a.json the most")
    assert [r.model.name for r in read_rows(lines)] == ["a.json"]
    assert table.read_text().count("\n") == 2


def test_a_signal_waits_until_a_row_is_in_all_places() -> None:
    places = []

    def put() -> None:
        with later():
            places.append("one")
            signal.raise_signal(signal.SIGINT)
            places.append("other")

    with pytest.raises(KeyboardInterrupt):
        put()
    assert places == ["one", "other"]


# elsewhere


def test_any_backend_of_joblib(peakmem: Call, folder: Path) -> None:
    pytest.importorskip("joblib", reason="needs joblib: pip install 'peakmem-cli[joblib]'")
    done = peakmem("survey", folder, "--backend", "loky", "-j", 2)
    assert done.code == 0, done.err
    assert done.out.startswith("3 models: 3 need less")
    bad = peakmem("survey", folder, "--backend", "lokky")
    assert (bad.code, bad.out) == (2, "")
    assert "--backend lokky" in bad.err


def test_a_row_found_while_it_was_interrupted_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem_cli.fleet import run

    monkeypatch.setattr(run, "run_task", lambda task, stop: row(task.model.name))
    taken: list[str] = []

    def take(found: Row) -> None:
        taken.append(found.model.name)
        if len(taken) == 1:
            raise KeyboardInterrupt

    tasks = [Task(Model(Path(n), n, "program"), (), n) for n in "abc"]
    assert isinstance(run_all(tasks, 3, None, take, None), KeyboardInterrupt)
    assert len(taken) == len(set(taken)) >= 1
    assert readable("abc") == "abc"
